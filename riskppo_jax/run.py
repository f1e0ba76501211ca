"""The host's side of a run: chunks of the compiled scan, and between them the log, the display and the checkpoints.

A run directory is complete in itself: `config.yaml` says what was asked for, `checkpoints/` where it stands,
`metrics.jsonl` how it came there, and `summary.json`, `samples.npz`, `figures/` and `report.html` what came of it.
A sweep's directory is the same with several lanes in it.
"""

import dataclasses
import errno
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from riskppo_jax import checkpoint, distributed, grid, lanes, results, signals, warm
from riskppo_jax.build import Job, build
from riskppo_jax.display import Display, SweepDisplay
from riskppo_jax.engines.base import backend
from riskppo_jax.errors import UserError
from riskppo_jax.lanes import Way
from riskppo_jax.parallel import cores_as_devices, one_thread_each
from riskppo_jax.room import announce, choose_way
from riskppo_jax.rundir import (
    Progress,
    blank,
    claimed,
    keep_config,
    late_settings,
    prepare,
    read_config,
    standing,
    summarised,
)
from riskppo_jax.runs import read_log
from riskppo_jax.settings import Settings
from riskppo_jax.train import BAD_ITERATIONS, RunState
from riskppo_jax.traps import Watch
from riskppo_jax.writers import JsonLines, extra_writers, plain, reduce_chunk, require_extras

Clock = Callable[[], float]  # seconds spent on a run, by all its processes
Point = dict[str, float]  # a line of the log
Screen = Display | SweepDisplay
Series = dict[str, np.ndarray]  # the metrics of a chunk, `[lane, iteration]` or `[iteration]`


def train(settings: Settings) -> int:
    """Trains, evaluates, and fills the run directory; returns the exit code.

    Where several processes run this together, process 0 alone speaks and writes.
    """
    began = time.monotonic()
    distributed.start(settings)
    claim_cores(settings)
    backend()  # complains where the device asked for is not here, before anything else asks for it
    folder, leads = Path(settings.output), distributed.leads()
    if settings.resume and settings.engine == "auto" and (folder / "config.yaml").exists():
        settings = dataclasses.replace(settings, engine=read_config(folder)["engine"])
    job = build(settings)
    require_extras(settings)
    alone = ExitStack()
    try:
        state, progress, finished = _enter(job, folder, alone)
        if finished:
            if leads:
                print(f"{folder} is finished: {progress.iterations * job.trainer.steps_per_iteration:,} steps")
                if late := late_settings(settings, folder):
                    print(f"{', '.join(late)}: changes nothing now; `riskppo evaluate` and `report` look again")
            distributed.part()
            return results.exit_code(folder) if leads else 0
        earlier = progress.wall_seconds - began
        clock = lambda: earlier + time.monotonic()  # noqa: E731
        way = choose_way(job)
        with _display(job) if leads else nullcontext() as display:
            if display:
                before = f", after {settings.start_from}" if settings.start_from else ""
                again = f", from iteration {progress.iterations}" if progress.iterations else before
                display.say(f"{_title(job)}, into {folder}{again}")
                if job.lanes:
                    display.say(announce(job, way))
            state, progress, code = _loop(job, folder, state, progress, display, clock, way)
        if code and leads:
            signals.say_how_to_go_on("stopped", folder)
        elif leads:
            code = results.finish(job, folder, state, progress, clock, way)
        distributed.part()
        return code
    except KeyboardInterrupt:
        signals.say_how_to_go_on("\ninterrupted", folder)
        return signals.INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        kept = checkpoint.steps(folder / "checkpoints")
        hint = f"checkpoint {kept[-1].name} is intact, resume=true goes on from it" if kept else "nothing was saved"
        raise UserError(f"output={folder}: no space left on the disk; accepts a folder with room ({hint})") from error
    except Exception as error:  # whatever the message that did not arrive looks like
        if isinstance(error, UserError) or distributed.count() == 1:
            raise
        distributed.give_up(settings.output, distributed.first_line(error))
    finally:
        alone.close()


def claim_cores(settings: Settings) -> None:
    """Makes devices of the cores, one for each lane or two for a single run, before anything is computed.

    On each of them XLA keeps to one thread: the other cores are for the physics.
    """
    apart = settings.shard != "none" and settings.devices != 1
    apart = apart and settings.engine != "mjx"  # whose factorisations on several devices may wait for each other
    if apart and not distributed.asked_for(settings):
        cores_as_devices(0 if settings.sweep.grid else 2)
    if settings.engine in ("native", "auto"):
        one_thread_each()


def _enter(job: Job, folder: Path, alone: ExitStack) -> tuple[RunState | None, Progress, bool]:
    """Where the run stands, and whether it is finished; process 0 looks into the directory for all."""
    state, progress, finished, refusal = None, Progress(), False, None
    if distributed.leads():
        try:
            if there := folder.is_dir():
                alone.enter_context(claimed(folder))
            if prepare(job.settings, folder):
                state, progress = standing(job, folder)
            if state is None and job.settings.start_from is not None:
                state = warm.begin(job, Path(job.settings.start_from))
            diverged = state is not None and _still(state.bad_streak).all()
            ended = progress.iterations + job.chunk > job.chunks * job.chunk or diverged
            done = 0 if state is None else int(np.max(np.asarray(state.env_steps)))
            finished = bool(ended) and summarised(folder / "summary.json", done)
            if not finished:
                if not there:  # made only now that nothing is refused, and before another could write into it
                    alone.enter_context(claimed(folder))
                keep_config(job.settings, folder)
        except (UserError, OSError) as error:
            refusal = error
    refused, held, iterations, over = distributed.agree(
        refusal is not None, state is not None, progress.iterations, finished
    )
    if refusal:
        distributed.part()
        raise refusal
    if refused:
        raise UserError("process 0 refused this run; its own line says why")
    if held and distributed.count() > 1:
        state = distributed.from_leader(blank(job) if state is None else state)
    return state, progress._replace(iterations=iterations), bool(over)


