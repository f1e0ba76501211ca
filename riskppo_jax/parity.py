"""Replays recorded steps of the original Safety-Gymnasium and measures how far ours lie from them.

A record holds independent samples: a state, an action, and what the original made of them in one step. The
native engine is replayed in float64, as MuJoCo itself computes; MJX in float32, as it is used.
"""

import json
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from riskppo_jax.engines.base import resolve
from riskppo_jax.envs.registry import list_envs
from riskppo_jax.errors import UserError

_NEEDED = ("qpos0", "qvel0", "obs0", "act", "obs", "rew", "cost", "term", "qpos", "qvel", "x_velocity")
_DEVIATIONS = ("dev_obs", "dev_rew", "dev_qpos")
_SERVED = "Safety*Velocity-v1"
_NATIVE = 1e-6
_NATIVE_MEDIAN = 1e-4  # for tasks in `_CHAOTIC`
_MJX = 1e-4  # plus 20 times what rounding the inputs to float32 did to the original
_CHAOTIC = ("SafetyHumanoidVelocity-v1",)  # limb-limb contacts and another solver: a few samples part ways
_CHAOTIC_SHARE = 0.5  # of its samples that must be within tolerance on mjx: right in the median


@dataclass
class Result:
    """How one task compares. Errors are per sample, `[K]`; mismatches are sample numbers."""

    id: str
    obs: np.ndarray
    reward: np.ndarray
    obs_tolerance: np.ndarray
    reward_tolerance: np.ndarray
    cost_mismatches: np.ndarray
    cost_near: np.ndarray  # differ, but the recorded speed is within rounding of the threshold
    term_mismatches: np.ndarray
    term_near: np.ndarray
    passed: bool = False
    worst: list[int] = field(default_factory=list)  # samples beyond tolerance, largest error first

    @property
    def within(self) -> np.ndarray:
        return (self.obs <= self.obs_tolerance) & (self.reward <= self.reward_tolerance)


def find_records(directory: Path, tasks: Sequence[str] = ()) -> tuple[list[Path], list[Path]]:
    """Record files to replay, and those no task here serves."""
    if not directory.is_dir():
        raise UserError(f"DIR={directory} is not a directory; DIR accepts a folder of <task id>.npz records")
    known = set(list_envs(_SERVED))
    for task in tasks:
        if task not in known:
            raise UserError(f"tasks={task} is not known; tasks accepts {', '.join(sorted(known))}")
        if not (directory / f"{task}.npz").is_file():
            raise UserError(f"{directory / f'{task}.npz'}: missing, and tasks asks for it")
    files = sorted(path for path in directory.glob("*.npz") if path.stem != "layouts")
    served = [path for path in files if path.stem in (tasks or known)]
    if not served:
        raise UserError(f"DIR={directory} has no record of a task here; DIR accepts <task id>.npz files")
    return served, [path for path in files if path.stem not in known]


