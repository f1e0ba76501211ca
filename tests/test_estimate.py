import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax.risk import estimate


def test_steps_of_episodes_that_end_inside_the_batch():
    done = jnp.array([[False, False], [True, False], [False, True], [False, False]])
    np.testing.assert_array_equal(estimate.episode_steps(done), [[0, 0], [1, 1], [0, 2], [1, 0]])
    np.testing.assert_array_equal(estimate.episode_steps(done, jnp.array([5, 0]))[:2], [[5, 0], [6, 1]])


def test_uniform_weights_count_every_visited_step_once():
    done = jnp.array([[False, True], [True, True], [False, False]])
    np.testing.assert_allclose(estimate.occupancy_weights(done), 1 / 6)


def test_discounted_weights_follow_the_step_in_the_episode():
    done = jnp.array([[False], [True], [False]])
    weights = estimate.occupancy_weights(done, gamma=0.5)[:, 0]
    np.testing.assert_allclose(weights, np.array([1, 0.5, 1]) / 2.5, rtol=1e-6)


def test_discounted_weights_deep_in_an_episode_without_end():
    """`0.9^900` is 0 in float32, of every step alike: what counts is how they compare."""
    weights = estimate.occupancy_weights(jnp.zeros((3, 2), bool), 0.9, jnp.array([5000, 5001]))
    expected = 0.9 ** np.array([[0, 1], [1, 2], [2, 3]])
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-6)


def test_a_short_episode_contributes_only_the_steps_it_had():
    """Two episodes, two steps at v=1 and four at v=0: the law is of steps, so P(v=1) = 1/3, not 1/2."""
    v = jnp.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])[:, None]
    done = jnp.array([False, True, False, False, False, True])[:, None]
    weights = estimate.occupancy_weights(done)
    assert estimate.weighted_mean(v, weights) == pytest.approx(1 / 3)
    assert estimate.upper_cvar(v, 0.5, weights) == pytest.approx(2 / 3)


def test_weighted_mean_ignores_what_masked_steps_hold():
    x = jnp.array([[1.0, jnp.nan], [3.0, jnp.inf]])
    weights = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    assert estimate.weighted_mean(x, weights) == 2.0


def test_upper_quantile_and_tail_of_a_staircase():
    v = jnp.arange(1.0, 101.0)
    assert estimate.upper_quantile(v, 0.25) == pytest.approx(75.0, abs=1.0)
    assert estimate.upper_cvar(v, 0.25) == pytest.approx(np.arange(76, 101).mean())
    assert estimate.upper_cvar(v, 1.0) == pytest.approx(50.5)
