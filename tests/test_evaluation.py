"""Evaluation: whole episodes, fixed keys, risks with intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import riskppo_jax as rp
from riskppo_jax.config import Layout
from riskppo_jax.envs.base import State
from riskppo_jax.evaluation import (
    EVALUATION_SEED,
    Evaluation,
    as_episodes,
    evaluate,
    metrics,
    objective_report,
    risk_report,
)
from riskppo_jax.export import policy_arrays
from riskppo_jax.nets import make_networks
from riskppo_jax.normalize import init_moments, normalize, update_moments
from riskppo_jax.risk import oce
from riskppo_jax.risk.lagrangian import Constraint, Problem


class Countdown:
    """World `k` terminates after `1 + k % 3` steps, or never; reward 1, quantity = step; then it starts again."""

    observation_size, action_size, num_actions = 2, 1, None
    constraint_names, constraint_range, thresholds = ("v",), {"v": (0.0, 10.0)}, {"v": 1.0}
    limit = 5

    def reset(self, key):
        zero, false = jnp.zeros(()), jnp.zeros((), bool)
        last = jax.random.randint(key, (), 1, 4)
        return State(jnp.stack([jnp.zeros((), jnp.int32), last]), jnp.ones(2), zero, zero, {"v": zero}, false, false,
                     jnp.ones(2), {}, key)  # fmt: skip

    def step(self, state, action):
        step, last = state.sim[0] + 1, state.sim[1]
        done = step >= last
        return state.replace(
            sim=jnp.stack([jnp.where(done, 0, step), last]), reward=1.0 + 0.0 * action[0], cost=(step > 1) * 1.0,
            constraints={"v": step * 1.0}, terminated=done & (last < 3), truncated=done & (last == 3),
        )  # fmt: skip


@pytest.fixture(scope="module")
def policy():
    networks = make_networks(2, 1, None, Layout(hidden_sizes=(3,)))
    return networks, networks.init(jax.random.key(0)), init_moments((2,))


def test_only_the_first_episode_of_each_world_counts(policy):
    found = evaluate(Countdown(), *policy, episodes=30)
    lasts = np.asarray(jax.vmap(Countdown().reset)(_keys(30)).sim[:, 1])
    np.testing.assert_array_equal(found.length, lasts)
    np.testing.assert_array_equal(found.reward, lasts)
    np.testing.assert_array_equal(found.cost, lasts - 1)
    np.testing.assert_array_equal(found.terminated, lasts < 3)
    np.testing.assert_array_equal(found.samples("v"), np.concatenate([np.arange(1, n + 1) for n in lasts]))
    assert found.summary()["cost_rate"] == pytest.approx((lasts - 1).sum() / lasts.sum())
    assert found.visited.shape == (5, 30)


def _keys(count):
    return jax.random.split(jax.random.split(jax.random.key(EVALUATION_SEED))[0], count)


def test_keys_are_fixed_unless_given(policy):
    first, again = (evaluate(Countdown(), *policy, episodes=10) for _ in range(2))
    other = evaluate(Countdown(), *policy, episodes=10, key=jax.random.key(1))
    assert (first.length == again.length).all() and (first.length != other.length).any()


def test_public_name_is_the_function():
    assert rp.evaluate is evaluate and rp.make_train and rp.save and rp.restore


def test_a_limit_cuts_episodes(policy):
    found = evaluate(Countdown(), *policy, episodes=10, limit=2)
    assert found.length.max() == 2


def episodes(values):
    """One episode per row."""
    v = np.asarray(values, np.float32).T
    length = np.full(v.shape[1], float(v.shape[0]))
    zeros = np.zeros(v.shape[1])
    return Evaluation(zeros, zeros, length, zeros > 0, {"v": v}, np.ones(v.shape, bool), -v)


def test_risk_of_known_samples():
    found = episodes(np.arange(1.0, 101.0).reshape(10, 10))
    report = risk_report(Constraint("v", 95.0, oce.cvar(0.1)), found, 200)
    assert report["risk_value"] == pytest.approx(95.5) and report["quantile"] == pytest.approx(90.0, abs=1.0)
    assert report["satisfied"]  # within one per cent of the limit
    assert not risk_report(Constraint("v", 94.0, oce.cvar(0.1)), found, 5)["satisfied"]
    low, high = report["risk_value_ci"]
    assert low <= 95.5 <= high + 1e-4 and low < 90  # the tail sits in one episode, which a resample may miss


def test_the_value_of_an_objective_is_a_risk_of_the_reward():
    """Here the reward is minus the quantity: one is the other's mirror."""
    found = episodes(np.arange(1.0, 101.0).reshape(10, 10))
    risk = risk_report(Constraint("v", 95.0, oce.cvar(0.1)), found, 200)
    worth = objective_report(oce.cvar(0.1), found, 200)
    assert worth["value"] == -risk["risk_value"] and worth["best_t"] == -risk["quantile"]
    assert worth["value_ci"] == [-x for x in reversed(risk["risk_value_ci"])]
    averse, neutral = (metrics(found, Problem(u)) for u in (oce.cvar(0.1), oce.mean()))
    assert averse["eval/objective"] == averse["eval/objective_whole"] == worth["value"]
    assert not {"eval/objective", "eval/objective_whole"} & neutral.keys()
    np.testing.assert_array_equal(found.rewards(), -found.samples("v"))


