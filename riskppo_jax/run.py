"""The host's side of a run: chunks of the compiled scan, and between them the log, the display and the checkpoints.

A run directory is complete in itself: `config.yaml` says what was asked for, `checkpoints/` where it stands,
`metrics.jsonl` how it came there, and `summary.json`, `samples.npz`, `figures/` and `report.html` what came of it.
A sweep's directory is the same with several lanes in it.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import yaml

from riskppo_jax import checkpoint, grid, lanes, results
from riskppo_jax.build import Job, build
from riskppo_jax.display import Display, SweepDisplay
from riskppo_jax.errors import UserError
from riskppo_jax.lanes import Way
from riskppo_jax.room import announce, choose_way
from riskppo_jax.settings import Settings, differences, from_dict, to_dict
from riskppo_jax.train import BAD_ITERATIONS, RunState
from riskppo_jax.traps import Watch
from riskppo_jax.writers import JsonLines, extra_writers, reduce_chunk

# settings a run may change when it goes on: they do not touch what was computed so far
_FREE = ("output", "resume", "report", "total_steps", "log.", "checkpoint.", "eval.", "sweep.mode", "sweep.batch")


class Progress(NamedTuple):
    """Where a run stands, as its checkpoint's notes have it."""

    iterations: int = 0
    log_bytes: int = 0
    log_lines: int = 0
    train_seconds: float = 0.0  # in the compiled program
    wall_seconds: float = 0.0  # in all, of every process that worked on it


def train(settings: Settings) -> int:
    """Trains, evaluates, and fills the run directory; returns the exit code."""
    began = time.monotonic()
    job = build(settings)
    folder = Path(settings.output)
    try:
        resumed = prepare(settings, folder)
        state, progress = _start(job, folder) if resumed else (None, Progress())
        diverged = state is not None and _still(state.bad_streak).all()
        ended = progress.iterations + job.chunk > job.chunks * job.chunk or diverged
        if ended and (folder / "summary.json").exists():
            print(f"{folder} is finished: {progress.iterations * job.trainer.steps_per_iteration:,} steps")
            return 0
        earlier = progress.wall_seconds - began
        clock = lambda: earlier + time.monotonic()  # noqa: E731  # time spent on this run, by all its processes
        way = choose_way(job)
        names = [constraint.name for constraint in job.hypers.problem.constraints]
        what = f"{len(job.lanes)} lanes" if job.lanes else f"seed {settings.seed}"
        title = f"{settings.env['id']} {settings.algo} {what} on {job.engine}"
        kind = partial(SweepDisplay, [lane.point for lane in job.lanes]) if job.lanes else Display
        with kind(title, names, job.chunks, job.chunk * job.trainer.steps_per_iteration) as display:
            display.say(f"{title}, into {folder}" + (f", from iteration {progress.iterations}" if resumed else ""))
            if job.lanes:
                display.say(announce(job, way))
            state, progress, code = _loop(job, folder, state, progress, display, clock, way)
        if code:
            print(f"stopped; go on with: riskppo train resume=true output={folder}", flush=True)
            return code
        return results.finish(job, folder, state, progress, clock, way)
    except KeyboardInterrupt:
        print(f"\ninterrupted; go on with: riskppo train resume=true output={folder}", flush=True)
        return 130
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        kept = checkpoint.steps(folder / "checkpoints")
        hint = f"checkpoint {kept[-1].name} is intact, resume=true goes on from it" if kept else "nothing was saved"
        raise UserError(f"output={folder}: no space left on the disk; accepts a folder with room ({hint})") from error


