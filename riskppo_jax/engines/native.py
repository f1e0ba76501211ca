"""MuJoCo's C engine inside a compiled program: one `mujoco.batch.Batch` call for the worlds of all axes.

MuJoCo computes in float64 and JAX by default in float32, so the state travels as raw 32-bit words: a rollout
equals a loop over `mujoco.mj_step` bit for bit. The host keeps buffers and threads between calls, never
state.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.batch import Batch, SimulationError

from riskppo_jax.cores import cores
from riskppo_jax.engines.base import Sim, Track
from riskppo_jax.engines.hostcall import host_call
from riskppo_jax.engines.models import quiet
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array

_CARRIED = ("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "mocap_pos", "mocap_quat")
_POST = {"cfrc_ext": mujoco.mj_rnePostConstraint}  # fields `mj_step` leaves stale, and what computes them
_BAD = [int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{what}")) for what in ("QPOS", "QVEL", "QACC", "CTRL")]
_MOCAP = int(mujoco.mjtState.mjSTATE_MOCAP_POS) | int(mujoco.mjtState.mjSTATE_MOCAP_QUAT)
_FEW_TREES = 2  # kinematic trees up to which constraints are solved in one piece
_SIZES_KEPT = 8  # batches of different sizes kept for reuse by one engine


class NativeEngine:
    """See `Engine`. `carry` is `uint32[words]`: MuJoCo's integration state, then the tracked point."""

    name = "native"

    def __init__(
        self,
        model: mujoco.MjModel,
        frame_skip: int,
        fields: tuple[str, ...],
        track: Track | None,
        settle: bool,
    ):
        self.dt = model.opt.timestep * frame_skip
        self.model = _in_one_piece(model)
        self._substeps = frame_skip
        self._settle = settle
        self._fields = fields
        self._track = track
        data = mujoco.MjData(model)
        self._shapes = {name: np.shape(getattr(data, name)) for name in fields}
        self._moved = track.stop - track.start if track else 0
        self._size = sum(map(prod, self._shapes.values())) + self._moved
        self._idle: OrderedDict[tuple[int, int], list[_Rows]] = OrderedDict()  # by worlds and threads, newest last
        self._door = threading.Lock()
        with self._room(1) as rows:
            self._carried = rows.carried + self._moved

    def init(self, qpos: Array, qvel: Array, mocap: Array | None = None, where: Array | bool = True) -> Sim:
        args = [jnp.asarray(qpos, float), jnp.asarray(qvel, float), jnp.asarray(where).reshape(1)]
        if mocap is not None:
            args.append(jnp.asarray(mocap, float).reshape(-1))
        return self._call(self._init_rows, args)

    def step(self, sim: Sim, ctrl: Array, mocap: Array | None = None) -> Sim:
        args = [sim.carry, jnp.asarray(ctrl, float)]
        if mocap is not None:
            args.append(jnp.asarray(mocap, float).reshape(-1))
        return self._call(self._step_rows, args)

    def _call(self, function, args) -> Sim:
        dtype = jax.dtypes.canonicalize_dtype(float)
        function = _OnThreads(function, _threads())
        carry, flat = host_call(function, [(2 * self._carried, np.uint32), (self._size, dtype)], *args)
        derived, start = {}, 0
        for name in self._fields:
            stop = start + prod(self._shapes[name])
            derived[name] = flat[start:stop]
            start = stop
        if self._track:
            derived["moved"] = flat[start:]
        return Sim(carry=carry, derived=derived)

    # What follows runs on the host, on `[world, size]` NumPy arrays.

    def _init_rows(self, threads, qpos, qvel, where, mocap=None):
        dtype = qpos.dtype
        with self._room(len(qpos), threads) as rows:
            ids = np.flatnonzero(where[:, 0]).astype(np.int32)
            rows.state[ids] = rows.default
            rows.fields["qpos"][ids] = qpos[ids]
            rows.fields["qvel"][ids] = qvel[ids]
            if mocap is not None:
                rows.set_mocap(mocap, ids)
            bad = self._guard(rows)
            rows.settle(bad, ids)
            return rows.read(bad, None, dtype, fresh=True)

    def _step_rows(self, threads, carry, ctrl, mocap=None):
        before = carry.view(np.float64)
        with self._room(len(carry), threads) as rows:
            rows.load(before)
            rows.fields["ctrl"][:] = ctrl
            bad = self._guard(rows)
            if mocap is None or mocap.shape[1] == 7 * self.model.nmocap:
                if mocap is not None:
                    rows.set_mocap(mocap)
                rows.run(rows.mover.step, None, bad, nstep=self._substeps)
            else:
                path = _by_block(mocap.reshape(len(carry), self._substeps, -1, 7))
                rows.run(rows.mover.rollout, None, bad, nstep=self._substeps, control=path, control_spec=_MOCAP,
                         record=())  # fmt: skip
            if self._settle:
                rows.settle(bad)
            return rows.read(bad, before[:, rows.carried :], ctrl.dtype)

    def poses(self, carry) -> tuple[np.ndarray, np.ndarray]:
        """See `Engine`."""
        words = np.ascontiguousarray(carry).view(np.float64)[None]
        with self._room(1) as rows:
            rows.load(words[:, : rows.carried])
            parts = (("mocap_pos", 3), ("mocap_quat", 4))  # said in full: NumPy cannot guess at nothing
            mocap = [rows.fields[name][0].reshape(self.model.nmocap, size) for name, size in parts]
            return rows.fields["qpos"][0].copy(), np.concatenate(mocap, axis=1)

    def _guard(self, rows: "_Rows") -> np.ndarray:
        """Marks worlds that come in non-finite and puts a harmless state in their place."""
        bad = np.zeros(len(rows.state), bool)
        if not np.isfinite(rows.state.sum()):
            bad = ~np.isfinite(rows.state).all(axis=1)
            rows.state[bad] = rows.default
        return bad

    @contextmanager
    def _room(self, n: int, threads: int = 1) -> Iterator["_Rows"]:
        """Buffers for `n` worlds that nobody else uses meanwhile: every device calls from a thread of its own."""
        threads = min(n, threads)
        with self._door:
            idle = self._idle.setdefault((n, threads), [])
            self._idle.move_to_end((n, threads))
            if len(self._idle) > _SIZES_KEPT:
                self._idle.popitem(last=False)
            rows = idle.pop() if idle else None
        if rows is None:
            rows = _Rows(self.model, n, threads, self._fields, self._track, self._settle)
        try:
            yield rows
        finally:
            idle.append(rows)


