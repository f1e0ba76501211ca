"""A policy at work as numbers for the page's canvas: shapes once, then their poses frame by frame.

Needs no renderer: the browser draws. Poses are 16-bit numbers in base64, a hundred kilobytes or so for a replay.
"""

import base64
import json
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from riskppo_jax.render.record import Recording

SECONDS = 8.0
_FPS = 25
_SHAPES = {
    mujoco.mjtGeom.mjGEOM_SPHERE: "sphere",
    mujoco.mjtGeom.mjGEOM_CAPSULE: "capsule",
    mujoco.mjtGeom.mjGEOM_ELLIPSOID: "sphere",
    mujoco.mjtGeom.mjGEOM_CYLINDER: "cylinder",
    mujoco.mjtGeom.mjGEOM_BOX: "box",
}
FILE = "replay.json"


def replay_data(recording: Recording) -> dict[str, Any]:
    """What the canvas needs: `shapes`, `poses` (`[frame, shape, x y z and quaternion]`), quantities and limits."""
    model = recording.model
    shown = [
        i for i in range(model.ngeom)
        if int(model.geom_type[i]) in _SHAPES and model.geom_group[i] < 3 and _color(model, i)[3] > 0.02
    ]  # fmt: skip
    stride = max(1, round(1.0 / (_FPS * recording.dt)))
    steps = range(0, len(recording.reward), stride)
    data, quat = mujoco.MjData(model), np.zeros(4)
    poses = np.zeros((len(steps), len(shown), 7))
    for frame, step in enumerate(steps):
        recording.place(data, step)
        for k, i in enumerate(shown):
            mujoco.mju_mat2Quat(quat, data.geom_xmat[i])
            poses[frame, k] = *data.geom_xpos[i], *quat
    reach = float(max(1.0, np.abs(poses[..., :3]).max(initial=0.0)))
    poses[..., :3] /= reach
    words = np.round(poses * 32767).astype("<i2")
    return {
        "fps": 1.0 / (recording.dt * stride),
        "reach": reach,
        "shapes": [_shape(model, i) for i in shown],
        "frames": len(steps),
        "poses": base64.b64encode(words.tobytes()).decode(),
        "dt": recording.dt * stride,
        "quantities": {k: [float(f"{x:.4g}") for x in v[::stride]] for k, v in recording.quantities.items()},
        "thresholds": recording.thresholds,
        "reward": [float(f"{x:.4g}") for x in _returns(recording)[::stride]],
        "planar": bool(np.ptp(poses[..., 1], axis=0).max(initial=0.0) < 1e-4),  # seen from the side: y stays
    }


def _returns(recording: Any) -> np.ndarray:
    """The sum of rewards of the present episode at every step."""
    total = np.cumsum(recording.reward)
    first = np.searchsorted(recording.episode, recording.episode)  # of the episode that a step belongs to
    return total - (total - recording.reward)[first]


def write_replay(folder: Path, lanes: dict[int, tuple[Any, Any]]) -> Path | None:
    """Records lanes of a run into `replay.json`; None where the task has nothing to draw.

    Args:
      folder: the run directory.
      lanes: lane -> its job and its final state.
    """
    from riskppo_jax.render import policy_of, record
    from riskppo_jax.render.record import can_be_drawn, limits_of, steps_for

    found = {}
    for lane, (job, state) in lanes.items():
        if not can_be_drawn(job.env):
            return None
        limits = limits_of(job.hypers.problem)
        steps = steps_for(job.env, SECONDS)
        recording = record(job.env, policy_of(job, state), steps, thresholds=limits, noise=job.hypers.noise)
        found[str(lane)] = replay_data(recording)
    path = folder / FILE
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(found))
    draft.replace(path)
    return path


def read_replays(folder: Path) -> dict[int, dict[str, Any]]:
    """Lane -> its replay, as far as the run has any."""
    try:
        found = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {int(lane): replay for lane, replay in found.items()}


def _shape(model: mujoco.MjModel, i: int) -> dict[str, Any]:
    color = _color(model, i)
    return {
        "kind": _SHAPES[mujoco.mjtGeom(int(model.geom_type[i]))],
        "size": [float(f"{x:.4g}") for x in model.geom_size[i]],
        "color": [round(255 * float(x)) for x in color[:3]],
        "alpha": round(float(color[3]), 2),
    }


def _color(model: mujoco.MjModel, i: int) -> np.ndarray:
    material = int(model.geom_matid[i])
    own = model.geom_rgba[i]
    plain = np.allclose(own, [0.5, 0.5, 0.5, 1.0])  # MuJoCo's default: nobody chose it
    return model.mat_rgba[material] if material >= 0 and plain else own
