"""Push: shove the yellow box onto the green cylinder. Distances are between centres, in three dimensions."""

import jax.numpy as jnp

from riskppo_jax.envs.navigation.view import View
from riskppo_jax.types import Array

REACHED = 0.3
Memory = dict[str, Array]


def remember(view: View) -> Memory:
    """Distances of robot to box and of box to goal."""
    box = view.places["push_box"][0]
    return {"last_box": _length(box - view.position), "last_goal": _length(box - view.places["goal"][0])}


def judge(view: View, memory: Memory) -> tuple[Array, Array]:
    """Reward for both distances shrinking, with 1 more when the box is there, and whether it is."""
    now = remember(view)
    reached = now["last_goal"] <= REACHED
    progress = (memory["last_box"] - now["last_box"]) + (memory["last_goal"] - now["last_goal"])
    return progress + jnp.where(reached, 1.0, 0.0), reached


def _length(vector: Array) -> Array:
    return jnp.sqrt(jnp.sum(vector**2))
