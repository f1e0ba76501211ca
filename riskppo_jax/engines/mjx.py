"""MuJoCo in pure JAX: MJX, with its `jax` or its `warp` implementation.

Only what must survive a step is carried (a few hundred bytes); `mjx.Data`, tens of kilobytes, is rebuilt
inside.

Solver counts: at most 20 Newton iterations with 6 refinements of the step length each. Worlds stop on their
own when they have arrived, most after one or two, and a batch runs as long as its slowest world. Largest
error of an observation after one step, float32, against the original's records of 320 samples each:

    most Newton x refinements    20 x 6    12 x 10    8 x 6     4 x 4
    HalfCheetah                  9e-4
    Hopper                       3e-6      (3 x 3: the same)
    Swimmer                      4e-6
    Walker2d                     1e-4      9e-5       9e-5      1.6e-1 (4 samples did not converge)
    Ant                          2e-5      1e-5 (10 x 8)

What is left is rounding: all of it lies within 1e-4 + 20 times what rounding the inputs does to the original.
"""

from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct

from riskppo_jax.engines.base import Sim, Track
from riskppo_jax.engines.cache import enable_cache
from riskppo_jax.types import Array

with redirect_stdout(None):  # MJX prints a line for each part of Warp that is missing
    from mujoco import mjx
    from mujoco.mjx._src import sensor

    from riskppo_jax.engines import dynamics
    from riskppo_jax.engines.capsule import exact_capsules

NEWTON, SEARCHES = 20, 6  # at most, and in each of them
_CARRIED = ("time", "qpos", "qvel", "act", "qacc_warmstart")
_HUGE = 1e10  # MuJoCo's own idea of a number that has left the simulation
# fields that kinematics and velocities settle, without forces or contacts
_MOTION = {"xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat",
           "subtree_com", "cinert", "cvel"}  # fmt: skip


@struct.dataclass
class Carry:
    """State of one world: MuJoCo's integration state and the tracked point."""

    time: Array
    qpos: Array
    qvel: Array
    act: Array
    qacc_warmstart: Array
    mocap: Array  # [nmocap, 7]
    point: Array


