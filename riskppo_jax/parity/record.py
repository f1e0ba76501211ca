"""Records on disk, and what a comparison with one yields."""

import json
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from riskppo_jax.envs.registry import engines_of, list_envs
from riskppo_jax.errors import UserError

VELOCITY = "Safety*Velocity-v1"
NATIVE = 1e-6
FLOAT32 = 1e-4  # plus 20 times what rounding the inputs to float32 did to the original
Record = dict[str, np.ndarray]


@dataclass
class Result:
    """How one task compares. Errors are per sample, `[K]`; mismatches are sample numbers."""

    id: str
    obs: np.ndarray
    reward: np.ndarray
    obs_tolerance: np.ndarray
    reward_tolerance: np.ndarray
    cost_mismatches: np.ndarray
    cost_near: np.ndarray  # differ, but the record itself is within rounding of the other answer
    term_mismatches: np.ndarray
    term_near: np.ndarray
    smooth: np.ndarray | None = None  # samples in which errors are held to the tolerance; None for all
    goal_mismatches: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    accelerometer: np.ndarray | None = None  # its errors, where they are not part of `obs`
    passed: bool = False
    worst: list[int] = field(default_factory=list)  # samples beyond tolerance, largest error first

    @property
    def within(self) -> np.ndarray:
        return (self.obs <= self.obs_tolerance) & (self.reward <= self.reward_tolerance)

    @property
    def held(self) -> np.ndarray:
        """Which samples are held to the tolerance."""
        return np.ones(len(self.obs), bool) if self.smooth is None else self.smooth

    @property
    def flags_agree(self) -> bool:
        return not (len(self.cost_mismatches) or len(self.term_mismatches) or len(self.goal_mismatches))

    def rank(self) -> None:
        """Lists the samples beyond tolerance."""
        excess = np.maximum(self.obs, self.reward)
        beyond = np.flatnonzero(~self.within & self.held)
        self.worst = beyond[np.argsort(-excess[beyond], kind="stable")].tolist()


def find_records(directory: Path, tasks: Sequence[str] = (), engine: str = "native") -> tuple[list[Path], list[Path]]:
    """Record files to replay, and those no task here serves on this engine."""
    if not directory.is_dir():
        raise UserError(f"DIR={directory} is not a directory; DIR accepts a folder of <task id>.npz records")
    known = {id for id in list_envs("Safety*") if engine in engines_of(id)}
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


def read_record(path: Path, needed: Sequence[str]) -> Record:
    """One-step samples of a record by name without `one_`, all with the same leading size."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            record = {name[4:]: archive[name] for name in archive.files if name.startswith("one_")}
            meta = json.loads(str(archive["meta"])) if "meta" in archive.files else {}
            names = archive["obj_names"] if "obj_names" in archive.files else np.zeros(0, str)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a readable record ({reason})") from error
    missing = [f"one_{name}" for name in needed if name not in record]
    if missing:
        raise UserError(f"{path}: has no {', '.join(missing)}")
    sizes = {name: len(array) if array.ndim else -1 for name, array in record.items()}
    size = sizes["act"]
    odd = [f"one_{name}" for name in needed if sizes[name] != size]
    if odd or size < 1:
        raise UserError(f"{path}: {', '.join(odd) or 'one_act'} does not have one row for each sample")
    if not isinstance(meta, dict) or meta.get("id", path.stem) != path.stem:
        raise UserError(f"{path}: meta names another task than the file")
    for name in needed:
        if name.startswith("dev_"):
            continue
        if record[name].dtype.kind not in "fiub" or not np.isfinite(record[name]).all():
            raise UserError(f"{path}: one_{name} has entries that are not finite numbers")
    return {**record, "obj_names": names}


def check_shapes(path: Path, record: Record, wide: dict[str, tuple[int, ...]], needed: Sequence[str]) -> None:
    """Complains about an array that does not have `[sample, *wide[name]]` entries; one number where not named."""
    for name in needed:
        expected = (len(record["act"]), *wide.get(name, ()))
        if record[name].shape != expected:
            raise UserError(f"{path}: one_{name} has shape {record[name].shape}, the task needs {expected}")


def precision(engine: str):
    """The precision an engine is replayed in, as a context."""
    return jax.enable_x64(True) if engine == "native" else nullcontext()


def errors(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Largest absolute difference in each sample; infinite where ours is not a number."""
    error = np.abs(np.asarray(ours, np.float64) - theirs).reshape(len(theirs), -1).max(axis=1)
    return np.where(np.isnan(error), np.inf, error)


def tolerance(engine: str, deviation: np.ndarray) -> np.ndarray:
    """What a smooth sample may be off by."""
    return np.full(len(deviation), NATIVE) if engine == "native" else FLOAT32 + 20.0 * deviation
