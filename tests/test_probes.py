"""PPO on environments whose answer is known. The loop here is the smallest that can be made of its functions."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.nets import make_networks
from riskppo_jax.normalize import (
    init_moments,
    init_reward_scale,
    normalize,
    reward_factor,
    update_moments,
    update_reward_scale,
)
from riskppo_jax.solvers import ppo

LAYOUT = Layout(num_envs=16, horizon=16, num_minibatches=4, num_epochs=4, hidden_sizes=(32, 32))
HYPERS = PPOHypers(lr=3e-3, gamma=0.9, entropy_coef=0.0)


@cache
def fresh(num_actions):
    """Networks and their learner before training; compiled once for all probes."""
    networks = make_networks(1, 1, num_actions, LAYOUT)
    return networks, jax.jit(lambda key: ppo.init_learner(key, networks))(jax.random.key(1))


def train(key, env, layout, hypers, updates, scale_rewards=False):
    """Runs PPO and returns `(networks, learner, moments, factor, metrics of each update)`."""
    networks, start = fresh(env.num_actions)

    def update(carry, step):
        learner, moments, scale, envs, key = carry
        key, key_roll, key_update = jax.random.split(key, 3)
        envs, seen = ppo.rollout(key_roll, env, networks, learner.params, moments, envs, layout, hypers.obs_clip)
        done = seen.terminated | seen.truncated
        reward = seen.reward
        if scale_rewards:
            scale = update_reward_scale(scale, reward, done, hypers.gamma, seen.valid)
            reward = reward * reward_factor(scale)
        advantage, target = ppo.gae(
            reward,
            seen.value,
            seen.next_value,
            seen.terminated,
            seen.truncated,
            hypers.gamma,
            hypers.gae_lambda,
            seen.valid,
        )
        batch = ppo.make_batch(seen, advantage, target, moments, hypers.obs_clip)
        lr = ppo.linear_decay(hypers.lr, step / updates)
        learner, metrics = ppo.ppo_update(key_update, learner, batch, networks, hypers, layout, lr)
        moments = update_moments(moments, seen.obs, seen.valid)
        return (learner, moments, scale, envs, key), metrics

    def run(key):
        key, key_envs = jax.random.split(key)
        carry = (
            start,
            init_moments((env.observation_size,)),
            init_reward_scale(layout.num_envs),
            ppo.reset_envs(key_envs, env, layout.num_envs),
            key,
        )
        (learner, moments, scale, _, _), metrics = jax.lax.scan(update, carry, jnp.arange(updates))
        return learner, moments, reward_factor(scale), metrics

    return networks, *jax.jit(run)(key)


def trained_values(env, observations, updates=100, **options):
    networks, learner, moments, factor, metrics = train(jax.random.key(0), env, LAYOUT, HYPERS, updates, **options)
    np.testing.assert_array_equal(metrics["ppo/first_log_ratio"], 0.0)
    np.testing.assert_array_equal(metrics["ppo/skipped"], 0)
    obs = normalize(moments, jnp.asarray(observations)[:, None])
    return networks.value(learner.params, obs) / factor, networks.policy(learner.params, obs)


KINDS = pytest.mark.parametrize(
    "num_actions", [None, pytest.param(2, marks=pytest.mark.slow)], ids=["continuous", "discrete"]
)


@KINDS
def test_the_critic_learns_a_constant(num_actions):
    value, _ = trained_values(probes.value_only(num_actions), [0.0])
    np.testing.assert_allclose(value, [1.0], atol=0.02)


@KINDS
def test_the_critic_tells_observations_apart(num_actions):
    value, _ = trained_values(probes.observation(num_actions), [-1.0, 1.0])
    np.testing.assert_allclose(value, [-1.0, 1.0], atol=0.03)


@KINDS
def test_reward_is_discounted_once_per_step(num_actions):
    value, _ = trained_values(probes.discount(num_actions), [0.0, 1.0])
    np.testing.assert_allclose(value, [0.9, 1.0], atol=0.03)


def test_the_gaussian_policy_finds_the_best_action():
    _, policy = trained_values(probes.action(), [0.0])
    np.testing.assert_allclose(policy.mode(), [[0.5]], atol=0.1)


def test_the_categorical_policy_finds_the_best_action():
    _, policy = trained_values(probes.action(3), [0.0])
    assert policy.probs[0, 2] > 0.95


def test_the_gaussian_policy_depends_on_the_observation():
    _, policy = trained_values(probes.action_by_observation(), [-1.0, 1.0])
    np.testing.assert_allclose(policy.mode()[:, 0], [-0.5, 0.5], atol=0.1)


def test_the_categorical_policy_depends_on_the_observation():
    _, policy = trained_values(probes.action_by_observation(2), [-1.0, 1.0])
    assert policy.probs[0, 0] > 0.95
    assert policy.probs[1, 1] > 0.95


@KINDS
def test_a_truncation_is_bootstrapped(num_actions):
    value, _ = trained_values(probes.truncation(num_actions), [0.0], updates=250)
    np.testing.assert_allclose(value, [10.0], rtol=0.05)


@KINDS
def test_a_termination_is_not(num_actions):
    value, _ = trained_values(probes.termination(num_actions), [0.0, 1.0])
    np.testing.assert_allclose(value, [1.9, 1.0], atol=0.05)


def test_values_come_back_in_raw_units_with_scaled_rewards():
    value, _ = trained_values(probes.termination(), [0.0, 1.0], scale_rewards=True)
    np.testing.assert_allclose(value, [1.9, 1.0], atol=0.05)