def test_whoever_ends_early_earns_nothing_in_what_is_left():
    """Steps of one episode of ten are worth 1 each; the other ends after four that are worth 2."""
    reward = np.stack([np.ones(10), np.full(10, 2.0)], 1)
    visited = np.stack([np.ones(10, bool), np.arange(10) < 4], 1)
    found = episodes(-reward.T)._replace(visited=visited, step_reward=reward)
    point = metrics(found, Problem(oce.cvar(0.5)))
    assert point["eval/objective"] == pytest.approx(1.0)  # the worst seven of fourteen
    assert point["eval/objective_whole"] == pytest.approx(0.4)  # the worst ten of twenty: six nothings and four ones


def test_risk_of_whole_episodes_is_that_of_their_sums():
    """Two episodes of three steps at most; the second ends after one."""
    v, visited = np.array([[1.0, 4.0], [2.0, 9.0], [3.0, 9.0]]), np.array([[1, 1], [1, 0], [1, 0]], bool)
    found = Evaluation(np.zeros(2), np.zeros(2), np.array([3, 1]), np.zeros(2, bool), {"v": v}, visited, 2 * v)
    whole = as_episodes(found, limit=3)
    np.testing.assert_allclose(whole.step_reward, [[4.0, 8.0 / 3.0]])
    np.testing.assert_allclose(whole.quantities["v"], [[2.0, 4.0 / 3.0]])
    report = risk_report(Constraint("v", 1.9, oce.cvar(0.5)), whole, resamples=10)
    assert report["risk_value"] == 2.0 and not report["satisfied"]


def test_steps_of_a_lost_simulation_show_no_quantity(policy):
    class Lossy(Countdown):
        def reset(self, key):
            return super().reset(key).replace(info={"diverged": jnp.zeros((), jnp.int32)})

        def step(self, state, action):
            new = super().step(state, action)
            return new.replace(info={"diverged": state.info["diverged"] + (new.constraints["v"] == 2.0)})

    found = evaluate(Lossy(), *policy, episodes=30)
    assert set(found.samples("v")) == {1.0, 3.0} and found.length.max() == 3


def test_interval_is_over_episodes_not_steps():
    """Episodes that are all alike leave no doubt, however much their steps vary."""
    found = episodes(np.tile(np.arange(20.0), (8, 1)))
    low, high = risk_report(Constraint("v", 1.0, oce.mean()), found, 50)["risk_value_ci"]
    assert low == pytest.approx(9.5) and high == pytest.approx(9.5)


def test_exported_arrays_run_in_numpy(policy):
    networks, params, _ = policy
    obs = np.asarray(jax.random.normal(jax.random.key(5), (7, 2))) * [1.0, 50.0] + [3.0, 0.0]
    moments = update_moments(init_moments((2,)), jnp.asarray(obs))
    params = jax.tree.map(lambda x: x + 0.3, params)
    a = policy_arrays(params, moments, Layout(hidden_sizes=(3,)), 1.5)

    x = np.clip((obs - a["obs_mean"]) / np.sqrt(a["obs_var"]), -a["obs_clip"], a["obs_clip"])
    depth = sum(name[0] == "w" for name in a)
    for i in range(depth):
        x = x @ a[f"w{i}"] + a[f"b{i}"]
        if i < depth - 1:
            x = {"tanh": np.tanh}[str(a["activation"])](x)

    law = networks.policy(params, normalize(moments, jnp.asarray(obs), 1.5))
    np.testing.assert_allclose(x, law.mode(), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(np.exp(a["log_std"]), law.stddev()[0], rtol=1e-6)