class MjxEngine:
    """See `Engine`. `carry` is a `Carry` of float32 (float64 if JAX is so configured)."""

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int,
        fields: tuple[str, ...],
        track: Track | None,
        settle: bool,
        solver: Mapping[str, Any] | None,
        impl: str,
    ):
        enable_cache()
        self.name = "mjx" if impl == "jax" else impl
        self.dt = model.opt.timestep * frame_skip
        self.model = model
        self._substeps = frame_skip
        self._fields = fields
        self._track = track
        self._settle = settle
        solver = dict(solver or {})
        self._counts = solver.pop("newton", NEWTON), solver.pop("searches", SEARCHES)
        self._lean = impl == "jax" and dynamics.supports(model)
        self._mjx = mjx.put_model(_prepared(model, solver), impl=impl)
        self._blank = mjx.make_data(model if impl == "jax" else self._mjx, impl=impl)
        self._frames = exact_capsules if impl == "jax" else nullcontext
        self.contacts = len(self._blank._impl.contact.dist) if impl == "jax" else 0
        # one more physics step, of which only what it read at its start is kept, is a forward pass
        self._extra = settle and self._lean and model.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER

    def init(self, qpos: Array, qvel: Array, mocap: Array | None = None, where: Array | bool = True) -> Sim:
        del where  # lanes of an accelerator are not saved by idling
        blank = self._blank
        poses = jnp.concatenate([blank.mocap_pos, blank.mocap_quat], axis=-1) if mocap is None else mocap
        carry = Carry(
            time=jnp.zeros((), float), qpos=jnp.asarray(qpos, float), qvel=jnp.asarray(qvel, float), act=blank.act,
            qacc_warmstart=blank.qacc_warmstart, mocap=jnp.asarray(poses, float), point=jnp.zeros(0),
        )  # fmt: skip
        data = self._first(self._rebuild(carry))
        derived = self._derive(data, fresh=True)
        point = self._point(data)
        if self._track:
            derived["moved"] = jnp.zeros_like(point)
        return Sim(carry=carry.replace(point=point), derived=derived)

    def step(self, sim: Sim, ctrl: Array, mocap: Array | None = None) -> Sim:
        before = sim.carry
        ctrl = jnp.asarray(ctrl, float)
        shape = before.mocap.shape
        poses = jnp.broadcast_to(before.mocap if mocap is None else mocap, (self._substeps, *shape))
        if self._extra:
            poses = jnp.concatenate([poses, poses[-1:]])

        def substep(state, now):
            carry, lost = state
            pose, last = now
            data = self._rebuild(carry.replace(mocap=pose)).replace(ctrl=ctrl)
            data, (derived, point), lost = self._advance(data, last, lost)
            return (self._pack(data, pose, point), lost), derived

        last = np.arange(len(poses)) == len(poses) - 1
        lost = jnp.zeros_like(before.qvel) if self._extra else ()
        (after, _), derived = jax.lax.scan(substep, (before, lost), (poses, last))
        derived = jax.tree.map(lambda x: x[-1], derived)
        if self._track:
            derived["moved"] = after.point - before.point
        return self._guard(Sim(carry=after, derived=derived))

    def poses(self, carry: Carry) -> tuple[np.ndarray, np.ndarray]:
        """See `Engine`."""
        return np.asarray(carry.qpos, np.float64), np.asarray(carry.mocap, np.float64)

    def _rebuild(self, carry: Carry) -> mjx.Data:
        state = {name: getattr(carry, name) for name in _CARRIED}
        return self._blank.replace(**state, mocap_pos=carry.mocap[:, :3], mocap_quat=carry.mocap[:, 3:])

    def _first(self, data: mjx.Data) -> mjx.Data:
        """As much of a forward pass as the fields asked for need."""
        wanted = {*self._fields, self._track.field if self._track else "qpos"} - {*_CARRIED}
        if self.model.nu and not self.model.actuator_biastype.any() and not self.model.na:
            wanted -= {"qfrc_actuator"}  # zero, as the controls are
        if not wanted - {"cfrc_ext"}:
            return data
        if self.name == "mjx" and wanted <= {*_MOTION, "cfrc_ext"}:
            return mjx.com_vel(self._mjx, mjx.com_pos(self._mjx, mjx.kinematics(self._mjx, data)))
        with self._frames():
            return dynamics.forward(self._mjx, data, *self._counts) if self._lean else mjx.forward(self._mjx, data)

    def _advance(self, data: mjx.Data, last: Array, lost: Array | tuple) -> tuple[mjx.Data, tuple, Array | tuple]:
        """One physics step, with the derived fields and the tracked point it leaves behind.

        A settled engine gives velocities back what rounding took from them in the substeps before: a stiff servo
        would make much of it.
        """

        def read(now, final):
            return self._derive(now, last & final), self._point(now)

        with self._frames():
            if self._lean:
                moved, kept, left = dynamics.step(self._mjx, data, *self._counts, read, lost if self._extra else 0.0)
                if self._extra:
                    lost = left
                    stay = data.replace(qacc_warmstart=moved.qacc_warmstart)
                    moved = jax.tree.map(lambda here, there: jnp.where(last, here, there), stay, moved)
                data = moved
            else:
                data = mjx.step(self._mjx, data)
                kept = read(data, True)
            if self._settle and not self._extra:
                kept = jax.lax.cond(last, lambda: read(self._settled(data), True), lambda: kept)
        derived, point = kept
        state = {name: getattr(data, name).reshape(-1) for name in self._fields if name in _CARRIED}
        if self._track and self._track.field in _CARRIED:  # read before the step moved it on
            point = self._point(data)
        return data, ({**derived, **state}, point), lost

    def _settled(self, data: mjx.Data) -> mjx.Data:
        return dynamics.forward(self._mjx, data, *self._counts) if self._lean else mjx.forward(self._mjx, data)

    def _pack(self, data: mjx.Data, mocap: Array, point: Array) -> Carry:
        return Carry(**{name: getattr(data, name) for name in _CARRIED}, mocap=mocap, point=point)

    def _derive(self, data: mjx.Data, last: Array | bool = True, fresh: bool = False) -> dict[str, Array]:
        if "cfrc_ext" in self._fields and not fresh:
            post = lambda d: _read(mjx.rne_postconstraint(self._mjx, d), "cfrc_ext")  # noqa: E731
            forces = jax.lax.cond(last, post, lambda d: jnp.zeros_like(_read(d, "cfrc_ext")), data)
            data = data.tree_replace({"_impl.cfrc_ext": forces})
        if "sensordata" in self._fields and self._lean:
            silent = lambda d: jnp.zeros_like(d.sensordata)  # noqa: E731
            data = data.replace(sensordata=jax.lax.cond(last, self._sense, silent, data))
        return {name: _read(data, name).reshape(-1) for name in self._fields}

    def _sense(self, data: mjx.Data) -> Array:
        for stage in (sensor.sensor_pos, sensor.sensor_vel, sensor.sensor_acc):
            data = stage(self._mjx, data)
        return data.sensordata

    def _point(self, data: mjx.Data) -> Array:
        if self._track is None:
            return jnp.zeros(0)
        return _read(data, self._track.field).reshape(-1)[self._track.start : self._track.stop]

    def _guard(self, sim: Sim) -> Sim:
        """Spreads NaN over a world that left the simulation, as the native engine does."""
        carry = sim.carry
        sound = jnp.all(jnp.abs(jnp.concatenate([carry.qpos, carry.qvel, carry.qacc_warmstart])) < _HUGE)
        return jax.tree.map(lambda x: jnp.where(sound, x, jnp.nan), sim)


def _prepared(model: mujoco.MjModel, solver: Mapping[str, Any]) -> mujoco.MjModel:
    """A copy that MJX accepts, with the solver settings asked for."""
    model = copy(model)
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:  # MJX has Newton and CG
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    for name, value in solver.items():
        setattr(model.opt, name, value)
    return model


def _read(data: mjx.Data, name: str) -> Array:
    return getattr(data, name) if hasattr(data, name) else getattr(data._impl, name)
