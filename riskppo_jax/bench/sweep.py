"""What a grid in one program costs beside single runs: `riskppo bench sweep`.

Ratios of times: below one the sweep is faster. The programs take turns; what is compared ran in the same minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from riskppo_jax import lanes
from riskppo_jax.bench.engines import Line
from riskppo_jax.bench.timing import Rate, compiled, race, ratios
from riskppo_jax.build import Job, build
from riskppo_jax.errors import UserError
from riskppo_jax.lanes import Way
from riskppo_jax.room import carried_bytes, working_bytes
from riskppo_jax.settings import read_settings
from riskppo_jax.train import scan_steps

PARTS = ("native", "processes", "analytic", "memory")
NATIVE, ANALYTIC = "SafetyHopperVelocity-v1", "SafetyPointGoal0-v0"
AT_MOST = {"native": 1.05, "processes": 0.7, "analytic": 4.0}
MEMORY = 0.2  # share by which the announced bytes may be off
ITERATIONS = 2  # of a measured chunk


@dataclass(frozen=True)
class Limit(Line):
    """A ratio that is to stay below its target."""

    @property
    def verdict(self) -> str:
        if self.target is None or self.ratio is None:
            return ""
        return "met" if self.ratio <= self.target else "missed"


def measure(part: str, repeats: int, words: tuple[str, ...] = (), quick: bool = False) -> Iterator[Line]:
    """Lines of one part.

    Args:
      part: one of `PARTS`.
      repeats: measured rounds.
      words: more settings, as for `riskppo train`.
      quick: small counts: shows that it runs, not how fast.
    """
    return {"native": _native, "processes": _processes, "analytic": _analytic, "memory": _memory}[part](
        repeats, words, quick
    )


def _native(repeats: int, words: tuple[str, ...], quick: bool) -> Iterator[Line]:
    """As many lanes in one program as single runs one after the other, compiles left out."""
    count = 2 if quick else 8
    job = _job(NATIVE, "native", count, words)
    keys, hypers = lanes.inputs(job)
    n, steps = job.layout.num_envs, count * ITERATIONS * job.trainer.steps_per_iteration
    chunk, init = scan_steps(job.trainer, ITERATIONS), job.trainer.init
    state = jax.jit(lanes.over_lanes(init, Way("map")))(keys, hypers)
    each = [lanes.lane_of((state, hypers), i) for i in range(count)]
    one, seconds = compiled(chunk, *each[0])
    yield Line(NATIVE, "single run, compile", n, seconds, unit="s")
    programs: dict[str, Callable[[], int]] = {"single": lambda: _done([one(*args) for args in each], steps)}
    for mode in ("map", "vmap"):
        program, seconds = compiled(lanes.over_lanes(chunk, Way(mode)), state, hypers)
        yield Line(NATIVE, f"{count} lanes, {mode}, compile", n, seconds, unit="s")
        programs[mode] = lambda program=program: _done(program(state, hypers), steps)
    rates = race(programs, repeats)
    for mode in ("map", "vmap"):
        yield _time(NATIVE, f"{count} lanes, {mode}, one device / {count} single runs", n, rates[mode], rates["single"])
    yield _on_all_cores(NATIVE, "native", count, 1, words, quick)


def _analytic(repeats: int, words: tuple[str, ...], quick: bool) -> Iterator[Line]:
    """Sixteen lanes beside one, where physics is cheap."""
    count = 4 if quick else 16
    job = _job(ANALYTIC, "analytic", count, words)
    keys, hypers = lanes.inputs(job)
    n, per = job.layout.num_envs, ITERATIONS * job.trainer.steps_per_iteration
    chunk = scan_steps(job.trainer, ITERATIONS)
    state = jax.jit(lanes.over_lanes(job.trainer.init, Way("map")))(keys, hypers)
    first = lanes.lane_of((state, hypers), 0)
    one, seconds = compiled(chunk, *first)
    yield Line(ANALYTIC, "one lane, compile", n, seconds, unit="s")
    programs: dict[str, Callable[[], int]] = {"one": lambda: _done(one(*first), per)}
    for mode in ("map", "vmap"):
        program, seconds = compiled(lanes.over_lanes(chunk, Way(mode)), state, hypers)
        yield Line(ANALYTIC, f"{count} lanes, {mode}, compile", n, seconds, unit="s")
        programs[mode] = lambda program=program: _done(program(state, hypers), per)
    rates = race(programs, repeats)
    for mode in ("map", "vmap"):
        yield _time(ANALYTIC, f"{count} lanes, {mode}, one device / one lane", n, rates[mode], rates["one"])
    yield _on_all_cores(ANALYTIC, "analytic", count, count, words, quick)


def _on_all_cores(task: str, engine: str, count: int, beside: int, words: tuple[str, ...], quick: bool) -> Limit:
    """`riskppo train` with so many lanes, as it spreads them by itself, beside it with one; compiles left out.

    The ratio is of times: of all lanes over one lane, divided by `count / beside` single runs.
    """
    steps = 4096 if quick else {"native": 163_840, "analytic": 1_024_000}[engine]
    words = (f"env={task}", f"engine={engine}", "eval.points=0", "eval.episodes=1", "report=false", *words)
    alone = rate((*words, f"total_steps={steps * 2}"))
    lanes = rate((*words, f"total_steps={steps}", f"sweep.seed={count}"))
    alone = max(alone, rate((*words, f"total_steps={steps * 2}")))
    what = f"{count} single runs" if beside == 1 else "one lane"
    return Limit(
        task, f"{count} lanes, all cores / {what}", _worlds(words), lanes, alone,
        ratio=beside * alone / lanes, repeats=1, target=AT_MOST[engine],
    )  # fmt: skip


def _worlds(words: tuple[str, ...]) -> int:
    return read_settings(words).layout.num_envs


def _processes(repeats: int, words: tuple[str, ...], quick: bool) -> Iterator[Line]:
    """A whole grid, from the command to the last file, beside a process for each of its lanes."""
    count, singles = (2, 1) if quick else (8, max(2, min(repeats, 8)))
    steps = 4096 if quick else 40_960
    words = (f"env={NATIVE}", "engine=native", f"total_steps={steps}", "eval.points=0", "eval.episodes=10",
             "report=false", *words)  # fmt: skip
    alone = [_process((*words, f"seed={i}")) for i in range(singles // 2)]
    whole = _process((*words, f"sweep.seed={count}"))
    alone += [_process((*words, f"seed={i}")) for i in range(singles // 2, singles)]
    mean = sum(alone) / len(alone)
    note = f"{singles} of the {count} processes were run; their mean stands for the others" if singles < count else ""
    yield Limit(
        NATIVE, f"grid of {count} / {count} processes", _worlds(words), whole, count * mean, unit="s",
        ratio=whole / (count * mean), repeats=1, target=AT_MOST["processes"], note=note,
    )  # fmt: skip


def _memory(repeats: int, words: tuple[str, ...], quick: bool) -> Iterator[Line]:
    """Bytes that the compiled program takes for each further lane, beside those announced before compiling."""
    few, many = (1, 2) if quick else (4, 8)
    for mode in ("vmap", "map"):
        sizes = {}
        for count in (few, many):
            job = _job(NATIVE, "native", count, words)
            keys, hypers = lanes.inputs(job)
            init, chunk = lanes.programs(job, Way(mode))
            state = jax.eval_shape(init, keys, hypers)
            about = jax.jit(chunk, donate_argnums=0).lower(state, hypers).compile().memory_analysis()
            sizes[count] = about.argument_size_in_bytes + about.temp_size_in_bytes
        growth = (sizes[many] - sizes[few]) / (many - few)
        announced = carried_bytes(job, mode) + (working_bytes(job) if mode == "vmap" else 0)
        yield Between(
            NATIVE, f"bytes per lane, {mode} / announced", job.layout.num_envs, growth, announced, unit="bytes",
            ratio=growth / announced, target=1.0,
        )  # fmt: skip


@dataclass(frozen=True)
class Between(Line):
    """A ratio that is to be its target, up to `MEMORY`."""

    @property
    def verdict(self) -> str:
        if self.target is None or self.ratio is None:
            return ""
        return "met" if abs(self.ratio / self.target - 1.0) <= MEMORY else "missed"


def _job(task: str, engine: str, count: int, words: tuple[str, ...]) -> Job:
    return build(read_settings([f"env={task}", f"engine={engine}", f"sweep.seed={count}", *words]))


def _time(task: str, what: str, n: int, ours: Rate, theirs: Rate) -> Limit:
    best, median = ratios(theirs, ours)  # rates the other way round are times
    return Limit(task, what, n, ours.best, theirs.best, ratio=best, ratio_median=median, repeats=len(ours.samples))


def _done(result: Any, steps: int) -> int:
    jax.block_until_ready(result)
    return steps


def _process(words: tuple[str, ...]) -> float:
    """Seconds of a fresh process that trains and writes everything, with nothing compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _train(words, Path(folder))
        return time.perf_counter() - began


def rate(words: tuple[str, ...]) -> float:
    """Environment steps a second of all lanes together, in the compiled program of a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        _train(words, Path(folder))
        return json.loads((Path(folder) / "run" / "summary.json").read_text())["steps_per_second"]


def _train(words: tuple[str, ...], folder: Path) -> None:
    command = [sys.executable, "-m", "riskppo_jax", "train", *words, f"output={folder / 'run'}"]
    environment = os.environ | {"RISKPPO_CACHE": "off"}
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"bench sweep: {' '.join(words)}: {said[-1].removeprefix('riskppo: ')}")
