"""The trainer as a pair of functions: however it is driven, the numbers are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tabular_cli

from riskppo_jax import sgda
from riskppo_jax.config import Layout
from riskppo_jax.errors import UserError
from riskppo_jax.risk import oce
from riskppo_jax.risk.lagrangian import Constraint, Problem
from riskppo_jax.train import BAD_ITERATIONS, Scheme, make_train, scan_steps

LAYOUT = Layout(num_envs=2, horizon=4, num_minibatches=2, num_epochs=2, hidden_sizes=(4,))


def chain(beta=0.3, threshold=1.0):
    return Problem(constraints=(Constraint("v1", threshold, oce.cvar(beta)),))


@pytest.fixture(scope="module")
def env():
    return tabular_cli.make()


@pytest.fixture(scope="module")
def trainer(env):
    return make_train(env, LAYOUT, chain())


@pytest.fixture(scope="module")
def start(trainer):
    return jax.jit(trainer.init)(jax.random.key(0), trainer.hypers)


def plain(tree):
    """Keys as their words, so that all leaves can be compared."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


def assert_near(a, b, rtol):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol), plain(a), plain(b))


@pytest.fixture(scope="module")
def three(trainer):
    """Three steps as one program, and how often it was traced."""
    traced = []

    def chunk(state, hypers):
        traced.append(1)
        return scan_steps(trainer, 3)(state, hypers)

    return jax.jit(chunk), traced


@pytest.fixture(scope="module")
def step(trainer):
    return jax.jit(trainer.step)


def test_whole_run_equals_chunks_with_one_compilation(trainer, start, three):
    run, traced = three
    whole, metrics = jax.jit(scan_steps(trainer, 6))(start, trainer.hypers)
    first, early = run(start, trainer.hypers)
    second, late = run(first, trainer.hypers)
    assert_same(whole, second)
    assert_same(metrics, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), early, late))
    assert len(traced) == 1 and run._cache_size() == 1
    assert int(second.env_steps) == 6 * LAYOUT.batch_size


def test_ratio_is_one_at_the_first_minibatch_and_metrics_are_small(trainer, start, three):
    _, metrics = three[0](start, trainer.hypers)
    np.testing.assert_array_equal(metrics["ppo/first_log_ratio"], 0.0)
    assert sum(np.asarray(value[0]).nbytes for value in metrics.values()) < 4096


def test_without_jit(trainer, start, step):
    """Operation by operation XLA rounds on its own, so this holds up to rounding."""
    jitted, _ = step(start, trainer.hypers)
    with jax.disable_jit():
        eager, _ = trainer.step(start, trainer.hypers)
    np.testing.assert_array_equal(jitted.envs.sim, eager.envs.sim)  # the same actions were drawn
    assert_near(jitted.learner.params, eager.learner.params, 1e-5)
    assert_near(jitted.dual, eager.dual, 1e-5)


def test_vmapped_over_beta_and_seed_equals_single(trainer, three):
    """Batched matrix products round otherwise: the same worlds and prices, weights up to rounding."""
    seeds, betas = jnp.asarray([0, 1]), [0.2, 0.7]
    hypers = jax.vmap(lambda beta: trainer.hypers.replace(problem=chain(beta)))(jnp.asarray(betas))
    starts = jax.jit(jax.vmap(lambda seed, h: trainer.init(jax.random.key(seed), h)))(seeds, hypers)
    grid, _ = jax.jit(jax.vmap(scan_steps(trainer, 3)))(starts, hypers)
    for i, beta in enumerate(betas):
        start, lane = (jax.tree.map(lambda x, i=i: x[i], tree) for tree in (starts, grid))
        alone, _ = three[0](start, trainer.hypers.replace(problem=chain(beta)))
        np.testing.assert_array_equal(alone.envs.sim, lane.envs.sim)
        assert_near(alone.dual, lane.dual, 1e-5)
        assert_near(alone.learner.params, lane.learner.params, 1e-4)


def test_several_constraints_and_a_risk_averse_objective(env):
    problem = Problem(
        oce.entropic(0.5),
        (Constraint("v1", 1.0, oce.cvar(0.3)), Constraint("v1", 0.5, oce.spectral([0.5, 0.5], [0.2, 1.0]))),
    )
    trainer = make_train(env, LAYOUT, problem, sgda.Rule("optimistic"))
    state = jax.jit(trainer.init)(jax.random.key(0), trainer.hypers)
    state, metrics = jax.jit(scan_steps(trainer, 3))(state, trainer.hypers)
    assert state.dual.lam.shape == (2,) and state.dual.t[2].shape == (2,)
    assert all(np.isfinite(metrics[f"constraint{i}/{name}"]).all() for i in (0, 1) for name in ("lam", "t", "risk"))
    assert int(state.bad_streak) == 0


def test_fresh_batch_counts_its_steps(env):
    scheme = Scheme(dual_rollout="fresh", dual_policy="mean", occupancy="discounted", constant=True, units="raw")
    trainer = make_train(env, LAYOUT, chain(), sgda.Rule("plain", "scaled", "wide"), scheme)
    state = jax.jit(trainer.init)(jax.random.key(0), trainer.hypers)
    state, _ = jax.jit(trainer.step)(state, trainer.hypers)
    assert int(state.env_steps) == trainer.steps_per_iteration == 2 * LAYOUT.batch_size


def test_no_constraint_at_all(env):
    trainer = make_train(env, LAYOUT, Problem())
    state = jax.jit(trainer.init)(jax.random.key(0), trainer.hypers)
    state, metrics = jax.jit(trainer.step)(state, trainer.hypers)
    assert state.dual.lam.shape == (0,) and np.isfinite(metrics["ppo/loss"])


def test_unknown_quantity_is_refused(env):
    with pytest.raises(UserError, match=r"speed.*accepts v1"):
        make_train(env, LAYOUT, Problem(constraints=(Constraint("speed", 1.0, oce.cvar(0.3)),)))


def test_a_run_that_stays_non_finite_stands_still(trainer, start, step):
    """A loss that is NaN spoils no weight: updates are skipped, and after three bad rounds nothing moves."""
    hypers = trainer.hypers.replace(ppo=trainer.hypers.ppo.replace(value_coef=jnp.nan))
    state, seen = start, []
    for _ in range(BAD_ITERATIONS + 2):
        state, metrics = step(state, hypers)
        seen.append(int(state.env_steps))
        assert int(metrics["ppo/skipped"]) == LAYOUT.num_minibatches * LAYOUT.num_epochs
    assert_same(state.learner.params, start.learner.params)
    assert int(state.bad_streak) == BAD_ITERATIONS
    assert seen[BAD_ITERATIONS - 1] == seen[-1] == BAD_ITERATIONS * LAYOUT.batch_size
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.dual.lam, state.dual.t)))


def test_a_single_bad_round_is_forgotten(trainer, start, step):
    hypers = trainer.hypers.replace(ppo=trainer.hypers.ppo.replace(value_coef=jnp.nan))
    state, _ = step(start, hypers)
    assert int(state.bad_streak) == 1
    state, _ = step(state, trainer.hypers)
    assert int(state.bad_streak) == 0 and int(state.learner.skipped) > 0
