"""What the rules of a task look at: where everything is, how it moves, who touches whom."""

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from riskppo_jax.envs.navigation.robots import Robot
from riskppo_jax.envs.navigation.tables import Task
from riskppo_jax.envs.navigation.world import felt, robot_width
from riskppo_jax.types import Array

if TYPE_CHECKING:
    import mujoco


class View(NamedTuple):
    """One moment of one world, in world coordinates."""

    position: Array  # [3], of the robot's body
    turn: Array  # [3, 3], robot frame to world
    velocity: Array  # [2], of the robot's body
    places: dict[str, Array]  # kind -> [object, 3], centres
    speeds: dict[str, Array]  # kind -> [object], of what can be pushed
    touched: dict[str, Array]  # kind -> [object], whether the robot touches it
    sensors: Array  # the robot's part of the observation

    def distance(self, kind: str) -> Array:
        """Horizontal distances of the robot to all objects of a kind."""
        away = self.places[kind][:, :2] - self.position[:2]
        return jnp.sqrt(jnp.sum(away**2, axis=-1))


class Reader:
    """Turns what an engine leaves behind into a `View`."""

    fields = ("qpos", "qvel", "sensordata")

    def __init__(self, robot: Robot, task: Task, model: "mujoco.MjModel"):
        self._robot = robot
        nq, nv = robot_width(robot)
        self._moving = []  # kind, first number in qpos and qvel, count
        for kind in (*(k for k in task.kinds if k.role == "free"), *(k for k in task.kinds if k.role == "driven")):
            self._moving.append((kind.name, nq, nv, kind.count))
            nq, nv = nq + 7 * kind.count, nv + 6 * kind.count
        self._standing, row = [], 0  # kind, rows of the layout, height
        for kind in task.kinds:
            if kind.role not in ("free", "driven"):
                self._standing.append((kind.name, row, row + kind.count, kind.shape.height))
            row += kind.count
        self._touch = _touch_columns(task, model)

    def read(self, derived: dict[str, Array], layout: Array) -> View:
        """The view of a world whose layout, without the robot, is `[object, 2]`."""
        qpos, qvel, sensordata = (derived[name] for name in self.fields)
        places, speeds, touched = {}, {}, {}
        for name, start, stop, height in self._standing:
            spots = layout[start:stop]
            places[name] = jnp.concatenate([spots, jnp.full((stop - start, 1), height, spots.dtype)], axis=1)
        for name, q, v, count in self._moving:
            places[name] = qpos[q : q + 7 * count].reshape(count, 7)[:, :3]
            linear = qvel[v : v + 6 * count].reshape(count, 6)[:, :3]
            speeds[name] = jnp.sqrt(jnp.sum(linear**2, axis=-1))
        for name, columns in self._touch.items():
            touched[name] = jnp.any(sensordata[columns] > 0, axis=1)
        position, turn = self._pose(qpos)
        return View(position, turn, qvel[:2], places, speeds, touched, self._sense(sensordata))

    def _pose(self, qpos: Array) -> tuple[Array, Array]:
        if not self._robot.planar:
            return qpos[:3], rotation(qpos[3:7])
        c, s, zero, one = jnp.cos(qpos[2]), jnp.sin(qpos[2]), jnp.zeros_like(qpos[2]), jnp.ones_like(qpos[2])
        turn = jnp.stack([c, -s, zero, s, c, zero, zero, zero, one]).reshape(3, 3)
        return jnp.stack([qpos[0], qpos[1], jnp.full_like(qpos[0], self._robot.height)]), turn

    def _sense(self, sensordata: Array) -> Array:
        parts, start = [], 0
        for sensor in self._robot.sensors:
            value = sensordata[start : start + sensor.size]
            start += sensor.size
            if sensor.form == "height":
                value = value[2:]
            elif sensor.form == "angle":
                value = jnp.concatenate([jnp.sin(value), jnp.cos(value)])
            elif sensor.form == "turn":
                value = rotation(value).reshape(-1)
            parts.append(value)
        return jnp.concatenate(parts)


def rotation(quat: Array) -> Array:
    """Matrix of a quaternion, which need not have unit length."""
    w, x, y, z = quat / jnp.sqrt(jnp.sum(quat**2))
    return jnp.stack([
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]).reshape(3, 3)  # fmt: skip


def _touch_columns(task: Task, model: "mujoco.MjModel") -> dict[str, np.ndarray]:
    """Kind -> [object, geom pair], where its touch sensors write."""
    names = {model.sensor(i).name: int(model.sensor_adr[i]) for i in range(model.nsensor)}
    found: dict[str, list] = {}
    for thing in felt(task):
        ends = tuple(f" {geom}" for geom in thing.geoms)
        columns = [at for name, at in names.items() if name.startswith("touch ") and name.endswith(ends)]
        found.setdefault(thing.kind, []).append(columns)
    return {kind: np.array(rows) for kind, rows in found.items()}