@dataclass(frozen=True)
class _OnThreads:
    """`function` with so many threads for MuJoCo, equal to another that computes the same."""

    function: Callable
    threads: int

    def __call__(self, *args: np.ndarray) -> tuple[np.ndarray, ...]:
        return self.function(self.threads, *args)


class _Rows:
    """A `Batch` of `n` worlds with views of the columns that are written and read.

    `mover` takes the physics steps; with `settle` it is a second batch that leaves all sensors alone, so that they
    are computed once a step, by the forward pass of `batch`, and not once a substep.
    """

    def __init__(
        self, model: mujoco.MjModel, n: int, threads: int, fields: tuple[str, ...], track: Track | None, settle: bool
    ):
        self.model = model
        self.post = [name for name in fields if name in _POST]
        # only a persistent batch keeps the contact forces that `_POST` functions read
        self.batch = Batch(model, n, nthread=threads, persistent=bool(self.post))
        self.mover = Batch(_without_sensors(model), n, nthread=threads) if settle else self.batch
        self.mover.reset(stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self.state = self.mover.state
        self.default = self.state[0].copy()
        self.fields = {name: self.mover.bind(name) for name in {*_CARRIED, "qpos", "qvel", "ctrl"}}
        self.outputs = [self.batch.bind(name).reshape(n, -1) for name in fields]
        self.names = fields
        self.track = track
        self.point = None
        if track:
            self.point = self.batch.bind(track.field).reshape(n, -1)[:, track.start : track.stop]
        self.columns = _columns(model, self.batch)
        self.carried = sum(stop - start for start, stop in self.columns)
        self.scratch = mujoco.MjData(model) if self.post else None

    def load(self, carry: np.ndarray) -> None:
        at = 0
        for start, stop in self.columns:
            self.state[:, start:stop] = carry[:, at : at + stop - start]
            at += stop - start

    def set_mocap(self, poses: np.ndarray, ids: np.ndarray | slice = np.s_[:]) -> None:
        poses = poses.reshape(len(poses), -1, 7)[ids]
        self.fields["mocap_pos"][ids] = poses[..., :3]
        self.fields["mocap_quat"][ids] = poses[..., 3:]

    def run(self, call, ids, bad: np.ndarray, **options) -> None:
        """Runs a batch call and marks the worlds that MuJoCo gave up on or silently reset."""
        batch = call.__self__
        batch.warning[:] = 0
        try:
            with quiet():
                call(ids=ids, **options)
        except SimulationError as error:
            bad[error.ids] = True
        if batch.warning.any():
            bad |= batch.warning[:, _BAD, 1].any(axis=1)

    def settle(self, bad: np.ndarray, ids: np.ndarray | None = None) -> None:
        """A forward pass, sensors included, at the state the mover has reached."""
        if self.mover is not self.batch:
            self.batch.state[:] = self.state
        self.run(self.batch.forward, ids, bad)

    def read(self, bad: np.ndarray, before: np.ndarray | None, dtype, fresh: bool = False):
        """The new carry as words, and every field asked for side by side."""
        n = len(self.state)
        moved = 0 if self.point is None else self.point.shape[1]
        carry = np.empty((n, self.carried + moved))
        at = 0
        for start, stop in self.columns:
            carry[:, at : at + stop - start] = self.batch.state[:, start:stop]
            at += stop - start
        flat = np.empty((n, sum(out.shape[1] for out in self.outputs) + moved), dtype)
        at = 0
        for name, out in zip(self.names, self.outputs, strict=True):
            part = flat[:, at : at + out.shape[1]]
            at += out.shape[1]
            if name not in self.post:
                part[:] = out
            elif fresh:
                part[:] = 0  # as in the original: nothing has been computed since the reset
            else:
                self._post_rows(name, part)
        if moved:
            carry[:, self.carried :] = self.point
            flat[:, at:] = 0 if before is None else self.point - before
        if bad.any():
            carry[bad] = np.nan
            flat[bad] = np.nan
        return carry.view(np.uint32), flat

    def _post_rows(self, name: str, out: np.ndarray) -> None:
        for i in range(len(out)):
            self.batch.get_data(i, self.scratch)
            _POST[name](self.model, self.scratch)
            out[i] = getattr(self.scratch, name).ravel()


def _by_block(poses: np.ndarray) -> np.ndarray:
    """`[world, substep, mocap, 7]` as MuJoCo's state vector has it: all positions, then all quaternions."""
    lead = poses.shape[:2]
    parts = [poses[..., :3].reshape(*lead, -1), poses[..., 3:].reshape(*lead, -1)]
    return np.concatenate(parts, axis=-1).astype(np.float64)


def _in_one_piece(model: mujoco.MjModel) -> mujoco.MjModel:
    """The model with all constraints solved together, as MuJoCo did when the tasks were made, if it is small.

    Looking for islands of bodies that do not touch costs a robot by itself 3 to 10% of its step and finds one; among
    many loose objects it pays.
    """
    model = copy(model)
    if model.ntree <= _FEW_TREES:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    return model


def _without_sensors(model: mujoco.MjModel) -> mujoco.MjModel:
    model = copy(model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
    return model


def _columns(model: mujoco.MjModel, batch: Batch) -> list[tuple[int, int]]:
    """Column ranges of the state row that must survive between calls, adjacent ones merged."""
    merged: list[list[int]] = []
    offset = 0
    for bit in range(int(mujoco.mjtState.mjNSTATE)):
        name = mujoco.mjtState(1 << bit).name.removeprefix("mjSTATE_").lower()
        size = mujoco.mj_stateSize(model, 1 << bit)
        if {"warmstart": "qacc_warmstart"}.get(name, name) in _CARRIED and size:
            if merged and merged[-1][1] == offset:
                merged[-1][1] += size
            else:
                merged.append([offset, offset + size])
        offset += size
    assert offset == batch.nstate
    return [(start, stop) for start, stop in merged]


def _threads() -> int:
    """Threads of one batch call: `RISKPPO_THREADS`, or the share of this process's cores that a device has.

    Asked while a program is traced, which knows whether it is one of several that run side by side.
    """
    wish = os.environ.get("RISKPPO_THREADS", "")
    if wish:
        if not wish.isdecimal() or int(wish) < 1:
            raise UserError(f"RISKPPO_THREADS={wish}: accepts a positive whole number")
        return int(wish)
    if jax.default_backend() != "cpu":
        return cores()
    mesh = jax.sharding.get_abstract_mesh()
    sharing = prod(mesh.shape[axis] for axis in mesh.manual_axes) // jax.process_count()
    return max(1, cores() // max(1, sharing))
