"""PPO's losses over a minibatch: the policy's with its entropy, and the critic's. They share no weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from riskppo_jax.config import Layout, PPOHypers
from riskppo_jax.nets import Networks, Params
from riskppo_jax.types import Array, ArrayLike

OF_POLICY = ("ppo/policy_loss", "ppo/entropy", "ppo/approx_kl", "ppo/clip_fraction", "ppo/first_log_ratio")
OF_VALUE = ("ppo/value_loss",)  # what the two losses log: means over a minibatch
ROUNDING = 1e-5  # relative; some eighty units in the last place of a float32


class Batch(NamedTuple):
    """What a gradient step sees of a transition; fields lead with the same axis, `[B, ...]`."""

    obs: Array  # normalised
    action: Array
    log_prob: Array  # under the policy that acted
    value: Array  # under the critic of that time
    advantage: Array
    target: Array  # what the critic is to predict
    weight: Array  # 1 counts, 0 does not; as `shares` in a minibatch


def clipped_surrogate(log_ratio: Array, advantage: Array, clip: ArrayLike) -> Array:
    """`max(-w A, -clip(w, 1 - clip, 1 + clip) A)` with `w = exp(log_ratio)`, a loss per sample."""
    ratio = jnp.exp(log_ratio)
    return jnp.maximum(-ratio * advantage, -jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def log_ratio(log_prob: Array, acting: Array) -> Array:
    """`log_prob - acting`, and exactly 0 where the two agree up to rounding; the gradient is that of `log_prob`.

    XLA rounds a log-probability differently where its gradient is taken as well, by a few units in the last
    place. Such a difference says nothing about the policy, and weights that have not moved have ratio 1.
    """
    same = jnp.abs(log_prob - acting) <= ROUNDING * jnp.maximum(1.0, jnp.abs(acting))
    return log_prob - jnp.where(same, jax.lax.stop_gradient(log_prob), acting)


def value_error(value: Array, target: Array, huber: ArrayLike = jnp.inf) -> Array:
    """`e^2 / 2` per sample with `e = V - target`, and `huber (|e| - huber / 2)` where the error is larger than that."""
    size = jnp.abs(value - target)
    near = jnp.minimum(size, huber)
    return near * (size - 0.5 * near)


def clipped_value_error(
    value: Array, old_value: Array, target: Array, clip: ArrayLike, huber: ArrayLike = jnp.inf
) -> Array:
    """The larger of the errors of `V` and of `V` held within `clip` of what it was."""
    held = old_value + jnp.clip(value - old_value, -clip, clip)
    return jnp.maximum(value_error(value, target, huber), value_error(held, target, huber))


def weighted_mean(x: Array, weight: Array) -> Array:
    """`sum(weight x) / sum(weight)` over the last axis, 0 where all weights are 0."""
    return jnp.sum(weight * x, -1) / jnp.maximum(jnp.sum(weight, -1), 1.0)


def shares(weight: Array) -> Array:
    """Weights over the last axis that sum to 1, or are all 0."""
    return weight / jnp.maximum(jnp.sum(weight, -1, keepdims=True), 1.0)


def standardize(x: Array, weight: Array) -> Array:
    """`(x - mean) / (sd + 1e-8)` over the last axis, of the samples that count."""
    centred = x - weighted_mean(x, weight)[..., None]
    return centred / (jnp.sqrt(weighted_mean(centred * centred, weight)[..., None]) + 1e-8)


def policy_loss(params: Params, batch: Batch, networks: Networks, hypers: PPOHypers) -> tuple[Array, Array]:
    """`clipped surrogate - entropy_coef * entropy` over a minibatch, and `OF_POLICY` of it.

    Means are products with the batch's shares, and what is logged is one of them: with networks this small an
    operation costs as much as what it computes.
    """
    law = networks.policy(params, batch.obs)
    log_w = log_ratio(law.log_prob(batch.action), batch.log_prob)
    policy = clipped_surrogate(log_w, batch.advantage, hypers.clip)
    entropy = law.entropy()
    loss = (policy - hypers.entropy_coef * entropy) @ batch.weight

    ratio = jnp.exp(log_w)
    clipped = (jnp.abs(ratio - 1.0) > hypers.clip) * 1.0
    logged = jnp.stack([policy, entropy, ratio - 1.0 - log_w, clipped, jnp.abs(log_w)])
    return loss, jax.lax.stop_gradient(logged) @ batch.weight


def value_loss(
    params: Params, batch: Batch, networks: Networks, hypers: PPOHypers, layout: Layout
) -> tuple[Array, Array]:
    """`value_coef *` the critic's error over a minibatch, and `OF_VALUE` of it."""
    value = networks.value(params, batch.obs)
    if layout.clip_value_loss:
        error = clipped_value_error(value, batch.value, batch.target, hypers.value_clip, hypers.value_huber)
    else:
        error = value_error(value, batch.target, hypers.value_huber)
    error = error @ batch.weight
    return hypers.value_coef * error, jax.lax.stop_gradient(error)[None]
