"""Goal: come near the green cylinder; another appears elsewhere."""

import jax.numpy as jnp

from riskppo_jax.envs.navigation.view import View
from riskppo_jax.types import Array

REACHED = 0.3
Memory = dict[str, Array]


def remember(view: View) -> Memory:
    """The distance the next step's progress is measured from."""
    return {"last": view.distance("goal")[0]}


def judge(view: View, memory: Memory) -> tuple[Array, Array]:
    """Reward for coming nearer, with 1 more for arriving, and whether the goal is reached."""
    distance = view.distance("goal")[0]
    reached = distance <= REACHED
    return memory["last"] - distance + jnp.where(reached, 1.0, 0.0), reached
