"""A run directory: whether a run may go on in it, where it stands, and the settings it was started with."""

import dataclasses
import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import yaml

from riskppo_jax import checkpoint, lanes
from riskppo_jax.build import Job, build
from riskppo_jax.engines.base import is_here
from riskppo_jax.errors import UserError
from riskppo_jax.lanes import Way
from riskppo_jax.settings import DistributedSettings, Settings, differences, from_dict, to_dict
from riskppo_jax.train import RunState

# settings a run may change when it goes on: they do not touch what was computed so far
_FREE = ("output", "resume", "report", "total_steps", "checkpoint.", "eval.")
_FREE += ("log.tensorboard", "log.wandb", "log.project")
_FREE += ("sweep.mode", "sweep.batch", "shard", "devices", "distributed.")  # where and how, not what
_WORLDS = ("envs.", "mean_worlds.envs.")  # what of a state is the engine's


class Progress(NamedTuple):
    """Where a run stands, as its checkpoint's notes have it."""

    iterations: int = 0
    log_bytes: int = 0
    log_lines: int = 0
    train_seconds: float = 0.0  # in the compiled program
    wall_seconds: float = 0.0  # in all, of every process that worked on it


def prepare(settings: Settings, folder: Path) -> bool:
    """Whether a run is to go on in this directory; refuses what would destroy one."""
    held = folder / "config.yaml"
    if not held.exists() and checkpoint.steps(folder / "checkpoints"):
        # they would be taken for those of the new run
        raise UserError(
            f"output={folder}: holds checkpoints of a run whose config.yaml is gone; output accepts another folder, "
            "or this one without its checkpoints/"
        )
    if held.exists() and not settings.resume:
        raise UserError(f"output={folder} already holds a run; output accepts another folder, or add resume=true")
    if held.exists():
        old, new = read_config(folder), to_dict(settings)
        for key, (was, now) in differences(old, new).items():
            if not key.startswith(_FREE) and (key, was) != ("engine", "auto"):
                raise UserError(f"resume=true: {key}={now} does not fit the run in {folder}, which accepts {key}={was}")
        checkpoint.prune(folder / "checkpoints", len(checkpoint.steps(folder / "checkpoints")) or 1)
    return held.exists()


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keeps other processes from training in this directory meanwhile; makes it where it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # of a folder that cannot be made or looked into, others complain
        yield
        return
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"output={folder}: another process is training there; output accepts another folder, or this one after it"
        ) from None
    except (ImportError, OSError):  # a system, or a file system, without locks
        return


def late_settings(settings: Settings, folder: Path) -> list[str]:
    """Settings of the evaluation that differ from those a finished run was evaluated with."""
    changed = differences(read_config(folder), to_dict(settings))
    return [name for name in changed if name.startswith(("eval.", "report"))]


def keep_config(settings: Settings, folder: Path) -> None:
    """Makes the directory, and writes down the settings of what is about to be trained there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_config(settings, folder / "config.yaml")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(f"output={folder}: {error.strerror}; output accepts a folder to write to") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The settings a run was started with, as plain dictionaries."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("env"), dict):
        raise UserError(f"{folder} is not a run directory; accepts a folder that train wrote")
    return to_dict(from_dict(config, f"{folder}/config.yaml"))


def restore_run(folder: Path, lane: int | None = None, engine: str | None = None) -> tuple[Job, RunState, Progress]:
    """A run as its newest checkpoint has it.

    On another engine than the one it was trained on, the worlds it was in are blank: those are of that engine.

    Args:
      folder: the run directory.
      lane: of a sweep the one wanted, as the job and the state of a single run; None is the whole, stacked.
      engine: to go on with; None is the run's own, or `auto` where that is not available here.
    """
    settings = from_dict(read_config(folder))
    settings.shard, settings.devices = "none", 0  # wherever it was trained, it is looked at here
    trained, settings.engine = settings.engine, engine or (settings.engine if is_here(settings.engine) else "auto")
    job = build(settings)
    count = len(job.lanes) or 1
    if lane is not None and not 0 <= lane < count:
        raise UserError(f"lane={lane}: {folder} accepts lanes from 0 to {count - 1}")
    state, progress = standing(job, folder, () if settings.engine == trained else _WORLDS)
    if state is None:
        raise UserError(f"{folder} has no checkpoint yet; accepts a run that trained for a while")
    if lane is not None and job.lanes:
        return job.lanes[lane], lanes.lane_of(state, lane), progress
    return job, state, progress


def standing(job: Job, folder: Path, without: tuple[str, ...] = ()) -> tuple[RunState | None, Progress]:
    """The state of the newest checkpoint, and how far it had come; None where there is none yet."""
    newest = checkpoint.latest(folder / "checkpoints")
    if newest is None:
        return None, Progress()
    notes = checkpoint.read_meta(newest)["notes"]
    try:
        progress = Progress(**notes)
    except TypeError:
        raise UserError(f"{newest} is not a checkpoint of a run; resume accepts those that train wrote") from None
    return checkpoint.restore(newest, _shapes(job), without), progress


def summarised(summary: Path, steps: int) -> bool:
    """Whether the results of a run that ended are those of its last step, and not of an earlier, shorter one."""
    try:
        found = json.loads(summary.read_text())
        return found["env_steps"] >= steps and all("diverged" in lane for lane in found["lanes"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def blank(job: Job) -> RunState:
    """A state of this run's shapes with nothing in it, for another process to fill."""
    return jax.tree.map(checkpoint.blank, _shapes(job))


def _shapes(job: Job) -> RunState:
    """What the state of this run looks like, on however many devices."""
    plain = job._replace(mesh=None)
    return jax.eval_shape(lanes.programs(plain, Way())[0], *lanes.inputs(plain))


def _write_config(settings: Settings, path: Path) -> None:
    lasting = dataclasses.replace(settings, distributed=DistributedSettings())  # who took part is of today
    text = yaml.safe_dump(to_dict(lasting), sort_keys=False)
    draft = path.with_suffix(".tmp")
    draft.write_text(text)
    draft.replace(path)
