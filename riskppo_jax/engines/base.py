"""The door: what every physics engine takes and gives, and how one is chosen by name.

An engine is made from a compiled `mujoco.MjModel`. It starts a world from `qpos, qvel` and advances it by
`frame_skip` physics steps at a time. Both functions are written for one world; `vmap` makes many.
"""

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
from flax import struct

from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, PyTree

if TYPE_CHECKING:
    import mujoco
    import numpy as np

ENGINES = ("native", "mjx", "warp", "analytic")


@struct.dataclass
class Sim:
    """One simulated world.

    `carry` is all an engine needs to go on; its layout is the engine's own. `derived` holds the fields that
    were asked for, by MuJoCo's names, flattened to vectors, plus `moved` where a point is tracked. `step`
    reads only `carry`, so a loop may drop `derived` (`sim.replace(derived={})`) and stay small.
    """

    carry: PyTree
    derived: dict[str, Array]


class Track(NamedTuple):
    """A point whose displacement over a step is wanted without cancellation: `field.ravel()[start:stop]`."""

    field: str
    start: int
    stop: int


class Engine(Protocol):
    """`init` starts a world, `step` advances it by `frame_skip` physics steps; both are pure.

    After `step` the derived fields are those MuJoCo's `mj_step` leaves behind: of the last Runge-Kutta stage
    or of the state before the last Euler step, unless the engine was made with `settle`. A world whose
    physics became non-finite has NaN in all of its derived fields and stays that way.
    """

    name: str
    dt: float

    def init(self, qpos: Array, qvel: Array, mocap: Array | None = None, where: Array | bool = True) -> Sim:
        """World at rest in the solver's memory, at time 0, after one forward pass.

        Args:
          qpos: [nq]; qvel: [nv].
          mocap: [nmocap, 7] positions and quaternions, by default the model's.
          where: False where the result will not be used; an engine may then skip the work.
        """

    def step(self, sim: Sim, ctrl: Array, mocap: Array | None = None) -> Sim:
        """World after `frame_skip` physics steps under `ctrl`.

        Args:
          ctrl: [nu], not clipped.
          mocap: new poses, [nmocap, 7] for the whole step or [frame_skip, nmocap, 7], one for each substep.
        """

    def poses(self, carry: PyTree) -> "tuple[np.ndarray, np.ndarray]":
        """`qpos` and mocap poses `[nmocap, 7]` in what one world carries, on the host."""


def make_engine(
    name: str,
    model: "mujoco.MjModel",
    frame_skip: int,
    fields: Sequence[str] = ("qpos", "qvel"),
    track: Track | None = None,
    settle: bool = False,
    solver: Mapping[str, Any] | None = None,
) -> Engine:
    """Returns the engine called `name` for this model.

    Args:
      name: one of `ENGINES`, or "auto".
      model: compiled model; it is copied, never changed.
      frame_skip: physics steps per `step`.
      fields: names of `MjData` fields wanted in `Sim.derived`.
      track: a point whose displacement is wanted as `derived["moved"]`.
      settle: end each step with a forward pass, so that derived fields belong to the new state.
      solver: options for MJX (`iterations`, `ls_iterations`, ...); the native engine keeps the model's own.
    """
    name = resolve(name)
    fields = tuple(fields)
    if name == "native":
        from riskppo_jax.engines.native import NativeEngine

        return NativeEngine(model, frame_skip, fields, track, settle)
    if name == "analytic":
        from riskppo_jax.engines.analytic import AnalyticEngine

        return AnalyticEngine(model, frame_skip, fields, track, settle)
    from riskppo_jax.engines.mjx import MjxEngine

    impl = "jax" if name == "mjx" else "warp"
    return MjxEngine(model, frame_skip, fields, track, settle, solver, impl)


def resolve(name: str) -> str:
    """The engine behind `name` on this machine; `auto` is `native` on a CPU and `mjx` on an accelerator."""
    if name not in (*ENGINES, "auto"):
        hint = get_close_matches(str(name), (*ENGINES, "auto"), n=1)
        suggestion = f"; did you mean {hint[0]}?" if hint else ""
        raise UserError(f"engine={name} is not known; engine accepts auto, {', '.join(ENGINES)}{suggestion}")
    here = backend()
    if name == "auto":
        name = "native" if here == "cpu" and _missing_native() is None else "mjx"
    missing = _missing(name, here)
    if missing:
        others = ", ".join(other for other in ("auto", *ENGINES) if other != name)
        raise UserError(f"engine={name} is not available: {missing}; engine also accepts {others}")
    return name


def is_here(name: str) -> bool:
    """Whether this machine has what the engine needs."""
    return _missing(name, backend()) is None


def backend() -> str:
    """The kind of device JAX runs on."""
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the latter where the only platform asked for was passed over
        reason = (str(error).strip() or f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}").splitlines()[0]
        advice = "accepts JAX_PLATFORMS=cpu, or unset"
        raise UserError(f"engine: the device JAX was asked for is not here ({reason}); {advice}") from error


def _missing(name: str, backend: str) -> str | None:
    checks = {"native": _missing_native, "warp": lambda: _missing_warp(backend)}
    return checks.get(name, lambda: None)()


def _missing_native() -> str | None:
    try:
        import mujoco.batch  # noqa: F401
    except ImportError:
        return "it needs mujoco >= 3.17, whose mujoco.batch is missing here"
    return None


def _missing_warp(backend: str) -> str | None:
    try:
        import warp  # noqa: F401
    except ImportError:
        return "it needs the `warp-lang` package, which is not installed (the extra `warp` brings it)"
    if backend not in ("gpu", "cuda"):
        return f"it needs an NVIDIA GPU, and JAX runs on {backend}"
    return None
