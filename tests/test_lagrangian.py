import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax.errors import UserError
from riskppo_jax.risk import lagrangian, oce
from riskppo_jax.risk.lagrangian import Constraint, Problem

LAM = jnp.array([0.7, 1.3, 0.2])


@pytest.fixture
def batch():
    keys = jax.random.split(jax.random.key(0), 3)
    reward = jax.random.normal(keys[0], (50, 4))
    quantities = {
        "speed": jnp.abs(jax.random.normal(keys[1], (50, 4))),
        "effort": jax.random.uniform(keys[2], (50, 4)),
    }
    return reward, quantities


def mixed_problem(objective=None):
    return Problem(
        objective or oce.entropic(0.5),
        (
            Constraint("speed", 1.2, oce.cvar(0.3)),
            Constraint("effort", 0.5, oce.mean()),
            Constraint("speed", 0.9, oce.spectral([0.5, 0.5], [0.1, 1.0])),
        ),
    )


T = (jnp.array(0.1), jnp.array(-0.8), jnp.array(0.0), jnp.array([-1.5, -0.3]))


def test_cvar_slack_is_the_formula(batch):
    reward, q = batch
    problem = Problem(constraints=(Constraint("speed", 1.2, oce.cvar(0.3)),))
    found = lagrangian.estimates(problem, (jnp.array(0.0), jnp.array(-0.8)), reward, q)
    v = np.asarray(q["speed"])
    np.testing.assert_allclose(found.slack[0], 1.2 - 0.8 - np.maximum(v - 0.8, 0).mean() / 0.3, rtol=1e-5)
    np.testing.assert_allclose(found.dt[1], 1 - (v > 0.8).mean() / 0.3, rtol=1e-5)
    np.testing.assert_allclose(found.objective, np.asarray(reward).mean(), rtol=1e-5)


def test_gradients_are_those_of_the_lagrangian(batch):
    """Against autodiff, with a smooth objective, a kinked constraint, a mean and a spectral one at once."""
    problem = mixed_problem()
    reward, q = batch

    def value(lam, t):
        return lagrangian.lagrangian(lagrangian.estimates(problem, t, reward, q), lam)

    by_hand = lagrangian.gradients(lagrangian.estimates(problem, T, reward, q), LAM)
    chex.assert_trees_all_close(by_hand, jax.grad(value, argnums=(0, 1))(LAM, T), rtol=1e-4, atol=1e-6)


def test_mean_of_the_priced_reward_with_its_constant_is_the_lagrangian(batch):
    problem = mixed_problem()
    priced = lagrangian.priced_reward(problem, LAM, T, *batch, constant=True)
    found = lagrangian.estimates(problem, T, *batch)
    np.testing.assert_allclose(priced.mean(), lagrangian.lagrangian(found, LAM), rtol=1e-5)


def test_the_constant_is_the_same_at_every_step(batch):
    problem = mixed_problem()
    difference = lagrangian.priced_reward(problem, LAM, T, *batch, constant=True) - lagrangian.priced_reward(
        problem, LAM, T, *batch
    )
    np.testing.assert_allclose(difference, difference[0, 0], rtol=1e-4)


def test_rest_is_worth_nothing_and_cvar_prices_the_excess():
    problem = Problem(constraints=(Constraint("v", 1.0, oce.cvar(0.25)),))
    v = jnp.array([0.0, 0.5, 2.0])
    t = (jnp.array(0.0), jnp.array(-1.0))
    priced = lagrangian.priced_reward(problem, jnp.array([0.5]), t, jnp.array([0.0, 3.0, 3.0]), {"v": v})
    np.testing.assert_allclose(priced, [0.0, 3.0, 3.0 - 0.5 / 0.25 * 1.0])


