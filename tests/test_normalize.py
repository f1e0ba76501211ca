"""Running statistics against NumPy in float64, and the reward's scale in its awkward cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riskppo_jax.normalize import (
    MEMORY,
    deviation,
    init_moments,
    init_reward_scale,
    normalize,
    reward_factor,
    same_values,
    to_output,
    to_value,
    update_moments,
    update_reward_scale,
    update_targets,
)

UPDATE = jax.jit(update_moments)
SCALE = jax.jit(update_reward_scale)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(-1e3, 1e3), st.floats(1e-2, 1e2), st.integers(1, 5))
def test_batches_together_equal_the_whole(seed, mean, sd, batches):
    data = np.random.default_rng(seed).normal(mean, sd, (batches, 4, 6, 3)).astype(np.float32)
    moments = init_moments((3,))
    for batch in data:
        moments = UPDATE(moments, batch)
    whole = data.reshape(-1, 3).astype(np.float64)
    assert moments.count == len(whole)
    np.testing.assert_allclose(moments.mean, whole.mean(0), atol=1e-5 * (abs(mean) + sd))
    np.testing.assert_allclose(moments.var, whole.var(0), rtol=1e-3, atol=1e-6 * mean**2)


def test_a_long_run_neither_drifts_nor_freezes():
    rng = np.random.default_rng(0)
    data = rng.normal(100.0, 0.5, (256, 2)).astype(np.float32)

    def run(moments, _):
        return update_moments(moments, data), None

    start = init_moments((2,)).replace(count=jnp.float32(3e8), mean=jnp.full(2, 99.0))
    moments, _ = jax.jit(lambda m: jax.lax.scan(run, m, None, length=20_000))(start)
    added = 20_000 * 256
    share = added / (3e8 + added)
    expected = 99.0 + share * (data.mean(0, dtype=np.float64) - 99.0)
    np.testing.assert_allclose(moments.count, 3e8 + added, rtol=1e-3)
    np.testing.assert_allclose(moments.mean, expected, rtol=1e-6)


def test_masked_and_broken_samples_do_not_count():
    data = np.random.default_rng(1).normal(size=(8, 4, 2)).astype(np.float32)
    valid = np.random.default_rng(2).random((8, 4)) > 0.3
    broken = np.where(valid[..., None], data, np.nan)
    masked = UPDATE(init_moments((2,)), data, jnp.asarray(valid))
    ignored = UPDATE(init_moments((2,)), broken)
    for moments in (masked, ignored):
        assert moments.count == valid.sum()
        np.testing.assert_allclose(moments.mean, data[valid].mean(0), atol=1e-6)
        np.testing.assert_allclose(moments.var, data[valid].var(0), rtol=1e-5)


def test_nothing_valid_changes_nothing():
    before = UPDATE(init_moments((2,)), jnp.arange(6.0).reshape(3, 2))
    after = UPDATE(before, jnp.full((3, 2), jnp.inf))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    fresh = UPDATE(init_moments((2,)), jnp.full((3, 2), jnp.nan))
    np.testing.assert_array_equal(normalize(fresh, jnp.array([1.0, -2.0])), [1.0, -2.0])


def test_normalised_data_are_standard_and_clipped():
    data = np.random.default_rng(3).normal(5.0, 3.0, (1000, 1)).astype(np.float32)
    moments = UPDATE(init_moments((1,)), data)
    out = normalize(moments, data)
    np.testing.assert_allclose([out.mean(), out.std()], [0.0, 1.0], atol=1e-4)
    np.testing.assert_array_equal(normalize(moments, jnp.array([[1e9], [-1e9]])), [[10.0], [-10.0]])


def test_a_number_that_never_varies_becomes_zero():
    moments = UPDATE(init_moments((2,)), jnp.tile(jnp.array([0.1, 12345.678]), (50, 1)))
    assert (deviation(moments) > 0).all()
    np.testing.assert_allclose(normalize(moments, jnp.array([0.1, 12345.678])), 0.0, atol=0.2)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_the_factor_is_one_over_the_deviation_of_returns(size):
    rng = np.random.default_rng(4)
    reward = (size * rng.normal(size=(50, 4))).astype(np.float32)
    done = rng.random((50, 4)) < 0.1
    scale, returns, seen = init_reward_scale(4), np.zeros(4), []
    for part in (slice(0, 20), slice(20, 50)):  # two rollouts, episodes running across
        scale = SCALE(scale, reward[part], done[part], 0.9)
        for r, d in zip(reward[part], done[part], strict=True):
            returns = 0.9 * returns + r
            seen.append(returns)
            returns = np.where(d, 0.0, returns)
    np.testing.assert_allclose(reward_factor(scale), 1.0 / np.std(seen), rtol=1e-4)


def test_the_factor_at_the_start_and_without_reward_is_one():
    scale = init_reward_scale(3)
    assert reward_factor(scale) == 1.0
    scale = SCALE(scale, jnp.zeros((5, 3)), jnp.zeros((5, 3), bool), 0.99)
    assert reward_factor(scale) == 1.0


def test_constant_rewards_are_not_blown_up():
    reward, done = jnp.full((20, 3), 5.0), jnp.ones((20, 3), bool)
    factor = reward_factor(SCALE(init_reward_scale(3), reward, done, 0.99))
    np.testing.assert_allclose(factor, 2.0)  # a tenth of the mean return counts as its deviation


def test_broken_and_masked_rewards_are_ignored():
    reward = np.random.default_rng(5).normal(size=(30, 2)).astype(np.float32)
    valid = np.ones((30, 2), bool)
    valid[7, 0] = valid[19, 1] = False
    done = jnp.zeros((30, 2), bool)
    masked = SCALE(init_reward_scale(2), reward, done, 0.9, jnp.asarray(valid))
    broken = SCALE(init_reward_scale(2), np.where(valid, reward, np.nan), done, 0.9)
    jax.tree.map(np.testing.assert_array_equal, masked, broken)
    assert masked.moments.count == 58
    assert jnp.isfinite(reward_factor(broken))


def test_scales_of_several_lanes_do_not_mix():
    reward = np.random.default_rng(6).normal(size=(2, 20, 3)).astype(np.float32) * np.array([1, 50])[:, None, None]
    done = np.zeros((2, 20, 3), bool)
    lanes = jax.vmap(lambda r, d: update_reward_scale(init_reward_scale(3), r, d, 0.9))(reward, done)
    for lane in range(2):
        alone = SCALE(init_reward_scale(3), reward[lane], done[lane], 0.9)
        np.testing.assert_allclose(jax.vmap(reward_factor)(lanes)[lane], reward_factor(alone), rtol=1e-5)


def test_the_scale_forgets():
    """Each rollout takes a share `1 / (MEMORY + 1)` of the variance, so old ones fade geometrically."""
    small = np.random.default_rng(7).normal(size=(16, 4)).astype(np.float32)
    small -= small.mean()
    scale, done = init_reward_scale(4), jnp.ones((16, 4), bool)
    for _ in range(10 * MEMORY):
        scale = SCALE(scale, small, done, 0.9)
    before = reward_factor(scale)
    for _ in range(4 * MEMORY):
        scale = SCALE(scale, 1e-3 * small, done, 0.9)
    np.testing.assert_allclose(reward_factor(scale) / before, (1 + 1 / MEMORY) ** (2 * MEMORY), rtol=0.05)


def test_values_are_outputs_around_the_mean_target():
    scale = init_reward_scale(2)
    target = 100.0 + jnp.asarray(np.random.default_rng(8).normal(size=(50, 2)), jnp.float32)
    np.testing.assert_allclose(to_value(scale, target), target)  # nothing seen yet
    scale = update_targets(scale, target)
    output = to_output(scale, target)
    assert abs(output.mean()) < 1e-3 and abs(output.std() - 1.0) < 1e-3
    np.testing.assert_allclose(to_value(scale, output), target, rtol=1e-6)
    masked = update_targets(scale, target.at[3].set(jnp.nan))
    assert jnp.isfinite(to_value(masked, output)).all()


def test_values_stay_when_the_moments_of_targets_move():
    rng = np.random.default_rng(9)
    before = update_targets(init_reward_scale(2), jnp.asarray(rng.normal(5.0, 2.0, (50, 2)), jnp.float32))
    after = update_targets(before, jnp.asarray(rng.normal(-30.0, 20.0, (50, 2)), jnp.float32))
    gain, offset = same_values(before, after)
    output = jnp.linspace(-3.0, 3.0, 7)
    np.testing.assert_allclose(to_value(after, gain * output + offset), to_value(before, output), rtol=1e-4)


def test_values_have_the_units_of_the_reward():
    """A reward a million times smaller makes everything a million times smaller, from the first value on."""
    rng = np.random.default_rng(10)
    reward = jnp.asarray(rng.normal(0.3, 1.0, (50, 2)), jnp.float32)
    done, output = jnp.zeros((50, 2), bool), jnp.linspace(-3.0, 3.0, 7)

    def values(unit):
        first = update_reward_scale(init_reward_scale(2), unit * reward, done, 0.99)
        later = update_targets(first, unit * (reward + 7.0))
        return to_value(first, output, 1.0 / reward_factor(first)), to_value(later, output, 1.0 / reward_factor(first))

    for small, usual in zip(values(1e-6), values(1.0), strict=True):
        np.testing.assert_allclose(1e6 * small, usual, rtol=1e-4)
