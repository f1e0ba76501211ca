"""Small functions of whole pytrees of arrays."""

import jax
import jax.numpy as jnp

from riskppo_jax.types import Array, PyTree


def where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` where the condition holds, leaf by leaf, else `old`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def blend(old: PyTree, new: PyTree, share: Array) -> PyTree:
    """`(1 - share) old + share new`; exactly `new` at a share of one."""
    return jax.tree.map(lambda a, b: jnp.where(share < 1.0, a + share * (b - a), b), old, new)


def all_finite(tree: PyTree) -> Array:
    """Whether no leaf has a NaN or an infinity."""
    return jnp.all(jnp.asarray([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def strong(x: Array) -> Array:
    """`x` without weak typing: the first state has the very types of all that follow, so one program serves."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jnp.asarray(x, x.dtype)
