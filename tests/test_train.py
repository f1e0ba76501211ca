"""The trainer as a pair of functions: however it is driven, the numbers are the same."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
import tabular_cli

from riskppo_jax import sgda, units
from riskppo_jax.build import describe
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.episodes import init_episodes, running_sums
from riskppo_jax.errors import UserError
from riskppo_jax.risk import oce
from riskppo_jax.risk.lagrangian import Constraint, Problem, priced_reward
from riskppo_jax.scheme import Scheme
from riskppo_jax.solvers.ppo import Transition
from riskppo_jax.train import BAD_ITERATIONS, make_train, scan_steps
from riskppo_jax.traps import find_traps
from riskppo_jax.view import of_episodes, priced_episodes

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


@pytest.mark.parametrize(("tail", "count"), [(0.0, 1), (0.5, 3), (1.0, 6)])
def test_the_deployed_policy_is_the_mean_of_the_tail(trainer, start, step, tail, count):
    hypers = trainer.hypers.replace(
        ppo=trainer.hypers.ppo.replace(tail=tail), total_steps=float(6 * trainer.steps_per_iteration)
    )
    state, actors = start, []
    for _ in range(6):
        state, _ = step(state, hypers)
        actors.append(state.learner.params.actor)
        if len(actors) <= 6 - count:
            assert_same(state.averaged, actors[-1])
    mean = jax.tree.map(lambda *leaves: sum(leaves) / count, *actors[-count:])
    params, moments = state.deployed
    assert_near(params.actor, mean, 1e-6)
    assert_same((params.critic, moments), (state.learner.params.critic, state.moments))


def test_an_averse_objective_begins_as_the_mean_and_ends_as_itself(env):
    """The policy alone knows: t of the objective follows its batches from the start."""
    constraints = chain().constraints
    trainers = [make_train(env, LAYOUT, Problem(u, constraints)) for u in (oce.cvar(0.3), oce.mean())]
    averse, mean = (
        (jax.jit(each.step), each.hypers.replace(total_steps=float(8 * each.steps_per_iteration))) for each in trainers
    )
    state = jax.jit(trainers[0].init)(jax.random.key(0), averse[1])

    def actor(run, state, **ppo):
        step, hypers = run
        return step(state, hypers.replace(ppo=hypers.ppo.replace(**ppo)))[0].learner.params.actor

    def differ(a, b):
        return any(bool(jnp.any(x != y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))

    early = state.replace(env_steps=jnp.asarray(2 * LAYOUT.batch_size, jnp.uint32))
    late = state.replace(env_steps=jnp.asarray(6 * LAYOUT.batch_size, jnp.uint32))
    assert_near(actor(averse, early, averse_after=0.6), actor(mean, early), 1e-6)
    assert_same(actor(averse, late, averse_after=0.6), actor(averse, late, averse_after=0.0))
    assert differ(actor(averse, late, averse_after=0.6), actor(mean, late))
    assert differ(actor(averse, early, averse_after=0.0), actor(mean, early))


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_objectives_t_finds_its_quantile_whatever_rewards_are_worth(scale):
    env = probes.Probe(first=jax.random.uniform, reward=lambda s, step, action: scale * (1.0 + s))
    trainer = make_train(env, replace(LAYOUT, num_envs=32), Problem(oce.cvar(0.3)))
    state, metrics = jax.jit(scan_steps(trainer, 200))(trainer.init(jax.random.key(0), trainer.hypers), trainer.hypers)
    assert state.dual.t[0] == pytest.approx(1.3 * scale, rel=0.05)
    np.testing.assert_allclose(metrics["objective/t"][100:].mean(), 1.3 * scale, rtol=0.02)
    np.testing.assert_allclose(metrics["objective/t_batch"][100:].mean(), 1.3 * scale, rtol=0.02)
    np.testing.assert_allclose(metrics["objective/value"][100:].mean(), 1.15 * scale, rtol=0.02)


def test_noise_remembers_until_a_share_of_training():
    layout = replace(LAYOUT, noise_memory=0.9)
    trainer = make_train(probes.action_by_observation(), layout, Problem(constraints=()))
    hypers = trainer.hypers.replace(total_steps=float(8 * trainer.steps_per_iteration))
    start, step = jax.jit(trainer.init)(jax.random.key(0), hypers), jax.jit(trainer.step)

    def after(iterations, until):
        state = start.replace(env_steps=jnp.asarray(iterations * trainer.steps_per_iteration, jnp.uint32))
        moved, _ = step(state, hypers.replace(ppo=hypers.ppo.replace(memory_until=until)))
        return moved.learner.params

    assert_same(after(3, 0.5), after(3, 1.0))
    assert_same(after(4, 0.5), after(4, 0.0))
    with pytest.raises(AssertionError):
        assert_same(after(4, 0.5), after(4, 1.0))


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


def test_mean_actions_are_judged_in_worlds_of_their_own(env):
    """The worlds that training goes on in never see them, nor theirs a sampled one."""

    def after_one(scheme):
        trainer = make_train(env, LAYOUT, chain(), scheme=scheme)
        state = jax.jit(trainer.init)(jax.random.key(0), trainer.hypers)
        return state, jax.jit(trainer.step)(state, trainer.hypers)[0]

    before, state = after_one(Scheme(dual_rollout="fresh", dual_policy="mean"))
    _, alone = after_one(Scheme())
    assert_same((state.envs, state.episodes), (alone.envs, alone.episodes))
    moved = [plain(x).tolist() for x in (before.mean_worlds.envs.key, state.mean_worlds.envs.key, state.envs.key)]
    assert moved[0] != moved[1] != moved[2]
    assert alone.mean_worlds is None


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
    hypers = trainer.hypers.replace(ppo=trainer.hypers.ppo.replace(value_coef=jnp.nan, entropy_coef=jnp.nan))
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


def test_more_policy_updates_take_more_batches(env):
    trainer = make_train(env, LAYOUT, chain(), scheme=Scheme(policy_updates=3))
    assert trainer.steps_per_iteration == 3 * LAYOUT.batch_size
    state = trainer.init(jax.random.key(0), trainer.hypers)
    after, metrics = jax.jit(trainer.step)(state, trainer.hypers)
    assert after.env_steps == 3 * LAYOUT.batch_size
    assert after.dual.count == 1
    per_update = LAYOUT.num_epochs * LAYOUT.num_minibatches
    assert after.learner.optimizer.actor.count == 3 * per_update
    assert np.isfinite(metrics["ppo/loss"])


def test_observations_are_left_alone_where_asked(env):
    layout = Layout(
        num_envs=2, horizon=4, num_minibatches=2, num_epochs=1, hidden_sizes=(4,), normalize_observations=False
    )
    trainer = make_train(env, layout, chain())
    state = trainer.init(jax.random.key(0), trainer.hypers)
    after, _ = jax.jit(trainer.step)(state, trainer.hypers)
    assert_same(after.moments, state.moments)


class TestEpisodeRisk:
    """`risk_of: episode`: sums over the time limit, seen where an episode ends."""

    def batch(self, seed=0, steps=7, envs=3):
        rng = np.random.default_rng(seed)
        done = rng.random((steps, envs)) < 0.3
        fields = {name: jnp.zeros((steps, envs)) for name in Transition._fields}
        fields |= {
            "reward": jnp.asarray(rng.normal(size=(steps, envs)), jnp.float32),
            "constraints": {"v1": jnp.asarray(rng.random((steps, envs)), jnp.float32)},
            "terminated": jnp.asarray(done),
            "truncated": jnp.zeros((steps, envs), bool),
            "valid": jnp.ones((steps, envs), bool),
        }
        return Transition(**fields), done

    def test_sums_by_hand(self):
        batch, done = self.batch()
        episodes, sums = running_sums(init_episodes(3, ("v1",)), batch)
        expected = np.zeros((7, 3))
        for env_index in range(3):
            total = 0.0
            for k in range(7):
                total += float(batch.constraints["v1"][k, env_index])
                expected[k, env_index] = total
                if done[k, env_index]:
                    total = 0.0
            assert episodes.quantities["v1"][env_index] == pytest.approx(total, abs=1e-6)
        np.testing.assert_allclose(sums.quantities["v1"], expected, rtol=1e-5)
        view = of_episodes(batch, sums, 10)
        np.testing.assert_array_equal(np.asarray(view.weights, bool), done)
        np.testing.assert_allclose(view.quantities["v1"], expected / 10, rtol=1e-5)

    def test_a_first_episode_cut_short_does_not_count(self):
        batch, _ = self.batch()
        ends = np.zeros((7, 3), bool)
        ends[2], ends[6, 1] = True, True  # clocks that started late, and a whole episode of four steps
        cut = batch._replace(terminated=jnp.zeros((7, 3), bool), truncated=jnp.asarray(ends))
        _, sums = running_sums(init_episodes(3, ("v1",)), cut)
        assert np.argwhere(of_episodes(cut, sums, 4).weights).tolist() == [[6, 1]]

    def test_step_prices_add_up_to_the_episode_s(self):
        batch, done = self.batch(1)
        problem = chain(0.3, 0.2)
        dual = sgda.init(sgda.sets(problem, (-1.0, 1.0), {"v1": (0.0, 1.0)}, 5.0), 1.7, (0.0, -0.1))
        _, sums = running_sums(init_episodes(3, ("v1",)), batch)
        priced = np.asarray(priced_episodes(problem, dual, batch, sums, 10))
        whole = 10 * priced_reward(problem, dual.lam, dual.t, sums.reward / 10, {"v1": sums.quantities["v1"] / 10})
        for env_index in range(3):
            total = 0.0
            for k in range(7):
                total += priced[k, env_index]
                if done[k, env_index]:
                    assert total == pytest.approx(float(whole[k, env_index]), abs=1e-4)
                    total = 0.0

    def test_prices_rest_while_no_episode_ends(self, env):
        class Limited(type(env)):
            limit = 1000

        limited = object.__new__(Limited)
        limited.__dict__ |= env.__dict__ | {"mdp": env.mdp.replace(gamma=1.0)}  # never stops by itself
        trainer = make_train(limited, LAYOUT, chain(threshold=0.1), scheme=Scheme(risk_of="episode"))
        state = trainer.init(jax.random.key(0), trainer.hypers)
        after, metrics = jax.jit(trainer.step)(state, trainer.hypers)
        assert metrics["train/episodes"] == 0
        assert_same(after.dual, state.dual)
        assert np.isnan(metrics["constraint0/risk"])

    def test_needs_a_time_limit(self, env):
        with pytest.raises(UserError, match=r"scheme\.risk_of=episode"):
            make_train(env, LAYOUT, chain(), scheme=Scheme(risk_of="episode"))


def test_prices_step_and_are_bounded_in_the_environment_s_units(env):
    class Cheap(type(env)):
        price_units = {"v1": 0.1}  # noqa: RUF012

    cheap = object.__new__(Cheap)
    cheap.__dict__ |= env.__dict__
    moves, bounds = [], []
    for each in (env, cheap):
        trainer = make_train(each, LAYOUT, chain())
        hypers = trainer.hypers.replace(lam_init=1.0)
        after, _ = jax.jit(trainer.step)(trainer.init(jax.random.key(0), hypers), hypers)
        moves.append(float(after.dual.lam[0]) - 1.0)
        bounds.append(float(after.dual.lam_max[0]))
    assert moves[0] != 0 and moves[1] == pytest.approx(0.1 * moves[0], rel=1e-3)
    assert bounds == pytest.approx([20.0, 2.0])


def test_price_steps_and_bounds_shrink_where_the_utility_is_steep(env):
    moves, bounds = {}, []
    for beta in (0.3, 0.03, 1.0):
        problem = Problem(constraints=(Constraint("v1", 0.2, oce.cvar(beta)),))
        trainer = make_train(env, LAYOUT, problem)
        hypers = trainer.hypers.replace(lam_init=1.0)
        hypers = hypers.replace(dual=hypers.dual.replace(slack_clip=1e-3))  # the same clipped slack for all
        after, _ = jax.jit(trainer.step)(trainer.init(jax.random.key(0), hypers), hypers)
        bounds.append(float(after.dual.lam_max[0]))
        moves[beta] = abs(float(after.dual.lam[0]) - 1.0)
    assert moves[0.03] == pytest.approx(0.1 * moves[0.3], rel=1e-2)
    assert moves[1.0] == pytest.approx(moves[0.3], rel=1e-2)  # never larger than what the steps were chosen for
    assert bounds == pytest.approx([20.0, 2.0, 20.0])


@pytest.mark.parametrize("limit, size", [(0.4, 0.4), (-0.4, 0.4), (0.0, 3.0)])
def test_eased_limits_come_down_in_units_of_the_threshold(env, limit, size):
    env = SimpleNamespace(constraint_range={"v1": (-1.0, 2.0)}, constraint_names=("v1",))
    widths = [
        float(units.ease(chain(threshold=limit), env, 8.0, left).constraints[0].threshold) - limit
        for left in (1.0, 0.5 ** (2 / 3), 0.0)
    ]
    assert widths == pytest.approx([8 * size, 2 * size, 0.0], abs=1e-6)  # 9 = 3 * 3: half of the way is a factor of 3


def test_a_price_looks_at_the_eased_limit_and_the_log_at_both(env):
    """Risk within the eased limit costs nothing, whatever the limit itself says; T is as wide as the limit is."""
    problem = Problem(constraints=(Constraint("v1", 0.05, oce.cvar(1.0)),))
    trainer = make_train(env, LAYOUT, problem)
    hypers = trainer.hypers.replace(lam_init=1.0, total_steps=12 * trainer.steps_per_iteration)
    for ease in (0.0, 1000.0):
        own = hypers.replace(dual=hypers.dual.replace(ease=ease, ease_until=0.5))
        _, metrics = jax.jit(scan_steps(trainer, 12))(trainer.init(jax.random.key(0), own), own)
        limit, risk, slack, lam = (np.asarray(metrics[f"constraint0/{x}"]) for x in ("limit", "risk", "slack", "lam"))
        assert np.asarray(metrics["constraint0/threshold"]) == pytest.approx(0.05)
        left = np.clip(1.0 - np.arange(12) / 6, 0.0, 1.0)
        assert limit == pytest.approx(0.05 * (1.0 + ease) ** left**1.5, rel=1e-4)
        assert slack == pytest.approx(0.05 - risk, abs=1e-4)
        rises = np.diff(lam) > 0
        assert np.array_equal(rises, risk[1:] > limit[1:]) and rises.any()  # with the eased limit later
        assert rises[0] == (ease == 0.0)


def test_t_may_go_as_low_as_the_eased_limit_and_at_its_pace(env):
    trainer = make_train(env, LAYOUT, chain(threshold=0.05))
    own = trainer.hypers.replace(t_init=-10.0)
    for ease, lowest in ((0.0, -0.05), (3.0, -0.2)):
        hypers = own.replace(dual=own.dual.replace(ease=ease))
        state = trainer.init(jax.random.key(0), hypers)
        assert float(state.dual.t[1]) == pytest.approx(lowest)
        sets = units.dual_sets(
            hypers.problem, env, 20.0, sgda.Rule(), Scheme(), units.ease(hypers.problem, env, ease, 1.0)
        )
        assert float(sets.t_unit[1]) == pytest.approx(-lowest) and float(sets.slack_unit[0]) == pytest.approx(0.05)


@pytest.mark.parametrize("keep", [True, False])
def test_values_do_not_run_away_with_a_long_horizon(keep):
    """With a discount of 0.9999 no value exceeds 10,000 rewards, however the moments of targets move meanwhile."""
    env = probes.Probe(first=jax.random.normal, reward=lambda s, step, action: s, length=20, clock=True)
    layout = Layout(num_envs=8, horizon=32, num_minibatches=4, num_epochs=4, hidden_sizes=(16,), keep_values=keep)
    trainer = make_train(env, layout, Problem())
    hypers = trainer.hypers.replace(ppo=PPOHypers(gamma=0.9999, gae_lambda=0.98, lr=1e-3), total_steps=1e9)
    state, metrics = jax.jit(scan_steps(trainer, 200))(jax.jit(trainer.init)(jax.random.key(0), hypers), hypers)
    said = find_traps([{"ppo/target_spread": float(x)} for x in metrics["ppo/target_spread"]], [])
    if not keep:
        assert "ran away" in said[0] and "layout.keep_values=true" in said[0]
        return
    assert not said
    assert jnp.sqrt(state.scale.targets.var) < 1e4  # reward has a deviation of 1
    assert metrics["ppo/explained_variance"][-1] > 0.9


def test_the_scale_of_evar_starts_at_the_size_of_its_quantity(env):
    """Near zero its slopes are explosive, and t would be thrown to the end of its range."""
    trainer = make_train(env, LAYOUT, Problem(constraints=(Constraint("v1", 0.5, oce.evar(0.3)),)))
    state = trainer.init(jax.random.key(0), trainer.hypers)
    np.testing.assert_allclose(state.dual.t[1][1], 0.5)


def test_two_constraints_on_one_quantity_are_both_described(env):
    pair = (Constraint("v1", 0.5, oce.cvar(0.3)), Constraint("v1", 0.2, oce.mean()))
    found = describe(make_train(env, LAYOUT, Problem(constraints=pair)).hypers)
    assert found["risk.v1"]["name"] == "cvar" and found["risk.v1_2"]["name"] == "mean"
    assert (found["threshold.v1"], found["threshold.v1_2"]) == (0.5, 0.2)
