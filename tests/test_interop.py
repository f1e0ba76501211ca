"""Brax wrappers around our tasks, and functional environments of others as ours."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import riskppo_jax as rp
from riskppo_jax.envs.base import Env


@struct.dataclass
class PointState:
    """What MuJoCo Playground's states look like."""

    data: jax.Array
    obs: Any
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


class Point:
    """A point that is pushed along a line and falls off beyond 2."""

    action_size = 1

    def reset(self, rng):
        x = jax.random.uniform(rng, (1,))
        metrics = {"speed": jnp.zeros(())}
        return PointState(x, {"state": x, "privileged": x}, 0.0, 0.0, metrics, {"rng": rng, "count": 0})

    def step(self, state, action):
        state.info["count"] += 1  # as many do: in place
        x = state.data + action
        done = (x[0] > 2).astype(float)
        obs, metrics = {"state": x, "privileged": x}, {"speed": jnp.abs(action[0])}
        return state.replace(data=x, obs=obs, reward=x[0], done=done, metrics=metrics)


def _wrapped(**options):
    constraints = lambda state: {"speed": state.metrics["speed"]}  # noqa: E731
    return rp.interop.from_functional(Point(), constraints, thresholds={"speed": 0.5}, **options)


def test_functional_environment_becomes_ours():
    env = _wrapped(time_limit=5)
    assert isinstance(env, Env)
    assert (env.observation_size, env.action_size, env.constraint_names) == (1, 1, ("speed",))
    step = jax.jit(env.step)
    state = jax.jit(env.reset)(jax.random.key(0))
    first = float(state.obs[0])
    after = step(state, jnp.array([0.25]))
    assert float(after.obs[0]) == pytest.approx(first + 0.25)
    assert float(after.constraints["speed"]) == 0.25 and float(after.cost) == 0.0
    assert float(step(state, jnp.array([0.75])).cost) == 1.0


def test_the_state_that_goes_in_is_not_written_to():
    env = _wrapped(time_limit=None, auto_reset=False)
    state = env.reset(jax.random.key(0))
    assert int(env.step(state, jnp.zeros(1)).sim.info["count"]) == 1
    assert int(state.sim.info["count"]) == 0


def test_the_two_ends_of_a_functional_episode_stay_apart():
    env = _wrapped(time_limit=4)
    step = jax.jit(env.step)
    state = jax.jit(env.reset)(jax.random.key(1))
    fallen = step(state, jnp.array([3.0]))
    assert bool(fallen.terminated) and not bool(fallen.truncated)
    assert float(fallen.final_obs[0]) > 2 and float(fallen.obs[0]) <= 1
    for _ in range(4):
        state = step(state, jnp.zeros(1))
    assert bool(state.truncated) and not bool(state.terminated)


def test_functional_environments_scan_and_vmap():
    env = _wrapped(noise=0.1)
    keys = jax.random.split(jax.random.key(0), 8)

    @jax.jit
    def run(states):
        return jax.lax.scan(lambda s, _: (jax.vmap(env.step)(s, jnp.ones((8, 1))), s.obs), states, None, 20)

    states, obs = run(jax.jit(jax.vmap(env.reset))(keys))
    assert obs.shape == (20, 8, 1) and np.isfinite(obs).all()
    assert (obs < 3.5).all() and np.unique(obs[:, 0]).size == 20
    assert states.sim.info["count"].shape == (8,)


def test_names_that_are_no_constraints_are_refused():
    with pytest.raises(ValueError, match=r"thresholds names power; constraints gives speed"):
        rp.interop.from_functional(Point(), lambda state: {"speed": state.metrics["speed"]}, thresholds={"power": 1.0})


def test_an_observation_that_is_no_vector_is_refused():
    with pytest.raises(ValueError, match=r"observe accepts"):
        rp.interop.from_functional(Point(), lambda state: {}, observe=lambda state: state.obs)


