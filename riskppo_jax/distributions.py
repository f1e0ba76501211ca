"""The two laws an action can follow; the only module that knows distrax."""

import distrax
import jax
import jax.numpy as jnp

from riskppo_jax.types import Array, ArrayLike, Key

Distribution = distrax.Distribution

__all__ = ["Distribution", "categorical", "normal", "remembering", "with_noise"]


def normal(mean: Array, log_std: Array) -> Distribution:
    """Independent Gaussians, one per action: `mean` is `[..., action]`, `log_std` is `[action]`.

    `log_prob` and `entropy` are summed over the actions; `mode` is the mean.
    """
    return distrax.Independent(distrax.LogStddevNormal(mean, log_std), reinterpreted_batch_ndims=1)


def categorical(logits: Array) -> Distribution:
    """One of `logits.shape[-1]` actions; samples are integers of shape `[...]`, `mode` is the likeliest."""
    return distrax.Categorical(logits=logits)


def with_noise(law: Distribution, noise: Array) -> Array:
    """`mean + std * noise` of a law by `normal`: a sample of it where `noise` is standard normal."""
    return law.mode() + law.distribution.stddev() * noise


def remembering(key: Key, memory: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Standard normal noise `[T, ...]` that correlates by `memory` from one step to the next.

    `e' = memory e + sqrt(1 - memory^2) xi`: every step has the law it would have alone, so a policy's probabilities and
    its entropy are what they were, but `T` steps go further than a random walk.
    """
    key_first, key_rest = jax.random.split(key)
    first, rest = jax.random.normal(key_first, shape[1:]), jax.random.normal(key_rest, shape)

    def step(noise: Array, fresh: Array) -> tuple[Array, Array]:
        noise = memory * noise + jnp.sqrt(1.0 - memory**2) * fresh
        return noise, noise

    return jax.lax.scan(step, first, rest)[1]