def _display(job: Job) -> Screen:
    constraints = [(c.name, c.utility.config()) for c in job.hypers.problem.constraints]
    kind = partial(SweepDisplay, [lane.point for lane in job.lanes]) if job.lanes else Display
    return kind(_title(job), constraints, job.chunks, job.chunk * job.trainer.steps_per_iteration)


def _title(job: Job) -> str:
    what = f"{len(job.lanes)} lanes" if job.lanes else f"seed {job.settings.seed}"
    where = f"{job.engine}, {job.mesh.size} devices" if job.mesh else job.engine
    return f"{job.settings.env['id']} {job.settings.algo} {what} on {where}"


def _loop(
    job: Job, folder: Path, state: RunState | None, progress: Progress, display: Screen | None, clock: Clock, way: Way
) -> tuple[RunState, Progress, int]:
    """Runs the chunks that are left; returns the state, and an exit code where a signal ended it early."""
    runner = lanes.Runner(job, way)
    state = runner.start() if state is None else runner.put(state)
    total, per = job.chunks * job.chunk, job.trainer.steps_per_iteration
    spent, saved_at, iterations = progress.train_seconds, time.monotonic(), progress.iterations
    still = _still(runner.fetch(state).bad_streak)
    record = _Record(job, folder, progress, display, clock) if display else None

    def save() -> Progress:
        held = runner.fetch(state)
        return record.save(held, iterations, spent) if record else Progress(iterations)

    with signals.Wish() as wish:
        runner.compile(state)
        stop = 0
        while iterations + job.chunk <= total and not stop and not still.all():
            chunk_began = time.monotonic()
            state, metrics = runner(state)
            now = time.monotonic()
            spent, iterations = spent + now - chunk_began, iterations + job.chunk
            held = runner.fetch(state) if job.evaluates(iterations) else None
            stopped = _still(metrics["train/bad_streak"][..., -1])
            if record:
                evaluated = results.evaluation_points(job, held, way) if held else None
                record.write(metrics, evaluated, job.chunk * per / (now - chunk_began), still, stopped)
                if evaluated and job.settings.deploy == "best":
                    state = runner.put(results.choose(job, held, evaluated, way))
            del held
            still = stopped
            due = now - saved_at >= job.settings.checkpoint.seconds
            stop, due = distributed.agree(wish.received, due and record is not None)
            if due:
                progress, saved_at = save(), time.monotonic()
        if iterations > progress.iterations:
            progress = save()
    if record:
        record.close()
    return runner.fetch(state), progress, signals.exit_code(stop)


class _Record:
    """What a run writes and shows between chunks; the business of process 0."""

    def __init__(self, job: Job, folder: Path, progress: Progress, display: Screen, clock: Clock):
        self._job, self._folder, self._display, self._clock = job, folder, display, clock
        self._log = JsonLines(folder / "metrics.jsonl", progress.log_bytes, progress.log_lines)
        self._writers = [self._log, *extra_writers(job.settings, folder)]
        self._watch = Watch([constraint.name for constraint in job.hypers.problem.constraints], job.chunks)
        for point in read_log(folder / "metrics.jsonl"):  # of before an interruption: said then
            self._watch.see(point, point.get("sweep/lane", 0))

    def write(
        self, metrics: Series, evaluated: list[Point] | None, rate: float, still: np.ndarray, stopped: np.ndarray
    ) -> None:
        """One log point of every lane; `still` had diverged before this chunk, `stopped` after it."""
        lanes_ = self._job.lanes
        points = [reduce_chunk(own) for own in (_by_lane(metrics) if lanes_ else [metrics])]
        for i, point in enumerate(points):
            point["perf/steps_per_second"] = rate
            point |= plain(evaluated[i]) if evaluated else {}
            point["perf/wall_seconds"] = self._clock()
            if lanes_:
                point["sweep/lane"] = i
            if not still[i]:  # a lane that stood still before this chunk has nothing new to tell
                for writer in self._writers:
                    writer.write(point)
        self._display.show(points if lanes_ else points[0])
        for i in np.flatnonzero(stopped & ~still) if lanes_ else ():
            where = grid.describe(lanes_[i].point)
            self._display.say(f"lane {i} ({where}) diverged; it stands still, the others go on")
        for i, point in enumerate(points):
            for trap in self._watch.see(point, i) if not still[i] else ():
                self._display.say(f"warning: lane {i}: {trap}" if lanes_ else f"warning: {trap}")

    def save(self, state: RunState, iterations: int, spent: float) -> Progress:
        size = self._log.sync()  # before the checkpoint that speaks of it
        reached = Progress(iterations, size, self._log.lines, spent, self._clock())
        path = self._folder / "checkpoints" / f"{iterations:09d}"
        _save(path, state, reached, self._job.settings.checkpoint.keep)
        return reached

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def _still(bad_streak: Any) -> np.ndarray:
    """Which lanes have diverged, `[lane]`; a single run is one lane."""
    return np.atleast_1d(np.asarray(bad_streak)) >= BAD_ITERATIONS


def _by_lane(metrics: Series) -> list[Series]:
    return [dict(zip(metrics, own, strict=True)) for own in zip(*metrics.values(), strict=True)]


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
