"""Circle: run counter-clockwise near a radius of 1.5, between walls that nobody feels but that cost."""

import jax.numpy as jnp

from riskppo_jax.envs.navigation.tables import WALL_AT
from riskppo_jax.envs.navigation.view import View
from riskppo_jax.types import Array

RADIUS = 1.5
WEIGHT = 0.1


def reward(view: View) -> Array:
    """Speed along the circle, less the further from it."""
    (x, y), (u, v) = view.position[:2], view.velocity
    radius = jnp.sqrt(x**2 + y**2)
    along = (x * v - y * u) / jnp.where(radius > 0, radius, 1.0)
    return WEIGHT * along / (1.0 + jnp.abs(radius - RADIUS))


def beyond(view: View, axes: tuple[int, ...]) -> Array:
    """How far outside the walls the robot is; negative inside."""
    return jnp.max(jnp.abs(view.position[jnp.array(axes)])) - WALL_AT
