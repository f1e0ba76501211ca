"""The benchmark's lidar: sixteen sectors round the robot that know how near the nearest object of a kind is."""

import jax.numpy as jnp

from riskppo_jax.envs.navigation.tables import LIDAR_BINS
from riskppo_jax.types import Array


def lidar(position: Array, turn: Array, points: Array, reach: float) -> Array:
    """Nearness in each sector, `[LIDAR_BINS]`, between 0 (beyond `reach`) and 1 (here).

    A point also shows in the two sectors beside its own, by how far it stands to either side.

    Args:
      position: [3], of the robot; turn: [3, 3], robot frame to world.
      points: [object, 2], centres on the floor.
      reach: distance at which an object is out of sight.
    """
    away = jnp.concatenate([points - position[:2], jnp.full((len(points), 1), -1.0) * position[2]], axis=1)
    x, y = (away @ turn[:, :2]).T
    near = jnp.maximum(0.0, reach - jnp.sqrt(x**2 + y**2)) / reach
    sector = (jnp.arctan2(y, x) % (2 * jnp.pi)) * (LIDAR_BINS / (2 * jnp.pi))
    whole = jnp.floor(sector)
    beyond = sector - whole
    bins = jnp.arange(LIDAR_BINS)
    steps = (bins - whole.astype(jnp.int32)[:, None]) % LIDAR_BINS  # how many sectors further on
    share = jnp.where(steps == 0, 1.0, 0.0)
    share = jnp.where(steps == 1, beyond[:, None], share)
    share = jnp.where(steps == LIDAR_BINS - 1, 1.0 - beyond[:, None], share)
    return jnp.max(share * near[:, None], axis=0)
