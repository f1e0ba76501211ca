"""Estimates from a batch of visited steps: occupancy weights, means, quantiles, tails.

A batch is `[time, env]`. The law that risks are taken of is the law of the *steps* a policy visits, so an
episode that ends early contributes the steps it had, and nothing for those it missed.
"""

import jax
import jax.numpy as jnp

from riskppo_jax.risk.families import CVaR
from riskppo_jax.types import Array, ArrayLike


def weighted_mean(x: Array, weights: Array | None = None) -> Array:
    """`sum(w x) / sum(w)` over all leading axes that `weights` has; steps of weight zero may hold anything."""
    if weights is None:
        return jnp.mean(x)
    axes = tuple(range(weights.ndim))
    w = weights.reshape(weights.shape + (1,) * (x.ndim - weights.ndim))
    return jnp.sum(jnp.where(w > 0, w * x, 0.0), axes) / jnp.sum(weights)


def episode_steps(done: Array, start: ArrayLike = 0) -> Array:
    """Index of every step within its episode, `[time, env]`, the first being 0.

    Args:
      done: whether the episode ended with this step, `[time, env]`.
      start: index of the batch's first step in the episode it belongs to, `[env]` or a scalar.
    """

    def count(step, ended):
        return jnp.where(ended, 0, step + 1), step

    first = jnp.broadcast_to(jnp.asarray(start, jnp.int32), done.shape[1:])
    return jax.lax.scan(count, first, done)[1]


def occupancy_weights(done: Array, gamma: ArrayLike | None = None, start: ArrayLike = 0) -> Array:
    """Weights `[time, env]` under which a batch follows the occupancy measure; their sum is 1.

    Uniform over visited steps, or with `gamma` proportional to `gamma^step`: the discounted occupancy
    `(1 - gamma) sum_k gamma^k P(step k)`. Steps count from the earliest of the batch, which drops out of the ratio:
    deep in an episode without end `gamma^step` is 0 in every one.
    """
    if gamma is None:
        return jnp.full(done.shape, 1.0 / done.size)
    steps = episode_steps(done, start)
    weights = gamma ** (steps - jnp.min(steps))
    return weights / jnp.sum(weights)


def upper_quantile(v: ArrayLike, beta: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Value at risk: the level that `v` exceeds with probability at most `beta`, `-t*` of CVaR on `-v`."""
    return -CVaR(beta).t_star(-jnp.asarray(v), weights)


def upper_cvar(v: ArrayLike, beta: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Mean of the largest share `beta` of `v`."""
    return -CVaR(beta).value(-jnp.asarray(v), weights)
