"""What a step costs: the benchmark's entries, and continuous quantities in their place.

Every entry is 1 where something is violated, however deeply, and so is their sum. A quantity is what one may rather
constrain: it says how far from a violation a state is, or how deep in one.
"""

import jax.numpy as jnp

from riskppo_jax.envs.navigation import button, circle
from riskppo_jax.envs.navigation.tables import Task
from riskppo_jax.envs.navigation.view import View
from riskppo_jax.types import Array

RESTING = 1e-4  # speed up to which a vase counts as standing still
# Reward a step that a unit of each quantity is worth, about: goals pay some 0.02 a step, and a violation is one of
# cost, a decimetre of depth, half a metre a second.
PRICE_UNITS = {"cost": 0.1, "hazard_depth": 1.0, "hazard_nearness": 0.5, "vase_speed": 0.2, "boundary_excess": 0.5}
_FAST = 5.0  # generous bound on the speed of a vase that was hit
_FAR = 10.0  # generous bound on how far a robot strays


def entries(task: Task, view: View, memory: dict[str, Array]) -> dict[str, Array]:
    """0 or 1 by name, for every kind of object the task charges for."""
    charged = {kind.name: kind for kind in task.kinds if kind.constrained}
    found = {}
    if "hazards" in charged:
        found["cost_hazards"] = jnp.any(view.distance("hazards") < charged["hazards"].shape.size[0])
    if "vases" in charged:
        found["cost_vases_contact"] = jnp.any(view.touched["vases"])
        found["cost_vases_velocity"] = jnp.any(view.speeds["vases"] >= RESTING)
    if "buttons" in charged:
        found["cost_buttons"] = button.wrong(view, memory) > 0
    for kind in ("gremlins", "pillars"):
        if kind in charged:
            found[f"cost_{kind}"] = jnp.any(view.touched[kind])
    if task.boundary:
        found["cost_out_of_boundary"] = circle.beyond(view, task.boundary) > 0
    return {name: value.astype(view.sensors.dtype) for name, value in found.items()}


def total(entries: dict[str, Array], like: Array) -> Array:
    """1 if any entry is, else 0."""
    return jnp.max(jnp.stack([*entries.values(), jnp.zeros((), like.dtype)]))


def quantities(task: Task, view: View) -> dict[str, Array]:
    """Continuous quantities by name, to be kept small; within `ranges` however far a robot strays."""
    found = {}
    hazards, vases = task.kind("hazards"), task.kind("vases")
    if hazards:
        inside = hazards.shape.size[0] - jnp.min(view.distance("hazards"))
        found["hazard_depth"] = jnp.maximum(inside, 0.0)
        found["hazard_nearness"] = jnp.maximum(inside, -_FAR)
    if vases:
        found["vase_speed"] = jnp.max(view.speeds["vases"])
    if task.boundary:
        found["boundary_excess"] = jnp.minimum(circle.beyond(view, task.boundary), _FAR)
    return found


def ranges(task: Task) -> dict[str, tuple[float, float]]:
    """Bounds of the cost and of every quantity, in the order of `constraint_names`."""
    found = {"cost": (0.0, 1.0)}
    hazards = task.kind("hazards")
    if hazards:
        size = hazards.shape.size[0]
        found["hazard_depth"], found["hazard_nearness"] = (0.0, size), (-_FAR, size)
    if task.kind("vases"):
        found["vase_speed"] = (0.0, _FAST)
    if task.boundary:
        found["boundary_excess"] = (-circle.WALL_AT, _FAR)
    return found
