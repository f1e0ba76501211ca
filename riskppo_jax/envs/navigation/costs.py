"""What a step costs: the benchmark's entries, and continuous quantities in their place.

Every entry is 1 where something is violated, however deeply, and so is their sum. A quantity is what one may rather
constrain: it says how far from a violation a state is, or how deep in one.
"""

import jax.numpy as jnp

from riskppo_jax.envs.navigation import button, circle
from riskppo_jax.envs.navigation.tables import Kind, Task
from riskppo_jax.envs.navigation.view import View
from riskppo_jax.types import Array

RESTING = 1e-4  # speed up to which a vase counts as standing still
# Reward a step that a unit of each quantity is worth, about: goals pay some 0.02 a step, and a violation is one of
# cost, a decimetre of depth, half a metre a second.
PRICE_UNITS = {
    "cost": 0.1, "nearness": 0.5, "hazard_depth": 1.0, "hazard_nearness": 0.5, "vase_speed": 0.2,
    "boundary_excess": 0.5,
}  # fmt: skip
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


def quantities(task: Task, view: View, memory: dict[str, Array], girth: float) -> dict[str, Array]:
    """Continuous quantities by name, to be kept small; within `ranges` however far a robot strays.

    `girth` is how far a robot reaches around its centre: where things that are felt may be touched.
    """
    found = {}
    charged = _charged(task)
    if charged:
        near = []
        for kind in charged:
            inside = _bound(kind, girth) - view.distance(kind.name)
            if kind.name == "buttons":
                inside = jnp.where(button.others(view, memory), inside, -_FAR)
            near.append(jnp.max(inside))
        found["nearness"] = jnp.maximum(jnp.max(jnp.stack(near)), -_FAR)
    hazards, vases = task.kind("hazards"), task.kind("vases")
    if hazards:
        inside = hazards.shape.size[0] - jnp.min(view.distance("hazards"))
        found["hazard_depth"] = jnp.maximum(inside, 0.0)
        found["hazard_nearness"] = jnp.maximum(inside, -_FAR)
    if vases:
        found["vase_speed"] = jnp.minimum(jnp.max(view.speeds["vases"]), _FAST)
    if task.boundary:
        found["boundary_excess"] = jnp.minimum(circle.beyond(view, task.boundary), _FAR)
    return found


def ranges(task: Task, girth: float) -> dict[str, tuple[float, float]]:
    """Bounds of the cost and of every quantity, in the order of `constraint_names`."""
    found = {"cost": (0.0, 1.0)}
    charged, hazards = _charged(task), task.kind("hazards")
    if charged:
        found["nearness"] = (-_FAR, max(_bound(kind, girth) for kind in charged))
    if hazards:
        size = hazards.shape.size[0]
        found["hazard_depth"], found["hazard_nearness"] = (0.0, size), (-_FAR, size)
    if task.kind("vases"):
        found["vase_speed"] = (0.0, _FAST)
    if task.boundary:
        found["boundary_excess"] = (-circle.WALL_AT, _FAR)
    return found


def _charged(task: Task) -> list[Kind]:
    return [kind for kind in task.kinds if kind.constrained and kind.count]


def _bound(kind: Kind, girth: float) -> float:
    """Distance of centres below which a kind costs, or, of what is felt, may be touched."""
    size = kind.shape.size[0]
    if kind.role == "zone":
        return size
    return girth + size * (2.0**0.5 if kind.shape.geom == "box" else 1.0)
