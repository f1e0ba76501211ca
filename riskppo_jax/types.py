"""Names for the shapes that travel through the package."""

from typing import Any

import jax
from jax.typing import ArrayLike

Array = jax.Array
Key = jax.Array  # a typed key, from `jax.random.key`
Metrics = dict[str, Array]  # every name is `area/quantity`
PyTree = Any

__all__ = ["Array", "ArrayLike", "Key", "Metrics", "PyTree"]
