"""Which iterate a run returns: the last, one drawn uniformly, the best feasible, or the average.

The theorem speaks of an iterate drawn uniformly; practice returns the last; where the optimum is a mixture of
policies only averages converge. All four are kept at once, at the cost of four copies of what is returned.
"""

import jax
import jax.numpy as jnp
from flax import struct

from riskppo_jax import trees
from riskppo_jax.types import Array, ArrayLike, Key, PyTree

CHOICES = ("last", "uniform", "best", "average")


@struct.dataclass
class Iterates:
    """The four candidates so far, of whatever pytree is to be returned."""

    last: PyTree
    uniform: PyTree
    best: PyTree
    average: PyTree
    best_objective: Array  # of the best feasible; while none is feasible, minus the violation counts
    best_violation: Array
    count: Array


def init(item: PyTree) -> Iterates:
    """Nothing seen yet; `item` gives the shapes."""
    infinity = jnp.asarray(jnp.inf)
    return Iterates(item, item, item, item, -infinity, infinity, jnp.zeros((), jnp.int32))


def update(
    seen: Iterates,
    item: PyTree,
    objective: ArrayLike,
    violation: ArrayLike,
    key: Key,
    tolerance: ArrayLike = 0.0,
    power: float = 3.0,
) -> Iterates:
    """Takes in the next iterate.

    Args:
      objective: its objective value.
      violation: its largest constraint violation; feasible means at most `tolerance`.
      key: decides whether it replaces the uniform draw, with probability 1/count.
      power: weight of the k-th iterate in the average grows like `k^power`, which forgets the start.
    """
    count = seen.count + 1
    violation = jnp.maximum(jnp.asarray(violation, seen.best_violation.dtype), tolerance)
    better = is_better(objective, violation, seen.best_objective, seen.best_violation)
    drawn = jax.random.uniform(key) * count < 1.0
    rate = (power + 1.0) / (count + power)

    return Iterates(
        last=item,
        uniform=trees.where(drawn, item, seen.uniform),
        best=trees.where(better, item, seen.best),
        average=jax.tree.map(lambda mean, new: mean + rate * (new - mean), seen.average, item),
        best_objective=jnp.where(better, objective, seen.best_objective),
        best_violation=jnp.where(better, violation, seen.best_violation),
        count=count,
    )


def is_better(objective: ArrayLike, violation: ArrayLike, best_objective: Array, best_violation: Array) -> Array:
    """Whether an iterate violates less than the best so far, or as little with a higher objective."""
    return (violation < best_violation) | ((violation == best_violation) & (objective > best_objective))
