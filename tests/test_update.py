"""The update as a whole: where it starts, what it refuses, and that sweeping it changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

from riskppo_jax import distributions
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.errors import UserError
from riskppo_jax.nets import make_networks
from riskppo_jax.normalize import init_moments
from riskppo_jax.risk.lagrangian import Problem
from riskppo_jax.solvers import ppo
from riskppo_jax.solvers.ppo.losses import OF_POLICY, Batch, policy_loss, shares, standardize, value_loss
from riskppo_jax.solvers.ppo.rollout import evaluate_actions
from riskppo_jax.solvers.ppo.update import explained_variance, shuffled
from riskppo_jax.train import make_train

LAYOUT = Layout(num_envs=4, horizon=16, num_minibatches=4, num_epochs=2, hidden_sizes=(16, 16))


def fresh(layout, observation_size=3, action_size=2, num_actions=None):
    """Networks and a learner with arbitrary weights: at the true start means are almost zero and agree cheaply."""
    networks = make_networks(observation_size, action_size, num_actions, layout)
    shapes = jax.eval_shape(lambda key: ppo.init_learner(key, networks), jax.random.key(0))
    learner = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    rng = np.random.default_rng(0)
    weights = jax.tree.map(lambda x: jnp.float32(rng.normal(0.0, 0.3, x.shape)), learner.params)
    return networks, learner.replace(params=weights)


def random_batch(key, networks, params, layout, observation_size=3):
    key_obs, key_action, key_adv = jax.random.split(key, 3)
    lead = (layout.horizon, layout.num_envs)
    obs = jax.random.normal(key_obs, (*lead, observation_size))
    action = networks.policy(params, obs).sample(seed=key_action)
    log_prob, value = evaluate_actions(networks, params, obs, action, layout.minibatch_size)
    advantage = jax.random.normal(key_adv, lead)
    batch = Batch(obs, action, log_prob, value, advantage, value + advantage, jnp.ones(lead))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        ((17, 6, None), Layout(num_epochs=2)),
        ((3, 1, None), LAYOUT),
        ((3, 1, 4), LAYOUT),
        ((3, 2, None), Layout(num_envs=5, horizon=10, num_minibatches=1, num_epochs=2)),
        ((3, 2, None), Layout(num_envs=7, horizon=3, num_minibatches=3, num_epochs=1)),
    ],
    ids=["paper", "one action", "discrete", "one minibatch", "odd sizes"],
)
def test_the_ratio_is_one_to_the_last_bit_before_any_step(sizes, layout):
    networks, learner = fresh(layout, *sizes)

    @jax.jit
    def update(learner, key, lr):
        batch = random_batch(key, networks, learner.params, layout, sizes[0])
        return ppo.ppo_update(key, learner, batch, networks, PPOHypers(), layout, lr)

    _, metrics = update(learner, jax.random.key(2), 1e-3)
    assert metrics["ppo/first_log_ratio"] == 0.0
    assert metrics["ppo/approx_kl"] > 0.0 or layout.num_epochs == 1
    # without steps every minibatch is a first one: all samples, in all places of a minibatch
    still, metrics = update(learner, jax.random.key(2), 0.0)
    assert metrics["ppo/approx_kl"] == 0.0
    # a batch of other weights is not taken for one of these
    moved = jax.tree.map(lambda x: x * 1.001, learner.params)
    batch = jax.jit(lambda key: random_batch(key, networks, moved, layout, sizes[0]))(jax.random.key(2))
    loss = jax.jit(lambda params: policy_loss(params, batch, networks, PPOHypers())[1])
    assert loss(learner.params)[OF_POLICY.index("ppo/first_log_ratio")] > 1e-4
    jax.tree.map(np.testing.assert_array_equal, still.params, learner.params)


def test_the_ratio_is_one_after_a_rollout_in_every_lane():
    env = probes.action_by_observation()
    layout = LAYOUT
    networks, _ = fresh(layout, 1, 1)

    def run(key, lr):
        learner = ppo.init_learner(key, networks)
        envs = ppo.reset_envs(key, env, layout.num_envs)
        moments = init_moments((1,))

        def step(carry, key):
            learner, envs = carry
            envs, seen = ppo.rollout(key, env, networks, learner.params, moments, envs, layout)
            rest = (seen.value, seen.next_value, seen.terminated, seen.truncated)
            advantage, target = ppo.gae(seen.reward, *rest, 0.9, 0.95)
            batch = ppo.make_batch(seen, advantage, target, moments)
            learner, metrics = ppo.ppo_update(key, learner, batch, networks, PPOHypers(), layout, lr)
            return (learner, envs), metrics

        return jax.lax.scan(step, (learner, envs), jax.random.split(key, 3))[1]

    metrics = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(3), 3), jnp.array([1e-3, 3e-3, 1e-2]))
    np.testing.assert_array_equal(metrics["ppo/first_log_ratio"], np.zeros((3, 3)))
    assert (metrics["ppo/approx_kl"] > 0).all()


def test_one_step_is_clipped_adam():
    layout = Layout(num_envs=4, horizon=4, num_minibatches=1, num_epochs=1, hidden_sizes=(8,))
    hypers = PPOHypers(max_grad_norm=0.1)
    networks, learner = fresh(layout)
    batch = jax.jit(lambda key: random_batch(key, networks, learner.params, layout))(jax.random.key(2))
    update = jax.jit(lambda key: ppo.ppo_update(key, learner, batch, networks, hypers, layout, 0.01))
    got, metrics = update(jax.random.key(3))
    chain = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01, eps=1e-5))
    whole = batch._replace(advantage=standardize(batch.advantage, batch.weight), weight=shares(batch.weight))

    def loss(params):
        policy, value = (
            policy_loss(params, whole, networks, hypers),
            value_loss(params, whole, networks, hypers, layout),
        )
        return policy[0] + value[0]

    grads = jax.jit(jax.grad(loss))(learner.params)
    for name in ("actor", "critic"):  # each network's gradient is clipped by itself
        before, own = getattr(learner.params, name), getattr(grads, name)
        assert optax.tree.norm(own) > 0.1
        want = optax.apply_updates(before, chain.update(own, chain.init(before))[0])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), getattr(got.params, name), want)
    np.testing.assert_allclose(metrics["ppo/grad_norm"], optax.tree.norm(grads.actor), rtol=1e-5)


def test_epochs_end_once_the_policy_has_moved_far_enough(small):
    learner, batch, _, update = small
    all_epochs, whole = update(learner, batch, PPOHypers(target_kl=jnp.inf), 0.01)
    stopped, part = update(learner, batch, PPOHypers(target_kl=1e-9), 0.01)
    assert (whole["ppo/epochs"], part["ppo/epochs"]) == (LAYOUT.num_epochs, 1)
    for name in ("actor", "critic"):
        before, after = getattr(stopped.optimizer, name), getattr(all_epochs.optimizer, name)
        assert before.count == LAYOUT.num_minibatches < after.count
    assert part["ppo/skipped"] == 0 and jnp.isfinite(part["ppo/loss"])
    assert part["ppo/approx_kl"] < whole["ppo/approx_kl"]


@pytest.fixture(scope="module")
def small():
    networks, learner = fresh(LAYOUT)
    batch = random_batch(jax.random.key(2), networks, learner.params, LAYOUT)

    def update(learner, batch, hypers, lr=None):
        return ppo.ppo_update(jax.random.key(3), learner, batch, networks, hypers, LAYOUT, lr)

    return learner, batch, update, jax.jit(update)


def test_a_broken_sample_skips_its_minibatch_only(small):
    learner, batch, _, update = small
    broken = batch._replace(advantage=batch.advantage.at[5].set(jnp.nan))
    after, metrics = update(learner, broken, PPOHypers())
    assert metrics["ppo/skipped"] == after.skipped == LAYOUT.num_epochs  # once in each epoch
    assert metrics["ppo/skip_streak"] <= 2  # last of one epoch, first of the next
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after.params))
    counts = [own.count // LAYOUT.num_epochs for own in (after.optimizer.actor, after.optimizer.critic)]
    assert counts == [LAYOUT.num_minibatches - 1, LAYOUT.num_minibatches]  # advantages are the policy's business
    assert all(jnp.isfinite(metrics[f"ppo/{name}"]) for name in ("loss", "grad_norm", "approx_kl"))


def test_a_broken_batch_leaves_the_learner_as_it_was(small):
    learner, batch, _, update = small
    broken = batch._replace(obs=jnp.full_like(batch.obs, jnp.inf))
    after, metrics = update(learner, broken, PPOHypers())
    steps = LAYOUT.num_epochs * LAYOUT.num_minibatches
    assert after.skipped == after.skip_streak == metrics["ppo/skip_streak"] == steps
    jax.tree.map(np.testing.assert_array_equal, after.params, learner.params)
    jax.tree.map(np.testing.assert_array_equal, after.optimizer, learner.optimizer)
    again, metrics = update(after, batch, PPOHypers())  # and it recovers
    assert again.skip_streak == metrics["ppo/skipped"] == 0
    assert again.skipped == steps


def test_a_broken_critic_does_not_stop_the_policy(small):
    learner, batch, _, update = small
    after, metrics = update(learner, batch._replace(target=jnp.full_like(batch.target, jnp.inf)), PPOHypers())
    whole, _ = update(learner, batch, PPOHypers())
    assert after.skipped == metrics["ppo/skip_streak"] == LAYOUT.num_epochs * LAYOUT.num_minibatches
    jax.tree.map(np.testing.assert_array_equal, after.params.critic, learner.params.critic)
    jax.tree.map(np.testing.assert_array_equal, after.params.actor, whole.params.actor)


def test_jit_changes_nothing(small):
    learner, batch, update, jitted = small
    with jax.disable_jit():
        plain, plain_metrics = update(learner, batch, PPOHypers())
    compiled, metrics = jitted(learner, batch, PPOHypers())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), plain.params, compiled.params)
    for name in metrics:
        np.testing.assert_allclose(plain_metrics[name], metrics[name], rtol=2e-2, atol=1e-4)


def test_a_sweep_equals_its_lanes_alone(small):
    learner, batch, update, jitted = small
    hypers = PPOHypers(lr=jnp.array([1e-4, 3e-3]), clip=jnp.array([0.1, 0.3]), entropy_coef=jnp.array([0.0, 0.01]))
    axes = PPOHypers(**{name: None for name in vars(PPOHypers())}).replace(lr=0, clip=0, entropy_coef=0)
    lanes, metrics = jax.jit(jax.vmap(update, (None, None, axes)))(learner, batch, hypers)
    for lane in range(2):
        one = PPOHypers(lr=hypers.lr[lane], clip=hypers.clip[lane], entropy_coef=hypers.entropy_coef[lane])
        alone, alone_metrics = jitted(learner, batch, one)
        jax.tree.map(
            lambda a, b, lane=lane: np.testing.assert_allclose(a[lane], b, atol=1e-4), lanes.params, alone.params
        )
        np.testing.assert_allclose(metrics["ppo/loss"][lane], alone_metrics["ppo/loss"], rtol=1e-3, atol=1e-5)


def test_settings_do_not_compile_again(small):
    learner, batch, _, update = small
    update(learner, batch, PPOHypers(lr=jnp.float32(1.0)))
    before = update._cache_size()
    update(learner, batch, PPOHypers(lr=jnp.float32(2.0)))
    assert update._cache_size() == before


@pytest.mark.parametrize("size", [1, 2, 3, 50, 2048, 70_000])
def test_shuffling_is_a_permutation(size):
    order = np.asarray(shuffled(jax.random.key(0), size))
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_shuffling_is_uniform():
    orders = jax.vmap(lambda key: shuffled(key, 5))(jax.random.split(jax.random.key(0), 20_000))
    counts = np.stack([(np.asarray(orders) == i).mean(0) for i in range(5)])
    np.testing.assert_allclose(counts, 0.2, atol=0.015)


def test_linear_decay_ends_at_zero_or_at_a_share():
    done = jnp.array([0.0, 0.5, 1.0, 1.5])
    np.testing.assert_allclose(ppo.linear_decay(2.0, done), [2.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(ppo.linear_decay(2.0, done, 0.1), [2.0, 1.1, 0.2, 0.2], rtol=1e-6)


def test_explained_variance():
    zeros, ones = jnp.zeros(4), jnp.ones(4)
    target = jnp.array([1.0, 2.0, 3.0, 4.0])

    def ev(value, target):
        return explained_variance(Batch(zeros, zeros, zeros, value, zeros, target, ones))

    np.testing.assert_allclose([ev(target, target), ev(zeros, target), ev(zeros, ones)], [1.0, 0.0, 0.0], atol=1e-6)


def test_a_rollout_records_what_happened():
    env = probes.termination()
    layout = Layout(num_envs=3, horizon=4, num_minibatches=2, hidden_sizes=(8,))
    networks, learner = fresh(layout, 1, 1)
    envs = ppo.reset_envs(jax.random.key(0), env, 3)
    moments = init_moments((1,))
    args = (env, networks, learner.params, moments, envs, layout)
    after, seen = ppo.rollout(jax.random.key(1), *args)
    np.testing.assert_array_equal(seen.obs[..., 0], np.tile([[0.0], [1.0], [0.0], [1.0]], 3))
    np.testing.assert_array_equal(seen.terminated, np.tile([[False], [True], [False], [True]], 3))
    assert not seen.truncated.any() and seen.valid.all()
    # the value before the auto-reset: of observation 1, then of 2, which no transition starts from
    want = networks.value(learner.params, jnp.array([[1.0], [2.0], [1.0], [2.0]]))
    np.testing.assert_allclose(seen.next_value, np.tile(want[:, None], 3), rtol=1e-5)
    np.testing.assert_allclose(
        seen.log_prob, networks.policy(learner.params, seen.obs).log_prob(seen.action), rtol=1e-5
    )
    np.testing.assert_array_equal(seen.constraints["effort"], jnp.abs(seen.action[..., 0]))
    np.testing.assert_array_equal(after.obs[:, 0], 0.0)
    _, mean = ppo.rollout(jax.random.key(1), *args, deterministic=True)
    np.testing.assert_allclose(mean.action, networks.policy(learner.params, mean.obs).mode(), rtol=1e-5)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.95])
def test_noise_that_remembers_has_the_law_it_would_have_alone(memory):
    """Every step is standard normal, neighbours correlate by `memory`, the further apart the less."""
    noise = np.asarray(distributions.remembering(jax.random.key(0), memory, (6, 100_000, 2)))
    np.testing.assert_allclose(noise.mean((1, 2)), 0.0, atol=0.01)
    np.testing.assert_allclose(noise.std((1, 2)), 1.0, atol=0.01)
    for apart in (1, 3):
        np.testing.assert_allclose((noise[apart:] * noise[:-apart]).mean((1, 2)), memory**apart, atol=0.015)
    np.testing.assert_allclose((noise[..., 0] * noise[..., 1]).mean(), 0.0, atol=0.01)


def test_a_rollout_samples_with_noise_that_remembers():
    env = probes.action_by_observation()
    layout = Layout(num_envs=500, horizon=16, num_minibatches=2, hidden_sizes=(8,), noise_memory=0.9)
    networks, learner = fresh(layout, 1, 1)
    envs = ppo.reset_envs(jax.random.key(0), env, 500)
    _, seen = ppo.rollout(jax.random.key(1), env, networks, learner.params, init_moments((1,)), envs, layout)
    law = networks.policy(learner.params, seen.obs)
    noise = np.asarray((seen.action - law.mode()) / law.distribution.stddev())[..., 0]
    assert noise.std() == pytest.approx(1.0, abs=0.05)
    assert np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1] == pytest.approx(0.9, abs=0.02)
    np.testing.assert_allclose(seen.log_prob, law.log_prob(seen.action), rtol=1e-4)
    args = (env, networks, learner.params, init_moments((1,)), envs, layout)
    _, without = ppo.rollout(jax.random.key(1), *args, memory=0.0)
    law = networks.policy(learner.params, without.obs)
    noise = np.asarray((without.action - law.mode()) / law.distribution.stddev())[..., 0]
    assert noise.std() == pytest.approx(1.0, abs=0.05)
    assert np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1] == pytest.approx(0.0, abs=0.04)
    with pytest.raises(UserError, match="actions here are counted"):
        make_train(probes.observation(num_actions=2), layout, Problem(constraints=()))
