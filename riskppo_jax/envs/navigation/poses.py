"""Where bodies are put: the joints of everything that moves at a reset, and the targets that gremlins follow."""

import jax
import jax.numpy as jnp

from riskppo_jax.envs.navigation.robots import Robot
from riskppo_jax.envs.navigation.tables import TRAVEL, Task
from riskppo_jax.types import Array, Key

_RISE = 0.1  # how far above its start a gremlin is pulled


def first_qpos(robot: Robot, task: Task, spot: Array, yaws: Array, layout: Array, key: Key) -> Array:
    """`qpos` at a reset: the robot upright, everything else that moves where the layout has it.

    Args:
      spot: [2], of the robot; yaws: [1 + object], of the robot and of free and driven objects.
      layout: [object, 2], of all objects.
    """
    if robot.planar:
        parts = [spot, yaws[:1]]
    else:
        posture = jnp.asarray(robot.posture or (0.0,) * robot.joints, float)
        if robot.wobble:
            posture += jax.random.uniform(key, posture.shape, minval=-robot.wobble, maxval=robot.wobble)
        parts = [spot, jnp.full((1,), robot.height), upright(yaws[0]), posture]
    at = 1
    for role in ("free", "driven"):
        row = 0
        for kind in task.kinds:
            if kind.role == role:
                spots = _lift(layout[row : row + kind.count], kind.shape.height)
                turned = jax.vmap(upright)(yaws[at : at + kind.count])
                parts.append(jnp.concatenate([spots, turned], axis=1).reshape(-1))
                at += kind.count
            row += kind.count
    return jnp.concatenate(parts)


def mocap_path(task: Task, layout: Array, yaws: Array, ticks: Array, timestep: float) -> Array:
    """Poses `[tick, mocap, 7]` of all mocap bodies, targets of gremlins first; before tick 0 nothing has moved.

    A gremlin's target carries the offset that the original keeps in the tie between the two, so that one model
    serves all layouts.
    """
    driven, posts, row = [], [], 0
    for kind in task.kinds:
        spots = layout[row : row + kind.count]
        row += kind.count
        if kind.role == "driven":
            driven.append(_lift(spots, kind.shape.height))
        elif kind.role == "post":
            posts.append(_lift(spots, kind.shape.height))
    still = jnp.concatenate([*driven, *posts])
    turned = jax.vmap(upright)(jnp.concatenate([yaws, jnp.zeros(len(still) - len(yaws))]))
    poses = jnp.concatenate([still, turned], axis=1)
    time = ticks * timestep
    swing = jnp.stack([TRAVEL * jnp.sin(time), TRAVEL * jnp.cos(time), jnp.full_like(time, _RISE)], axis=1)
    moving = (jnp.arange(len(still)) < len(yaws)) & (ticks >= 0)[:, None]
    shift = jnp.where(moving[..., None], swing[:, None, :], 0.0)
    return jnp.broadcast_to(poses, (len(time), *poses.shape)).at[..., :3].add(shift)


def upright(yaw: Array) -> Array:
    """Quaternion of a turn about the vertical."""
    zero = jnp.zeros_like(yaw)
    return jnp.stack([jnp.cos(yaw / 2), zero, zero, jnp.sin(yaw / 2)])


def _lift(spots: Array, height: float) -> Array:
    return jnp.concatenate([spots, jnp.full((len(spots), 1), height, spots.dtype)], axis=1)
