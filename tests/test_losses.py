"""Terms of the loss against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.nets import make_networks
from riskppo_jax.solvers.ppo.losses import (
    OF_POLICY,
    Batch,
    clipped_surrogate,
    clipped_value_error,
    log_ratio,
    policy_loss,
    shares,
    standardize,
    value_error,
    value_loss,
    weighted_mean,
)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -2.4, 0.0),  # gained enough: no further pull
        (1.5, -2.0, 3.0, 3.0),  # went the wrong way: full pull back
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),
    ],
)
def test_the_surrogate_is_pessimistic(ratio, advantage, loss, slope):
    value, grad = jax.value_and_grad(clipped_surrogate)(jnp.log(ratio), advantage, 0.2)
    np.testing.assert_allclose(value, loss, rtol=1e-6)
    np.testing.assert_allclose(grad, slope, rtol=1e-6)


def test_the_log_ratio_forgives_rounding_and_nothing_else():
    acting = jnp.array([-20.0, 0.5, -20.0, 0.5])
    log_prob = acting + jnp.array([4e-6, 1e-7, 1e-3, -1e-4])
    got = jax.jit(log_ratio)(log_prob, acting)
    np.testing.assert_array_equal(got[:2], 0.0)
    np.testing.assert_allclose(got[2:], [1e-3, -1e-4], rtol=0.02)
    np.testing.assert_array_equal(jax.grad(lambda x: log_ratio(x, acting).sum())(log_prob), 1.0)


def test_value_errors():
    np.testing.assert_allclose(value_error(jnp.array(3.0), 1.0), 2.0)
    # the critic moved from 0 to 3, held at 0.2: the larger error counts on either side of the target
    np.testing.assert_allclose(clipped_value_error(jnp.array(3.0), 0.0, 4.0, 0.2), 0.5 * 3.8**2)
    np.testing.assert_allclose(clipped_value_error(jnp.array(3.0), 0.0, 1.0, 0.2), 2.0)


@pytest.mark.parametrize(("error", "want", "slope"), [(0.5, 0.125, 0.5), (-1.0, 0.5, -1.0), (50.0, 49.5, 1.0)])
def test_a_large_error_counts_linearly(error, want, slope):
    value, grad = jax.value_and_grad(value_error)(jnp.float32(error), 0.0, 1.0)
    np.testing.assert_allclose([value, grad], [want, slope], rtol=1e-6)
    np.testing.assert_allclose(jax.grad(value_error)(jnp.float32(error), 0.0), error, rtol=1e-6)


def test_samples_without_weight_do_not_count():
    x, weight = jnp.array([1.0, 3.0, 1e6]), jnp.array([1.0, 1.0, 0.0])
    np.testing.assert_allclose(weighted_mean(x, weight), 2.0)
    np.testing.assert_allclose(standardize(x, weight)[:2], [-1.0, 1.0], rtol=1e-6)
    assert weighted_mean(x, jnp.zeros(3)) == 0.0
    np.testing.assert_array_equal(standardize(jnp.full(3, 7.0), jnp.ones(3)), 0.0)


def make_batch(networks, params, size=8, weight=None):
    key_obs, key_action, key_adv = jax.random.split(jax.random.key(1), 3)
    obs = jax.random.normal(key_obs, (size, 3))
    law = networks.policy(params, obs)
    action = law.sample(seed=key_action)
    value = networks.value(params, obs)
    advantage = jax.random.normal(key_adv, (size,))
    weight = shares(jnp.ones(size) if weight is None else weight)
    return Batch(obs, action, law.log_prob(action), value, advantage, value + advantage, weight)


@pytest.mark.parametrize("num_actions", [None, 3])
def test_the_sum_of_terms_at_the_acting_policy(num_actions):
    layout = Layout(hidden_sizes=(8,), normalize_advantages=False)
    hypers = PPOHypers(value_coef=0.3, entropy_coef=0.1, value_huber=jnp.inf)
    networks = make_networks(3, 2, num_actions, layout)
    params = jax.jit(networks.init)(jax.random.key(0))
    batch = make_batch(networks, params)
    policy, logged = policy_loss(params, batch, networks, hypers)
    value, error = value_loss(params, batch, networks, hypers, layout)
    metrics = dict(zip(OF_POLICY, logged, strict=True))
    entropy = networks.policy(params, batch.obs).entropy().mean()
    by_hand = -batch.advantage.mean() + 0.3 * 0.5 * jnp.square(batch.advantage).mean() - 0.1 * entropy
    np.testing.assert_allclose(policy + value, by_hand, rtol=1e-5)
    np.testing.assert_allclose([value], 0.3 * error, rtol=1e-6)
    np.testing.assert_allclose(metrics["ppo/approx_kl"], 0.0, atol=1e-7)
    assert metrics["ppo/clip_fraction"] == 0.0


def test_the_gradient_at_the_acting_policy_is_the_policy_gradient():
    layout = Layout(hidden_sizes=(8,), normalize_advantages=False)
    networks = make_networks(3, 2, None, layout)
    params = jax.jit(networks.init)(jax.random.key(0))
    batch = make_batch(networks, params)
    got = jax.grad(lambda p: policy_loss(p, batch, networks, PPOHypers())[0])(params).actor
    want = jax.grad(lambda p: -jnp.mean(networks.policy(p, batch.obs).log_prob(batch.action) * batch.advantage))(
        params
    ).actor
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


@pytest.mark.parametrize("clip_value_loss", [False, True])
def test_a_masked_sample_changes_nothing(clip_value_loss):
    layout = Layout(hidden_sizes=(8,), clip_value_loss=clip_value_loss)
    networks = make_networks(3, 2, None, layout)
    params = jax.jit(networks.init)(jax.random.key(0))
    whole = make_batch(networks, params, weight=jnp.ones(8).at[5].set(0.0))
    without = jax.tree.map(lambda x: jnp.delete(x, 5, axis=0), whole)
    for loss, more in ((policy_loss, ()), (value_loss, (layout,))):
        both = [loss(params, batch, networks, PPOHypers(), *more)[0] for batch in (whole, without)]
        np.testing.assert_allclose(*both, rtol=1e-5)