def test_beta_one_is_the_mean_whatever_t_is(batch):
    neutral, tail = (Problem(constraints=(Constraint("speed", 1.0, u),)) for u in (oce.mean(), oce.cvar(1.0)))
    t = (jnp.array(0.0), jnp.array(-0.4))
    lam = jnp.array([2.0])
    chex.assert_trees_all_close(
        lagrangian.estimates(neutral, t, *batch), lagrangian.estimates(tail, t, *batch), rtol=1e-6
    )
    np.testing.assert_allclose(
        lagrangian.priced_reward(neutral, lam, t, *batch), lagrangian.priced_reward(tail, lam, t, *batch), rtol=1e-6
    )
    assert lagrangian.estimates(tail, t, *batch).dt[1] == 0


def test_weights_select_steps(batch):
    problem = mixed_problem()
    reward, q = batch
    weights = jnp.zeros(reward.shape).at[:10].set(0.25)
    ours = lagrangian.estimates(problem, T, reward, q, weights)
    cut = lagrangian.estimates(problem, T, reward[:10], {k: v[:10] for k, v in q.items()})
    chex.assert_trees_all_close(ours, cut, rtol=1e-5)


def test_batch_t_star_is_where_the_slack_is_largest(batch):
    problem = Problem(constraints=(Constraint("speed", 1.2, oce.cvar(0.3)),))
    best = lagrangian.batch_t_star(problem, *batch)
    at_best = lagrangian.estimates(problem, best, *batch).slack[0]
    for shift in (-0.1, 0.1):
        moved = (best[0], best[1] + shift)
        assert lagrangian.estimates(problem, moved, *batch).slack[0] < at_best
    np.testing.assert_allclose(at_best, 1.2 + oce.cvar(0.3).value(-batch[1]["speed"]), rtol=1e-5)


def test_thresholds_and_betas_can_be_swept(batch):
    def slack(beta, c):
        problem = Problem(constraints=(Constraint("speed", c, oce.cvar(beta)),))
        return lagrangian.estimates(problem, (jnp.array(0.0), jnp.array(-1.0)), *batch).slack[0]

    betas, cs = jnp.array([0.1, 0.5]), jnp.array([1.0, 2.0])
    swept = jax.jit(jax.vmap(slack))(betas, cs)
    np.testing.assert_allclose(swept, [slack(0.1, 1.0), slack(0.5, 2.0)], rtol=1e-5)


def test_no_constraints_is_plain_reward(batch):
    reward, q = batch
    t = (jnp.array(0.0),)
    chex.assert_trees_all_equal(lagrangian.priced_reward(Problem(), jnp.zeros(0), t, reward, q), reward)
    assert lagrangian.estimates(Problem(), t, reward, q).slack.shape == (0,)


def test_a_share_of_the_objective_is_mixed_with_the_mean(batch):
    problem = mixed_problem()
    neutral = Problem(constraints=problem.constraints)
    whole, mean = (lagrangian.priced_reward(each, LAM, T, *batch) for each in (problem, neutral))
    for share in (0.0, 0.25, 1.0):
        mixed = lagrangian.priced_reward(problem, LAM, T, *batch, averse=share)
        np.testing.assert_allclose(mixed, (1 - share) * mean + share * whole, rtol=1e-4, atol=1e-4)
    chex.assert_trees_all_equal(lagrangian.priced_reward(neutral, LAM, T, *batch, averse=0.3), mean)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf")])
def test_a_threshold_is_a_finite_number(threshold):
    with pytest.raises(UserError, match="threshold of 'speed'"):
        Constraint("speed", threshold, oce.mean())


def test_an_unknown_quantity_names_those_there_are(batch):
    problem = Problem(constraints=(Constraint("height", 1.0, oce.mean()),))
    with pytest.raises(UserError, match="'height': accepts speed, effort"):
        lagrangian.estimates(problem, (jnp.array(0.0), jnp.array(0.0)), *batch)


@pytest.mark.parametrize("threshold", [np.float32("nan"), float("inf"), "0.3"])
def test_a_limit_is_a_finite_number(threshold):
    with pytest.raises(UserError, match="threshold of 'speed': accepts a finite number"):
        Constraint("speed", threshold, oce.cvar(0.3))


def test_a_constraint_needs_a_measure():
    with pytest.raises(UserError, match="constraint 'speed': accepts a risk measure"):
        Constraint("speed", 0.3, 0.3)
