"""Epochs and minibatches: PPO's optimisation of one batch.

The two networks share nothing, so each is fitted in a loop of its own, on a core of its own where there are two. The
weights of a network travel through its loop as one vector: the optimiser is then a handful of operations instead of a
handful per weight matrix, and with networks this small the number of operations counts.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from riskppo_jax import trees
from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.nets import Networks, Params
from riskppo_jax.normalize import Moments, normalize
from riskppo_jax.parallel import over_devices, side_by_side
from riskppo_jax.solvers.ppo.losses import (
    OF_POLICY,
    OF_VALUE,
    Batch,
    policy_loss,
    shares,
    standardize,
    value_loss,
    weighted_mean,
)
from riskppo_jax.solvers.ppo.rollout import Transition
from riskppo_jax.types import Array, ArrayLike, Key, Metrics, PyTree

_KL = OF_POLICY.index("ppo/approx_kl")
_NORM, _TAKEN = -2, -1  # what a gradient step records after what its loss logs


@struct.dataclass
class Learner:
    """What PPO carries from update to update."""

    params: Params
    optimizer: Params  # Adam's moments of each network's weights as one vector
    skipped: Array  # gradient steps not taken because of a non-finite loss or gradient, in all
    skip_streak: Array  # how many of the latest gradient steps in a row


class _Fit(NamedTuple):
    """A network's weights and optimiser after each epoch, and what its steps recorded, `[epoch, minibatch, ...]`."""

    weights: Array
    optimizer: optax.ScaleByAdamState
    record: Array
    epochs: Array  # that were run

    def after(self, epochs: Array) -> tuple[Array, optax.ScaleByAdamState]:
        """Weights and optimiser as so many epochs left them."""
        return jax.tree.map(lambda x: x[epochs - 1], (self.weights, self.optimizer))


def init_learner(key: Key, networks: Networks) -> Learner:
    """Fresh weights and an optimiser that has seen nothing."""
    params = networks.init(key)
    zero = jnp.zeros((), jnp.int32)
    actor, critic = (optax.scale_by_adam().init(ravel_pytree(own)[0]) for own in (params.actor, params.critic))
    return Learner(params=params, optimizer=Params(actor, critic), skipped=zero, skip_streak=zero)


def linear_decay(start: ArrayLike, done: ArrayLike, final: ArrayLike = 0.0) -> Array:
    """`start (1 - (1 - final) done)`, where `done` is the finished share of training in [0, 1]."""
    return jnp.asarray(start) * (1.0 - (1.0 - final) * jnp.clip(done, 0.0, 1.0))


