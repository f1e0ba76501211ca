"""Advantages against a plain loop, and the borders of episodes by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from riskppo_jax.solvers.ppo.gae import gae

GAE = jax.jit(gae)


def plain_gae(reward, value, next_value, terminated, truncated, gamma, lam, valid):
    """Steps back one by one through each environment."""
    horizon, envs = reward.shape
    advantage = np.zeros((horizon, envs))
    for env in range(envs):
        later = 0.0
        for k in reversed(range(horizon)):
            if not valid[k, env]:
                later = 0.0
            elif terminated[k, env]:
                later = reward[k, env] - value[k, env]
            else:
                delta = reward[k, env] + gamma * next_value[k, env] - value[k, env]
                later = delta + (0.0 if truncated[k, env] else gamma * lam * later)
            advantage[k, env] = later
    return advantage, advantage + value


def random_rollout(seed, horizon=12, envs=3):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, horizon, envs)).astype(np.float32)
    terminated, truncated = rng.random((2, horizon, envs)) < 0.2
    return reward, value, next_value, terminated, truncated, rng.random((horizon, envs)) > 0.1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_agrees_with_a_plain_loop(seed, gamma, lam):
    *arrays, valid = random_rollout(seed)
    expected = plain_gae(*arrays, gamma, lam, valid)
    for got, want in zip(GAE(*arrays, gamma, lam, valid), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 11))
def test_nothing_leaks_over_a_border(seed, border):
    reward, value, next_value, terminated, truncated, _ = random_rollout(seed)
    truncated[border] = True
    before, _ = GAE(reward, value, next_value, terminated, truncated, 0.9, 0.8)
    reward[border + 1 :] += 100.0
    after, _ = GAE(reward, value, next_value, terminated, truncated, 0.9, 0.8)
    np.testing.assert_array_equal(before[: border + 1], after[: border + 1])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.floats(-10, 10))
def test_advantages_scale_with_rewards_and_values(seed, factor):
    reward, value, next_value, terminated, truncated, valid = random_rollout(seed)
    factor = np.float32(factor)
    one, _ = GAE(reward, value, next_value, terminated, truncated, 0.9, 0.8, valid)
    scaled, _ = GAE(factor * reward, factor * value, factor * next_value, terminated, truncated, 0.9, 0.8, valid)
    np.testing.assert_allclose(scaled, factor * one, rtol=1e-4, atol=1e-4)


def test_two_steps_ended_by_the_clock_bootstrap_from_the_final_observation():
    reward, value = jnp.array([[1.0], [1.0]]), jnp.array([[0.0], [0.0]])
    next_value = jnp.array([[0.0], [10.0]])
    clock = jnp.array([[False], [True]])
    none = jnp.zeros_like(clock)
    _, by_clock = GAE(reward, value, next_value, none, clock, 0.9, 1.0)
    _, by_task = GAE(reward, value, next_value, clock, none, 0.9, 1.0)
    np.testing.assert_allclose(by_clock[:, 0], [1.0 + 0.9 * 10.0, 10.0])
    np.testing.assert_allclose(by_task[:, 0], [1.9, 1.0])


def test_terminated_wins_where_both_happen_and_its_next_value_is_never_read():
    both = jnp.ones((1, 1), bool)
    advantage, target = GAE(jnp.ones((1, 1)), jnp.zeros((1, 1)), jnp.full((1, 1), jnp.nan), both, both, 0.9, 0.9)
    assert advantage[0, 0] == target[0, 0] == 1.0


def test_an_invalid_step_says_nothing_and_passes_its_value_on():
    none = jnp.zeros((3, 1), bool)
    reward = jnp.array([[1.0], [jnp.nan], [5.0]])
    value = jnp.array([[0.0], [2.0], [0.0]])
    next_value = jnp.array([[2.0], [jnp.inf], [0.0]])
    advantage, target = GAE(reward, value, next_value, none, none, 0.5, 1.0, jnp.array([[True], [False], [True]]))
    np.testing.assert_allclose(advantage[:, 0], [1.0 + 0.5 * 2.0, 0.0, 5.0])
    np.testing.assert_allclose(target[:, 0], [2.0, 2.0, 5.0])


def test_jit_changes_nothing():
    *arrays, valid = random_rollout(0)
    for a, b in zip(gae(*arrays, 0.9, 0.8, valid), GAE(*arrays, 0.9, 0.8, valid), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