def prepare(settings: Settings, folder: Path) -> bool:
    """Makes the run directory and says whether a run is to go on there; refuses what would destroy one."""
    held = folder / "config.yaml"
    if held.exists() and not settings.resume:
        raise UserError(f"output={folder} already holds a run; output accepts another folder, or add resume=true")
    if held.exists():
        old, new = read_config(folder), to_dict(settings)
        for key, (was, now) in differences(old, new).items():
            if not key.startswith(_FREE):
                raise UserError(f"resume=true: {key}={now} does not fit the run in {folder}, which accepts {key}={was}")
        checkpoint.prune(folder / "checkpoints", len(checkpoint.steps(folder / "checkpoints")) or 1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        resumed = held.exists()
        _write_config(settings, held)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        raise UserError(f"output={folder}: {error.strerror}; output accepts a folder to write to") from error
    return resumed


def read_config(folder: Path) -> dict[str, Any]:
    """The settings a run was started with, as plain dictionaries."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        raise UserError(f"{folder} is not a run directory; accepts a folder that train wrote") from None
    return to_dict(from_dict(config or {}, f"{folder}/config.yaml"))


def restore_run(folder: Path, lane: int | None = None) -> tuple[Job, RunState, Progress]:
    """A run as its newest checkpoint has it.

    Args:
      folder: the run directory.
      lane: of a sweep the one wanted, as the job and the state of a single run; None is the whole, stacked.
    """
    job = build(from_dict(read_config(folder)))
    count = len(job.lanes) or 1
    if lane is not None and not 0 <= lane < count:
        raise UserError(f"lane={lane}: {folder} accepts lanes from 0 to {count - 1}")
    state, progress = _start(job, folder)
    if state is None:
        raise UserError(f"{folder} has no checkpoint yet; accepts a run that trained for a while")
    if lane is not None and job.lanes:
        return job.lanes[lane], lanes.lane_of(state, lane), progress
    return job, state, progress


def _start(job: Job, folder: Path) -> tuple[RunState | None, Progress]:
    newest = checkpoint.latest(folder / "checkpoints")
    if newest is None:
        return None, Progress()
    like = jax.eval_shape(lanes.programs(job, Way())[0], *lanes.inputs(job))
    notes = checkpoint.read_meta(newest)["notes"]
    try:
        progress = Progress(**notes)
    except TypeError:
        raise UserError(f"{newest} is not a checkpoint of a run; resume accepts those that train wrote") from None
    return checkpoint.restore(newest, like), progress


def _loop(
    job: Job,
    folder: Path,
    state: RunState | None,
    progress: Progress,
    display: Display | SweepDisplay,
    clock: Callable[[], float],
    way: Way,
) -> tuple[RunState, Progress, int]:
    """Runs the chunks that are left; returns the state, and an exit code where a signal ended it early."""
    log = JsonLines(folder / "metrics.jsonl", progress.log_bytes, progress.log_lines)
    writers = [log, *extra_writers(job.settings, folder)]
    keys, hypers = lanes.inputs(job)
    init, chunk = lanes.programs(job, way)
    if state is None:
        state = jax.jit(init)(keys, hypers)
    total, per = job.chunks * job.chunk, job.trainer.steps_per_iteration
    spent, saved_at, keep = progress.train_seconds, time.monotonic(), job.settings.checkpoint.keep
    still = _still(state.bad_streak)
    watch = Watch([constraint.name for constraint in job.hypers.problem.constraints], job.chunks)

    def save() -> Progress:
        size = log.sync()  # before the checkpoint that speaks of it
        reached = Progress(iterations, size, log.lines, spent, clock())
        _save(folder / "checkpoints" / f"{iterations:09d}", state, reached, keep)
        return reached

    with _Signals() as signals:
        run = jax.jit(chunk, donate_argnums=0).lower(state, hypers).compile()
        iterations = progress.iterations
        while iterations + job.chunk <= total and not signals.received and not still.all():
            chunk_began = time.monotonic()
            state, metrics = run(state, hypers)
            metrics = jax.device_get(metrics)
            now = time.monotonic()
            spent, iterations = spent + now - chunk_began, iterations + job.chunk
            points = [reduce_chunk(own) for own in ([metrics] if not job.lanes else _by_lane(metrics))]
            evaluated = results.evaluation_points(job, state, way) if job.evaluates(iterations) else [{}] * len(points)
            for i, point in enumerate(points):
                point["perf/steps_per_second"] = job.chunk * per / (now - chunk_began)
                point |= evaluated[i]
                point["perf/wall_seconds"] = clock()
                if job.lanes:
                    point["sweep/lane"] = i
                if not still[i]:  # a lane that stood still before this chunk has nothing new to tell
                    for writer in writers:
                        writer.write(point)
            display.show(points if job.lanes else points[0])
            stopped = _still(metrics["train/bad_streak"][..., -1])
            for i in np.flatnonzero(stopped & ~still) if job.lanes else ():
                where = grid.describe(job.lanes[i].point)
                display.say(f"lane {i} ({where}) diverged; it stands still, the others go on")
            for i, point in enumerate(points):
                for trap in watch.see(point, i) if not still[i] else ():
                    display.say(f"warning: lane {i}: {trap}" if job.lanes else f"warning: {trap}")
            still = stopped
            if now - saved_at >= job.settings.checkpoint.seconds:
                progress, saved_at = save(), time.monotonic()
        if iterations > progress.iterations:
            progress = save()
    for writer in writers:
        writer.close()
    return state, progress, 128 + signals.received if signals.received else 0


def _still(bad_streak: Any) -> np.ndarray:
    """Which lanes have diverged, `[lane]`; a single run is one lane."""
    return np.atleast_1d(np.asarray(bad_streak)) >= BAD_ITERATIONS


def _by_lane(metrics: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    count = len(next(iter(metrics.values())))
    return [{name: values[i] for name, values in metrics.items()} for i in range(count)]


def _save(path: Path, state: RunState, progress: Progress, keep: int) -> None:
    try:
        checkpoint.save(path, state, progress._asdict())
    except OSError:
        raise
    except Exception as error:  # what Orbax makes of a write that failed
        if "No space left" in str(error) or "RESOURCE_EXHAUSTED" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise
    checkpoint.prune(path.parent, keep)


def _write_config(settings: Settings, path: Path) -> None:
    text = yaml.safe_dump(to_dict(settings), sort_keys=False)
    draft = path.with_suffix(".tmp")
    draft.write_text(text)
    draft.replace(path)


class _Signals:
    """Takes SIGTERM and Ctrl-C as a wish to stop after the chunk; a second one stops at once."""

    def __init__(self):
        self.received = 0

    def __enter__(self) -> "_Signals":
        self._before = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: whoever runs us decides
                break
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.received = number
        print("\nfinishing this chunk and saving ...", flush=True)
        for each, handler in self._before.items():
            signal.signal(each, handler)
