"""The two laws an action can follow; the only module that knows distrax."""

import distrax

from riskppo_jax.types import Array

Distribution = distrax.Distribution

__all__ = ["Distribution", "categorical", "normal"]


def normal(mean: Array, log_std: Array) -> Distribution:
    """Independent Gaussians, one per action: `mean` is `[..., action]`, `log_std` is `[action]`.

    `log_prob` and `entropy` are summed over the actions; `mode` is the mean.
    """
    return distrax.Independent(distrax.LogStddevNormal(mean, log_std), reinterpreted_batch_ndims=1)


def categorical(logits: Array) -> Distribution:
    """One of `logits.shape[-1]` actions; samples are integers of shape `[...]`, `mode` is the likeliest."""
    return distrax.Categorical(logits=logits)
