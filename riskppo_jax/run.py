"""The host's side of a run: chunks of the compiled scan, and between them the log, the display and the checkpoints.

A run directory is complete in itself: `config.yaml` says what was asked for, `checkpoints/` where it stands,
`metrics.jsonl` how it came there, and `summary.json`, `samples.npz`, `figures/` and `report.html` what came of it.
"""

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import yaml

from riskppo_jax import checkpoint, results
from riskppo_jax.build import Job, build
from riskppo_jax.display import Display
from riskppo_jax.errors import UserError
from riskppo_jax.settings import Settings, differences, from_dict, to_dict
from riskppo_jax.train import BAD_ITERATIONS, RunState, scan_steps
from riskppo_jax.writers import JsonLines, extra_writers, reduce_chunk

# settings a run may change when it goes on: they do not touch what was computed so far
_FREE = ("output", "resume", "report", "total_steps", "log.", "checkpoint.", "eval.")


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
        ended = progress.iterations + job.chunk > job.chunks * job.chunk or _diverged(state)
        if ended and (folder / "summary.json").exists():
            print(f"{folder} is finished: {progress.iterations * job.trainer.steps_per_iteration:,} steps")
            return 0
        earlier = progress.wall_seconds - began
        clock = lambda: earlier + time.monotonic()  # noqa: E731  # time spent on this run, by all its processes
        names = [constraint.name for constraint in job.hypers.problem.constraints]
        title = f"{settings.env['id']} {settings.algo} seed {settings.seed} on {job.engine}"
        with Display(title, names, job.chunks, job.chunk * job.trainer.steps_per_iteration) as display:
            display.say(f"{title}, into {folder}" + (f", from iteration {progress.iterations}" if resumed else ""))
            state, progress, code = _loop(job, folder, state, progress, display, clock)
        if code:
            print(f"stopped; go on with: riskppo train resume=true output={folder}", flush=True)
            return code
        return results.finish(job, folder, state, progress, clock)
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


def restore_run(folder: Path) -> tuple[Job, RunState, Progress]:
    """A run as its newest checkpoint has it."""
    job = build(from_dict(read_config(folder)))
    state, progress = _start(job, folder)
    if state is None:
        raise UserError(f"{folder} has no checkpoint yet; accepts a run that trained for a while")
    return job, state, progress


def _start(job: Job, folder: Path) -> tuple[RunState | None, Progress]:
    newest = checkpoint.latest(folder / "checkpoints")
    if newest is None:
        return None, Progress()
    like = jax.eval_shape(job.trainer.init, jax.random.key(0), job.hypers)
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
    display: Display,
    clock: Callable[[], float],
) -> tuple[RunState, Progress, int]:
    """Runs the chunks that are left; returns the state, and an exit code where a signal ended it early."""
    log = JsonLines(folder / "metrics.jsonl", progress.log_bytes, progress.log_lines)
    writers = [log, *extra_writers(job.settings, folder)]
    if state is None:
        state = jax.jit(job.trainer.init)(jax.random.key(job.settings.seed), job.hypers)
    total, per = job.chunks * job.chunk, job.trainer.steps_per_iteration
    spent, saved_at, keep = progress.train_seconds, time.monotonic(), job.settings.checkpoint.keep

    def save() -> Progress:
        size = log.sync()  # before the checkpoint that speaks of it
        reached = Progress(iterations, size, log.lines, spent, clock())
        _save(folder / "checkpoints" / f"{iterations:09d}", state, reached, keep)
        return reached

    with _Signals() as signals:
        run = jax.jit(scan_steps(job.trainer, job.chunk), donate_argnums=0).lower(state, job.hypers).compile()
        iterations = progress.iterations
        while iterations + job.chunk <= total and not signals.received and not _diverged(state):
            chunk_began = time.monotonic()
            state, metrics = run(state, job.hypers)
            metrics = jax.device_get(metrics)
            now = time.monotonic()
            spent, iterations = spent + now - chunk_began, iterations + job.chunk
            point = reduce_chunk(metrics)
            point["perf/steps_per_second"] = job.chunk * per / (now - chunk_began)
            if job.evaluates(iterations):
                point |= results.evaluation_point(job, state)
            point["perf/wall_seconds"] = clock()
            for writer in writers:
                writer.write(point)
            display.show(point)
            if now - saved_at >= job.settings.checkpoint.seconds:
                progress, saved_at = save(), time.monotonic()
        if iterations > progress.iterations:
            progress = save()
    for writer in writers:
        writer.close()
    return state, progress, 128 + signals.received if signals.received else 0


def _diverged(state: RunState | None) -> bool:
    return state is not None and int(state.bad_streak) >= BAD_ITERATIONS


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
