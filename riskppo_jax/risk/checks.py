"""Refusing bad input: an error when values are known, NaN when they are traced, never a plausible number."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, ArrayLike


def is_concrete(*values: ArrayLike) -> bool:
    """Whether every value is known now, rather than traced by `jit`, `vmap` or `grad`."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)


def parameter(name: str, value: ArrayLike, accepts: Callable[[ArrayLike], ArrayLike], described: str) -> ArrayLike:
    """`value` if `accepts(value)`; otherwise an error naming what is accepted, or NaN where it is traced."""
    if is_concrete(value):
        try:
            known = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            raise UserError(f"{name}: expected a number in {described}, got {value!r}") from None
        if known.size == 0 or not np.all(accepts(known)):
            raise UserError(f"{name}={_show(known)}: accepts {described}")
        return value if isinstance(value, jax.Array | float) else known if known.ndim else float(known)
    value = jnp.asarray(value)
    return jnp.where(accepts(value), value, jnp.nan)


def samples(x: ArrayLike, weights: ArrayLike | None) -> tuple[Array, Array, Array]:
    """Flat samples, their probabilities, and whether both make sense.

    Samples of weight zero are replaced by one that counts, so that what they held (padding, NaN) is inert.

    Args:
      x: samples, any shape.
      weights: non-negative masses, of the shape of `x` or one that broadcasts to it; None for equal ones.

    Returns:
      `x` and probabilities, both flat, and a boolean scalar that is False where a traced input is unusable.
    """
    x = jnp.asarray(x)
    shape, real = x.shape, jnp.issubdtype(x.dtype, jnp.floating)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32) if real else jnp.result_type(float)).ravel()
    if x.size == 0:
        raise UserError("samples: got none, accepts at least one")
    if weights is None:
        p = jnp.full(x.shape, 1.0 / x.size, x.dtype)
        valid = jnp.all(jnp.isfinite(x))
        problem = "samples: accepts finite numbers, got NaN or infinity"
    else:
        w = jnp.asarray(weights)
        try:
            w = jnp.broadcast_to(w, shape).ravel().astype(x.dtype)
        except ValueError:
            raise UserError(f"weights: shape {w.shape} for samples {shape}; accepts one for each") from None
        total = jnp.sum(w)
        p = w / total
        counts = p > 0
        valid = jnp.all(w >= 0) & (total > 0) & jnp.isfinite(total) & jnp.all(jnp.isfinite(x) | ~counts)
        problem = "weights: accepts finite, non-negative numbers with a positive sum, on finite samples"
        p = jnp.where(counts, p, 0)
        x = jnp.where(counts, x, jnp.max(jnp.where(counts, x, -jnp.inf)))
    if is_concrete(valid) and not bool(valid):
        raise UserError(problem)
    return x, p, valid


def _show(known: np.ndarray) -> str:
    return f"{float(known):g}" if known.ndim == 0 else np.array2string(known, threshold=8)