def read_record(path: Path) -> dict[str, np.ndarray]:
    """One-step samples of a record by name without `one_`, all with the same leading size."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            record = {name[4:]: archive[name] for name in archive.files if name.startswith("one_")}
            meta = json.loads(str(archive["meta"])) if "meta" in archive.files else {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a readable record ({reason})") from error
    missing = [f"one_{name}" for name in (*_NEEDED, *_DEVIATIONS) if name not in record]
    if missing:
        raise UserError(f"{path}: has no {', '.join(missing)}")
    sizes = {name: len(array) if array.ndim else -1 for name, array in record.items()}
    size = sizes["act"]
    odd = [f"one_{name}" for name in (*_NEEDED, *_DEVIATIONS) if sizes[name] != size]
    if odd or size < 1:
        raise UserError(f"{path}: {', '.join(odd) or 'one_act'} does not have one row for each sample")
    if not isinstance(meta, dict) or meta.get("id", path.stem) != path.stem:
        raise UserError(f"{path}: meta names another task than the file")
    for name in _NEEDED:
        if record[name].dtype.kind not in "fiub" or not np.isfinite(record[name]).all():
            raise UserError(f"{path}: one_{name} has entries that are not finite numbers")
    return record


def replay(path: Path, engine: str) -> Result:
    """Steps every sample of a record once on `engine` and compares."""
    from riskppo_jax.envs.velocity import Velocity

    record = read_record(path)
    engine = resolve(engine)
    double = jax.enable_x64(True) if engine == "native" else nullcontext()
    with double:
        env = Velocity(path.stem.removeprefix("Safety").removesuffix("Velocity-v1"), engine)
        _check_shapes(path, record, env)
        start, after = _step_all(env, record)
        margin = jax.vmap(env.task.margin)(record["qpos"], record["qvel"])
    return _compare(path.stem, engine, env.task, record, start, after, np.asarray(margin))


def _check_shapes(path: Path, record, env) -> None:
    model = env.engine.model
    wide = {"qpos": model.nq, "qvel": model.nv, "qpos0": model.nq, "qvel0": model.nv, "act": model.nu,
            "obs": env.observation_size, "obs0": env.observation_size}  # fmt: skip
    for name in (*_NEEDED, *_DEVIATIONS):
        expected = (len(record["act"]), wide[name]) if name in wide else (len(record["act"]),)
        if record[name].shape != expected:
            raise UserError(f"{path}: one_{name} has shape {record[name].shape}, the task needs {expected}")


def _step_all(env, record):
    keys = jax.random.split(jax.random.key(0), len(record["act"]))
    number = jax.dtypes.canonicalize_dtype(float)
    qpos, qvel, act = (np.asarray(record[name], number) for name in ("qpos0", "qvel0", "act"))
    start = jax.jit(jax.vmap(env.place))(keys, qpos, qvel)
    after = jax.jit(jax.vmap(env.step))(start, act)
    return _returns(start), _returns(after)


def _returns(state) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, (state.obs, state.reward, state.cost, state.terminated)))


def _compare(id: str, engine: str, task, record, start, after, margin) -> Result:
    def far(ours, theirs):
        error = np.abs(np.asarray(ours, np.float64) - theirs).reshape(len(theirs), -1).max(axis=1)
        return np.where(np.isnan(error), np.inf, error)

    obs, reward, cost, terminated = after
    if engine == "native":
        allowed = {name: np.full(len(margin), _NATIVE) for name in _DEVIATIONS}
    else:
        allowed = {name: _MJX + 20.0 * record[name] for name in _DEVIATIONS}
    cost_differs = (cost > 0.5) != (record["cost"] > 0.5)
    near_threshold = np.abs(_recorded_speed(task, record) - task.threshold) <= allowed["dev_rew"]
    term_differs = terminated.astype(bool) != record["term"].astype(bool)
    near_limit = np.abs(margin) <= allowed["dev_qpos"]
    result = Result(
        id=id,
        obs=np.maximum(far(obs, record["obs"]), far(start[0], record["obs0"])),
        reward=far(reward, record["rew"]),
        obs_tolerance=allowed["dev_obs"],
        reward_tolerance=allowed["dev_rew"],
        cost_mismatches=np.flatnonzero(cost_differs & ~near_threshold),
        cost_near=np.flatnonzero(cost_differs & near_threshold),
        term_mismatches=np.flatnonzero(term_differs & ~near_limit),
        term_near=np.flatnonzero(term_differs & near_limit),
    )
    excess = np.maximum(result.obs, result.reward)
    beyond = np.flatnonzero(~result.within)
    result.worst = beyond[np.argsort(-excess[beyond], kind="stable")].tolist()
    flags_agree = not len(result.cost_mismatches) and not len(result.term_mismatches)
    result.passed = flags_agree and _errors_pass(result, engine)
    return result


def _errors_pass(result: Result, engine: str) -> bool:
    if result.id not in _CHAOTIC:
        return bool(result.within.all())
    if engine == "native":
        return bool(max(np.median(result.obs), np.median(result.reward)) <= _NATIVE_MEDIAN)
    return bool(result.within.mean() >= _CHAOTIC_SHARE)


def _recorded_speed(task, record) -> np.ndarray:
    if task.speed == "planar":
        return np.hypot(record["x_velocity"], record["y_velocity"])
    return record["x_velocity"]
