"""Generalised advantage estimation that keeps the two ways an episode can stop apart."""

import chex
import jax
import jax.numpy as jnp

from riskppo_jax.types import Array, ArrayLike


def gae(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: ArrayLike,
    gae_lambda: ArrayLike,
    valid: Array | None = None,
) -> tuple[Array, Array]:
    """Advantages and value targets, `[T, N]` each.

        delta_k = r_k + gamma (1 - terminated_k) V(s'_k) - V(s_k)
        A_k     = delta_k + gamma gae_lambda (1 - terminated_k) (1 - truncated_k) A_{k+1}

    A termination has no value beyond; a truncation is worth what its last observation promises, since `s'_k`
    is the successor before any auto-reset; no advantage crosses either border.

    Args:
      reward: `[T, N]`, as the policy is to see it.
      value: `V(s_k)`.
      next_value: `V(s'_k)`; ignored, and may be non-finite, where the episode terminated.
      terminated: the task ended.
      truncated: the clock ended.
      gamma: discount.
      gae_lambda: 0 trusts the values, 1 the rewards.
      valid: False where a step tells nothing: its advantage is 0, its target its own value, and the step
        before it bootstraps from that value.

    Returns:
      Advantages and targets `A + V(s)`.
    """
    chex.assert_rank(reward, 2)
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = jnp.where(terminated | truncated, 0.0, gamma * gae_lambda)
    if valid is not None:
        delta = jnp.where(valid, delta, 0.0)
        decay = jnp.where(valid, decay, 0.0)

    def backward(advantage, step):
        delta, decay = step
        advantage = delta + decay * advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantage, advantage + value
