"""The closed-form motion of a body in the plane: no contacts, no solver, any device.

It serves models of one shape: a body on two slides and a hinge, pushed along its own axis by a motor and turned by a
velocity servo, with linear damping and nothing to touch. One physics step is MuJoCo's semi-implicit Euler step
written out: forces from the old state, damping at the end of the step, positions with the new velocity.
"""

import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct

from riskppo_jax.engines.base import Sim, Track
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array

_SENSORS = ("ACCELEROMETER", "VELOCIMETER", "GYRO", "MAGNETOMETER")


@struct.dataclass
class Planar:
    """Place and yaw, and how fast they change."""

    qpos: Array  # [3]
    qvel: Array  # [3]


class AnalyticEngine:
    """See `Engine`. `carry` is a `Planar`; fields are `qpos`, `qvel` and `sensordata`."""

    name = "analytic"

    def __init__(
        self, model: mujoco.MjModel, frame_skip: int, fields: tuple[str, ...], track: Track | None, settle: bool
    ):
        if not _suits(model) or track is not None or not settle or not {*fields} <= {"qpos", "qvel", "sensordata"}:
            raise UserError("engine=analytic: serves one body in the plane with nothing to touch; accepts such models")
        self.model = model
        self.dt = model.opt.timestep * frame_skip
        self._substeps = frame_skip
        self._fields = fields
        self._h = float(model.opt.timestep)
        self._mass, self._arm = float(model.body_mass[1]), float(model.body_ipos[1, 0])
        self._inertia = float(model.dof_M0[2])
        self._drag, self._spin_drag = float(model.dof_damping[0]), float(model.dof_damping[2])
        self._gear = model.actuator_gear[:, 0].tolist()
        self._command = model.actuator_ctrlrange.tolist()
        self._force = model.actuator_forcerange.tolist()
        self._field, self._weight = model.opt.magnetic.tolist(), -float(model.opt.gravity[2])

    def init(self, qpos: Array, qvel: Array, mocap: Array | None = None, where: Array | bool = True) -> Sim:
        del mocap, where
        carry = Planar(qpos=jnp.asarray(qpos, float), qvel=jnp.asarray(qvel, float))
        return Sim(carry=carry, derived=self._derive(carry, jnp.zeros(2)))

    def step(self, sim: Sim, ctrl: Array, mocap: Array | None = None) -> Sim:
        del mocap
        ctrl = jnp.asarray(ctrl, float)
        carry, lost = sim.carry, jnp.zeros(3)
        for _ in range(self._substeps):
            carry, lost = self._move(carry, ctrl, lost)
        return Sim(carry=carry, derived=self._derive(carry, ctrl))

    def poses(self, carry: Planar) -> tuple[np.ndarray, np.ndarray]:
        """See `Engine`."""
        return np.asarray(carry.qpos, np.float64), np.zeros((0, 7))

    def _move(self, carry: Planar, ctrl: Array, lost: Array) -> tuple[Planar, Array]:
        """One physics step; what rounding takes from the velocity is given back in the next."""
        gain = self._h * self._accelerate(carry, ctrl, self._h) + lost
        qvel = carry.qvel + gain
        return Planar(qpos=carry.qpos + self._h * qvel, qvel=qvel), gain - (qvel - carry.qvel)

    def _accelerate(self, carry: Planar, ctrl: Array, ahead: float) -> Array:
        """Acceleration `[3]` with damping taken `ahead` seconds later.

        With lever `l = m c`, angle `q` and its acceleration `w` the equations of motion are `m x'' - l sin(q) w = X`,
        `m y'' + l cos(q) w = Y` and `J w - l sin(q) x'' + l cos(q) y'' = T`; the first two go into the third, where
        only the drag across the body is left of `X` and `Y`.
        """
        u, v, spin = carry.qvel
        c, s = jnp.cos(carry.qpos[2]), jnp.sin(carry.qpos[2])
        push, turn = self._forces(spin, ctrl)
        lever = self._mass * self._arm
        mass = self._mass + ahead * self._drag
        inertia = self._inertia + ahead * self._spin_drag - lever**2 / mass
        across = self._drag * (c * v - s * u)
        turning = (turn - self._spin_drag * spin + (lever / mass) * across) / inertia
        outward = push + lever * spin**2
        x = outward * c - self._drag * u + lever * s * turning
        y = outward * s - self._drag * v - lever * c * turning
        return jnp.stack([x / mass, y / mass, turning])

    def _forces(self, spin: Array, ctrl: Array) -> tuple[Array, Array]:
        """Force along the body and torque about it."""
        command = [jnp.clip(ctrl[i], *self._command[i]) for i in range(2)]
        command[1] = command[1] - self._gear[1] * spin  # a servo on speed, seen through its gear
        return tuple(self._gear[i] * jnp.clip(command[i], *self._force[i]) for i in range(2))

    def _derive(self, carry: Planar, ctrl: Array) -> dict[str, Array]:
        sound = jnp.all(jnp.isfinite(carry.qpos)) & jnp.all(jnp.isfinite(carry.qvel))
        found = {"qpos": carry.qpos, "qvel": carry.qvel, "sensordata": self._sense(carry, ctrl)}
        return {name: jnp.where(sound, found[name], jnp.nan) for name in self._fields}

    def _sense(self, carry: Planar, ctrl: Array) -> Array:
        acceleration = self._accelerate(carry, ctrl, 0.0)
        c, s = jnp.cos(carry.qpos[2]), jnp.sin(carry.qpos[2])
        inward = lambda x, y: (c * x + s * y, c * y - s * x)  # noqa: E731
        zero = jnp.zeros_like(c)
        readings = (
            *inward(*acceleration[:2]), zero + self._weight, *inward(*carry.qvel[:2]), zero, zero, zero, carry.qvel[2],
            *inward(*self._field[:2]), zero + self._field[2],
        )  # fmt: skip
        return jnp.stack(readings)


def _suits(model: mujoco.MjModel) -> bool:
    """Whether a model has the one shape that is written out here."""
    joints = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE
    sensors = [int(getattr(mujoco.mjtSensor, f"mjSENS_{name}")) for name in _SENSORS]
    return (
        model.nq == 3
        and model.nu == 2
        and model.nmocap == 0
        and tuple(model.jnt_type) == tuple(map(int, joints))
        and model.dof_damping[0] == model.dof_damping[1]
        and model.sensor_type.tolist() == sensors
        and model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER
    )