def make_batch(
    transitions: Transition, advantage: Array, target: Array, moments: Moments, obs_clip: ArrayLike = 10.0
) -> Batch:
    """Transitions `[T, N]` and what `gae` made of them, flattened to `[T N]`, observations normalised."""
    batch = Batch(
        obs=normalize(moments, transitions.obs, obs_clip),
        action=transitions.action,
        log_prob=transitions.log_prob,
        value=transitions.value,
        advantage=advantage,
        target=target,
        weight=transitions.valid.astype(advantage.dtype),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def ppo_update(
    key: Key,
    learner: Learner,
    batch: Batch,
    networks: Networks,
    hypers: PPOHypers,
    layout: Layout,
    lr: ArrayLike | None = None,
) -> tuple[Learner, Metrics]:
    """At most `num_epochs` passes over the batch, each in a new order, one Adam step per minibatch and network.

    The passes end early once one of them has seen, on average, a policy further than `target_kl` from the one that
    acted. The gradients of the two networks are clipped apart: a policy with little noise left has steep ones, and
    shrinking the critic's with them would stop it from learning.

    A network whose loss or gradient is not finite does not take that step: its weights and optimiser stay as they
    are, and the step is counted. Metrics are means over the steps that were taken.

    Args:
      key: for the order of samples.
      learner: weights and optimisers.
      batch: `[batch_size, ...]`, from `make_batch`.
      networks: policy and value.
      hypers: coefficients.
      layout: shapes and options.
      lr: learning rate of this update, `hypers.lr` if None.

    Returns:
      The learner afterwards, and metrics. `ppo/first_log_ratio` is the largest at the very first minibatch,
      before any step: exactly 0 unless the batch stems from other weights.
    """
    lr = hypers.lr if lr is None else lr
    keys = jax.random.split(key, layout.num_epochs)
    policy, value = side_by_side(
        partial(_fit_policy, networks=networks, layout=layout),
        partial(_fit_value, networks=networks, layout=layout),
        learner, batch, keys, hypers, lr,
    )  # fmt: skip
    (actor, of_actor), (critic, of_critic) = policy.after(policy.epochs), value.after(policy.epochs)
    params = Params(_reshaped(actor, learner.params.actor), _reshaped(critic, learner.params.critic))
    counts, streak = _skips(policy, value, learner.skip_streak)
    updated = Learner(params, Params(of_actor, of_critic), learner.skipped + counts["ppo/skipped"], streak)
    metrics = _summary(policy, value, hypers) | counts
    return updated, metrics | {"ppo/explained_variance": explained_variance(batch), "ppo/lr": jnp.asarray(lr)}


def _fit_policy(
    learner: Learner, batch: Batch, keys: Key, hypers: PPOHypers, lr: Array, networks: Networks, layout: Layout
) -> _Fit:
    """Epochs until the policy is far enough from the one that acted."""

    def loss(actor: PyTree, minibatch: Batch):
        return policy_loss(learner.params.replace(actor=actor), minibatch, networks, hypers)

    def near(epoch: Array, record: Array) -> Array:
        taken = record[:, _TAKEN] > 0
        moved = jnp.sum(jnp.where(taken, record[:, _KL], 0.0)) / jnp.maximum(jnp.sum(taken), 1)
        return moved <= hypers.target_kl

    start = learner.params.actor, learner.optimizer.actor
    return _fit(loss, len(OF_POLICY), start, near, batch, keys, hypers, lr, layout)


def _fit_value(
    learner: Learner, batch: Batch, keys: Key, hypers: PPOHypers, lr: Array, policy: _Fit | None = None, *,
    networks: Networks, layout: Layout,
) -> _Fit:  # fmt: skip
    """As many epochs as the policy had; all of them where that is not known yet, and what is too much is not used."""

    def loss(critic: PyTree, minibatch: Batch):
        return value_loss(learner.params.replace(critic=critic), minibatch, networks, hypers, layout)

    def more(epoch: Array, record: Array) -> Array:
        return jnp.ones((), bool) if policy is None else epoch + 1 < policy.epochs

    start = learner.params.critic, learner.optimizer.critic
    return _fit(loss, len(OF_VALUE), start, more, batch, keys, hypers, lr, layout)


def _fit(
    loss: Callable[[PyTree, Batch], tuple[Array, Array]],
    logs: int,
    start: tuple[PyTree, optax.ScaleByAdamState],
    goes_on: Callable[[Array, Array], Array],
    batch: Batch,
    keys: Key,
    hypers: PPOHypers,
    lr: ArrayLike,
    layout: Layout,
) -> _Fit:
    """One network's epochs: `loss` logs so many numbers, `goes_on(epoch, record)` says whether there is another."""
    weights, optimizer = ravel_pytree(start[0])[0], start[1]

    def gradient_step(carry, minibatch: Batch):
        weights, optimizer = carry
        graded = jax.value_and_grad(lambda weights: loss(_reshaped(weights, start[0]), minibatch), has_aux=True)
        (value, logged), gradient = graded(weights)
        norm = jnp.sqrt(jnp.sum(gradient * gradient))
        shrink = jnp.minimum(1.0, hypers.max_grad_norm / jnp.maximum(norm, 1e-12))
        stepped, change = adam_step(optimizer, shrink * gradient, lr, hypers.adam_eps)
        taken = jnp.isfinite(value) & jnp.isfinite(norm)
        weights = jnp.where(taken, weights - change, weights)
        optimizer = trees.where(taken, stepped, optimizer)
        return (weights, optimizer), jnp.concatenate([logged, jnp.stack([norm, taken])])

    def run_epoch(carry, key: Key):
        order = shuffled(key, layout.batch_size).reshape(layout.num_minibatches, layout.minibatch_size)
        minibatches = jax.tree.map(lambda x: over_devices(x.at[order].get(mode="promise_in_bounds"), axis=1), batch)
        return jax.lax.scan(gradient_step, carry, _weighed(minibatches, layout))

    def epoch(carry, turn):
        going, carry = carry
        index, key = turn
        nothing = jnp.zeros((layout.num_minibatches, logs + 2), weights.dtype)
        carry, record = jax.lax.cond(going, run_epoch, lambda carry, _: (carry, nothing), carry, key)
        return (going & goes_on(index, record), carry), (*carry, record, going)

    first = (jnp.ones((), bool), (weights, optimizer))
    turns = (jnp.arange(layout.num_epochs), keys)
    _, (weights, optimizer, record, run) = jax.lax.scan(epoch, first, turns)
    return _Fit(weights, optimizer, record, jnp.sum(run))


def _reshaped(weights: Array, like: PyTree) -> PyTree:
    """A network's weights from one vector."""
    return ravel_pytree(like)[1](weights)


def adam_step(
    state: optax.ScaleByAdamState, gradient: Array, lr: ArrayLike, eps: ArrayLike, b1: float = 0.9, b2: float = 0.999
) -> tuple[optax.ScaleByAdamState, Array]:
    """Adam's next moments, and what to subtract from the weights.

    `lr m / (1 - b1^k) / (sqrt(v / (1 - b2^k)) + eps)` with both corrections taken out of the vectors: one division for
    each weight instead of three, which is a good part of a gradient step with networks this small.
    """
    count = state.count + 1
    mu = b1 * state.mu + (1.0 - b1) * gradient
    nu = b2 * state.nu + (1.0 - b2) * gradient * gradient
    spread = jnp.sqrt(1.0 - b2**count)
    change = (lr * spread / (1.0 - b1**count)) * mu / (jnp.sqrt(nu) + eps * spread)
    return optax.ScaleByAdamState(count=count, mu=mu, nu=nu), change


def _weighed(minibatches: Batch, layout: Layout) -> Batch:
    """Minibatches `[M, B]` with weights as shares and, where wanted, advantages standardised within each."""
    advantage, weight = minibatches.advantage, minibatches.weight
    if layout.normalize_advantages:
        advantage = standardize(advantage, weight)
    return minibatches._replace(advantage=advantage, weight=shares(weight))


def explained_variance(batch: Batch) -> Array:
    """`1 - Var(target - V) / Var(target)` of the critic that saw the rollout; 0 where targets do not vary."""

    def variance(x):
        return weighted_mean(jnp.square(x - weighted_mean(x, batch.weight)), batch.weight)

    total = variance(batch.target)
    varies = total > 1e-12
    return jnp.where(varies, 1.0 - variance(batch.target - batch.value) / jnp.where(varies, total, 1.0), 0.0)


def shuffled(key: Key, size: int) -> Array:
    """The numbers below `size` in random order.

    Random bits with the number itself in the lowest places are sorted as plain integers: on a CPU several
    times as fast as `jax.random.permutation`, which took a fifth of an update. Two numbers whose random parts
    agree keep their order; where that would be frequent the slower way is taken.
    """
    places = max(size - 1, 1).bit_length()
    if places > 16:
        return jax.random.permutation(key, size)
    low = jnp.uint32(2**places - 1)
    tagged = (jax.random.bits(key, (size,), jnp.uint32) & ~low) | jnp.arange(size, dtype=jnp.uint32)
    return (jnp.sort(tagged) & low).astype(jnp.int32)


def _skips(policy: _Fit, value: _Fit, streak: Array) -> tuple[Metrics, Array]:
    """Steps that a network did not take: how many, the longest row of them, and the row that is not over yet."""
    run = jnp.arange(len(policy.record))[:, None] < policy.epochs
    taken = (policy.record[..., _TAKEN] > 0) & (value.record[..., _TAKEN] > 0)
    bad = jnp.cumsum((run & ~taken).ravel(), dtype=jnp.int32)  # so far
    good = jax.lax.cummax(jnp.where((run & taken).ravel(), bad, -streak))  # bad ones before the latest good one
    rows = bad - good
    return {"ppo/skipped": bad[-1], "ppo/skip_streak": jnp.max(rows), "ppo/epochs": policy.epochs}, rows[-1]


def _summary(policy: _Fit, value: _Fit, hypers: PPOHypers) -> Metrics:
    """Means over the steps taken of what each gradient step reported; NaN if none was."""
    metrics = {}
    for fit, names in ((policy, (*OF_POLICY, "ppo/grad_norm")), (value, OF_VALUE)):
        run = jnp.arange(len(fit.record))[:, None] < policy.epochs
        taken = run & (fit.record[..., _TAKEN] > 0)
        means = jnp.sum(jnp.where(taken[..., None], fit.record, 0.0), (0, 1)) / jnp.sum(taken)
        metrics |= dict(zip(names, means, strict=False))
    metrics["ppo/first_log_ratio"] = policy.record[0, 0, OF_POLICY.index("ppo/first_log_ratio")]
    loss = metrics["ppo/policy_loss"] + hypers.value_coef * metrics["ppo/value_loss"]
    return metrics | {"ppo/loss": loss - hypers.entropy_coef * metrics["ppo/entropy"]}
