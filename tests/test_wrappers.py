"""Wrappers around a toy: a counter that goes up by the action and terminates above five."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax.envs.base import State
from riskppo_jax.envs.wrappers import (
    ActionNoise,
    AutoReset,
    FiniteGuard,
    LidarPowers,
    TimeLimit,
    Vectorise,
    staggered,
    when_any,
    with_noise,
)
from riskppo_jax.errors import UserError


class Counter:
    """Starts at a random number below one; the observation is the count."""

    observation_size = action_size = 1
    num_actions = None
    constraint_names = ("height",)
    constraint_range = {"height": (0.0, 10.0)}  # noqa: RUF012
    thresholds = {"height": 3.0}  # noqa: RUF012

    def reset(self, key):
        key, key_start = jax.random.split(key)
        return self._state(jax.random.uniform(key_start), key, jnp.zeros(()))

    def step(self, state, action):
        return self._state(state.sim + action[0], state.key, action[0])

    def _state(self, count, key, reward):
        return State(
            sim=count, obs=count[None], reward=reward, cost=(count > 3).astype(float),
            constraints={"height": count}, terminated=count > 5, truncated=jnp.zeros((), bool),
            final_obs=count[None], info={}, key=key,
        )  # fmt: skip


def run(env, actions, key=0):
    """States after each action, stacked over time."""
    step = jax.jit(env.step)
    state, states = jax.jit(env.reset)(jax.random.key(key)), []
    for action in actions:
        state = step(state, jnp.array([action]))
        states.append(state)
    return states


def test_time_limit_truncates_and_does_not_terminate():
    states = run(TimeLimit(Counter(), 3), [0.0] * 4)
    assert [bool(s.truncated) for s in states] == [False, False, True, True]
    assert not any(bool(s.terminated) for s in states)
    assert [int(s.info["steps"]) for s in states] == [1, 2, 3, 4]


def test_termination_and_truncation_may_coincide():
    last = run(TimeLimit(Counter(), 2), [3.0, 3.0])[-1]
    assert bool(last.terminated) and bool(last.truncated)


def test_auto_reset_keeps_the_last_observation_apart():
    env = AutoReset(TimeLimit(Counter(), 10))
    before, after = run(env, [4.0, 4.0])
    assert not bool(before.terminated) and bool(after.terminated)
    assert float(after.final_obs[0]) > 8.0 and float(after.reward) == 4.0 and float(after.cost) == 1.0
    assert 0.0 <= float(after.obs[0]) < 1.0 and int(after.info["steps"]) == 0
    np.testing.assert_array_equal(after.obs[0], after.sim)


def test_flags_of_an_episode_do_not_reach_the_next():
    """A task that never touches them, as one may write it: `state.replace(...)` without the flags."""

    class Careless(Counter):
        def step(self, state, action):
            return state.replace(sim=state.sim, reward=action[0])

    states = run(AutoReset(TimeLimit(Careless(), 3)), [0.0] * 7)
    assert [bool(s.truncated) for s in states] == [False, False, True, False, False, True, False]


def test_auto_reset_draws_a_fresh_start_every_time():
    starts = [float(s.obs[0]) for s in run(AutoReset(Counter()), [9.0] * 6)]
    assert len(set(starts)) == 6


def test_auto_reset_of_a_batch_resets_only_what_ended():
    env = Vectorise(AutoReset(Counter()), 4)
    state = env.reset(jax.random.key(0))
    new = jax.jit(env.step)(state, jnp.array([[0.0], [9.0], [0.0], [9.0]]))
    assert new.terminated.tolist() == [False, True, False, True]
    np.testing.assert_array_equal(new.obs[::2], state.obs[::2])
    assert (new.obs[1::2] != state.obs[1::2]).all() and new.obs[1, 0] != new.obs[3, 0]


def test_noise_is_gaussian_and_reaches_the_reward():
    env = Vectorise(ActionNoise(Counter(), 0.5), 4000)
    state = jax.jit(env.step)(env.reset(jax.random.key(1)), jnp.full((4000, 1), 2.0))
    np.testing.assert_allclose(state.reward.mean(), 2.0, atol=0.04)
    np.testing.assert_allclose(state.reward.std(), 0.5, atol=0.03)


def test_noise_can_be_swept():
    env = AutoReset(ActionNoise(Counter()))
    state = env.reset(jax.random.key(0))

    def reward(std):
        return jax.lax.scan(
            lambda s, _: ((new := env.step(s, jnp.ones(1))), new.reward), with_noise(state, std), None, 50
        )[1].std()

    spread = jax.jit(jax.vmap(reward))(jnp.array([0.0, 0.1, 1.0]))
    assert spread[0] == 0 and 0.05 < spread[1] < 0.2 and 0.5 < spread[2] < 2.0


def test_with_noise_needs_a_noisy_environment():
    with pytest.raises(UserError, match="noise"):
        with_noise(Counter().reset(jax.random.key(0)), 0.1)


def test_guard_ends_counts_and_silences_a_lost_world():
    env = AutoReset(TimeLimit(FiniteGuard(Counter()), 10))
    state = run(env, [1.0, jnp.nan])[-1]
    assert bool(state.terminated) and not bool(state.truncated)
    assert float(state.reward) == 0 and float(state.cost) == 0 and float(state.constraints["height"]) == 0
    assert np.isfinite(state.final_obs).all() and np.isfinite(state.obs).all()
    assert int(state.info["diverged"]) == 1
    assert int(run(env, [jnp.nan, 1.0, jnp.inf])[-1].info["diverged"]) == 2


def test_vectorise_leads_with_the_world():
    env = Vectorise(Counter(), 3)
    state = env.reset(jax.random.key(0))
    assert state.obs.shape == (3, 1) and len(set(state.obs[:, 0].tolist())) == 3
    assert env.step(state, jnp.ones((3, 1))).reward.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 3)])
def test_when_any_selects_under_any_number_of_axes(shape):
    mask = jax.random.bernoulli(jax.random.key(0), 0.5, shape)
    old, x = jnp.zeros(shape), jnp.arange(float(np.prod(shape, dtype=int))).reshape(shape)

    def one(mask, old, x):
        return when_any(mask, lambda x: x + 1.0, old, x)

    function = one
    for _ in shape:
        function = jax.vmap(function)
    np.testing.assert_array_equal(jax.jit(function)(mask, old, x), jnp.where(mask, x + 1.0, old))


def test_when_any_does_not_compute_when_nothing_asks():
    calls = []

    def record(x):
        calls.append(1)
        return np.asarray(x)

    def fresh(x):
        return jax.pure_callback(record, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="expand_dims")

    def one(mask, x):
        return when_any(mask, fresh, x, x)

    function = jax.jit(jax.vmap(jax.vmap(one)))
    x = jnp.ones((2, 3))
    jax.block_until_ready(function(jnp.zeros((2, 3), bool), x))
    assert calls == []
    jax.block_until_ready(function(jnp.zeros((2, 3), bool).at[1, 1].set(True), x))
    assert calls == [1]


def test_staggered_worlds_end_one_after_the_other():
    env = AutoReset(TimeLimit(Counter(), 8))
    states = staggered(jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4)), 8)
    ends = []
    for _ in range(16):
        states = jax.vmap(env.step)(states, jnp.zeros((4, 1)))
        ends.append(np.asarray(states.truncated))
    at = [np.flatnonzero(column).tolist() for column in np.array(ends).T]
    assert at == [[7, 15], [5, 13], [3, 11], [1, 9]]  # whole episodes after the first


class Lidar(Counter):
    """Shows the height once more as a lidar would, a tenth of it."""

    observation_size = 2
    lidar_columns = (1,)

    def _state(self, count, key, reward):
        obs = jnp.stack([count, count / 10])
        return super()._state(count, key, reward).replace(obs=obs, final_obs=obs)


def test_powers_of_lidars_stand_behind_the_observation():
    plain = AutoReset(FiniteGuard(TimeLimit(Lidar(), 3)))
    env = LidarPowers(plain, (2, 5))
    assert env.observation_size == 4 and env.constraint_names == ("height",)
    actions = [1.0, 2.0, 0.5, 1.0, jnp.nan, 1.0]  # the third ends an episode by the clock, the fifth is lost
    for own, other in zip(run(env, actions), run(plain, actions), strict=True):
        for name in ("obs", "final_obs"):
            raw, seen = getattr(other, name), getattr(own, name)
            np.testing.assert_array_equal(seen[:2], raw)
            np.testing.assert_allclose(seen[2:], [raw[1] ** 2, raw[1] ** 5], rtol=1e-5)
        assert own.reward == other.reward and own.truncated == other.truncated


def test_powers_need_a_lidar():
    with pytest.raises(UserError, match="no lidar"):
        LidarPowers(Counter(), (2,))