def test_without_brax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax.envs", None)
    with pytest.raises(ValueError, match=r"riskppo-jax\[brax\]"):
        rp.interop.to_brax(rp.make_env("SafetyHopperVelocity-v1", engine="native"))


@pytest.fixture(scope="module")
def brax_training():
    return pytest.importorskip("brax.envs.wrappers.training", reason="brax is not installed: pip install -e '.[brax]'")


def test_brax_wrappers_run_our_tasks(brax_training):
    task = rp.make_env("SafetyHopperVelocity-v1", engine="native", time_limit=12, noise=0.1)  # as long as Brax's
    env = rp.interop.to_brax(task)
    assert (env.observation_size, env.action_size, env.backend) == (11, 3, "native")
    wrapped = brax_training.EvalWrapper(brax_training.wrap(env, episode_length=12, action_repeat=1))

    @jax.jit
    def run(key):
        states = wrapped.reset(jax.random.split(key, 4))
        action = jnp.zeros((4, 3)).at[1:].set(-1.0)  # the first stays up
        return jax.lax.scan(lambda s, _: (wrapped.step(s, action), s), wrapped.step(states, action), None, 24)

    last, states = run(jax.random.PRNGKey(0))
    assert states.obs.shape == (24, 4, 11) and np.isfinite(states.obs).all()
    done, truncation = np.asarray(states.done, bool), np.asarray(states.info["truncation"], bool)
    assert (done & ~truncation).any()  # fell
    assert (done & truncation).any()  # ran out of time
    after = np.asarray(states.obs)[done]
    firsts = np.broadcast_to(np.asarray(states.info["first_obs"]), states.obs.shape)[done]
    np.testing.assert_array_equal(after, firsts)
    assert set(states.metrics) == {"cost", "effort", "velocity", "reward"}
    keys = np.asarray(states.info["key"])[:, 0]
    assert len(np.unique(keys, axis=0)) == 24  # noise goes on beyond Brax's resets
    assert last.info["eval_metrics"].episode_metrics["cost"].shape == (4,)


def test_brax_sees_the_same_steps_as_we_do(brax_training):
    task = rp.make_env("SafetyHopperVelocity-v1", engine="native", auto_reset=False)
    env = rp.interop.to_brax(task)
    ours, theirs = jax.jit(task.reset)(jax.random.key(3)), jax.jit(env.reset)(jax.random.PRNGKey(3))
    step, brax_step = jax.jit(task.step), jax.jit(env.step)
    for i in range(5):
        action = jnp.full(3, 0.1 * i)
        ours, theirs = step(ours, action), brax_step(theirs, action)
        np.testing.assert_array_equal(ours.obs, theirs.obs)
        assert float(ours.reward) == float(theirs.reward)
        assert float(ours.constraints["velocity"]) == float(theirs.metrics["velocity"])


def test_brax_environment_becomes_ours(brax_training):
    from brax import envs

    env = rp.interop.from_functional(envs.get_environment("fast"), lambda state: {"reward": state.reward}, time_limit=3)
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 2))
    step = jax.jit(jax.vmap(env.step))
    for i in range(6):
        states = step(states, jnp.zeros((2, env.action_size)))
        assert np.asarray(states.truncated).all() == (i % 3 == 2)


@pytest.mark.slow
def test_brax_robot_becomes_ours(brax_training):
    from brax import envs

    from riskppo_jax.engines.models import quiet

    with quiet():
        robot = envs.get_environment("halfcheetah", backend="mjx")
    speed = lambda state: {"velocity": state.metrics["x_velocity"]}  # noqa: E731
    env = rp.interop.from_functional(robot, speed, thresholds={"velocity": 3.2096}, time_limit=3)
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 2))
    step = jax.jit(jax.vmap(env.step))
    for _ in range(4):
        states = step(states, jnp.ones((2, env.action_size)))
    assert np.isfinite(states.obs).all() and (np.asarray(states.info["steps"]) == 1).all()
