"""Speed of training beside that of the bare physics: `riskppo bench train`.

A chunk of iterations, as `riskppo train` runs it, is raced against a loop over `mujoco.batch.Batch.step` with as many
worlds on all cores, and against the parts of an iteration, so that the table says where the time goes.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np

from riskppo_jax.bench.engines import Line, raw_loop
from riskppo_jax.bench.sweep import rate
from riskppo_jax.bench.timing import compiled, no_cache, race, ratios
from riskppo_jax.build import Job, build
from riskppo_jax.cores import cores
from riskppo_jax.errors import UserError
from riskppo_jax.evaluation import evaluate
from riskppo_jax.lanes import Runner, Way
from riskppo_jax.parallel import SpreadEnv, spread_state
from riskppo_jax.settings import read_settings
from riskppo_jax.solvers.ppo import gae, make_batch, ppo_update, rollout
from riskppo_jax.train import RunState
from riskppo_jax.writers import reduce_chunk

TASKS = ("SafetyHalfCheetahVelocity-v1", "SafetyHopperVelocity-v1")
RAW = 0.5  # training over the bare batch
METRICS = 4096  # bytes that may leave the device per iteration


def measure(
    task: str, repeats: int, words: tuple[str, ...] = (), warm_up: int = 60, lanes: int = 491_520
) -> Iterator[Line]:
    """Lines of one task on the native engine: whole iterations, then their parts, as shares of the whole.

    Args:
      task: of the native engine.
      repeats: measured rounds.
      words: more settings, as for `riskppo train`.
      warm_up: iterations of training before anything is measured.
      lanes: environment steps of whole runs, one on each core, measured beside; 0 for none.
    """
    given = (f"env={task}", "engine=native", "noise=0.05")
    job = build(read_settings([*given, *words]))
    if job.lanes:
        raise UserError("bench train: accepts settings of a single run; a sweep is measured by bench sweep")
    n, steps = job.layout.num_envs, job.trainer.steps_per_iteration
    training = _Training(job, warm_up)
    yield Line(task, "training step, compile", n, training.compile_seconds, unit="s")
    pieces, actions = _parts(job, training.fetch())
    sim = training.state.envs.sim
    _, raw = raw_loop(job.env.engine, actions, np.asarray(getattr(sim, "carry", sim)))
    parts = {name: _timed(*part, steps) for name, part in pieces.items()}
    alone = _Training(build(read_settings([*given, *words, "shard=none"])), warm_up) if job.mesh else training
    rates = race({"train": training, "raw": raw, "alone": alone, **parts}, repeats)
    for what, rival, target in (("raw batch", "raw", RAW), ("on one device", "alone", None))[: 2 if job.mesh else 1]:
        best, median = ratios(rates["train"], rates[rival])
        yield Line(
            task, f"training / {what}", n, rates["train"].best, rates[rival].best, ratio=best, ratio_median=median,
            repeats=repeats, target=target, note=f"on {job.mesh.size} devices" if job.mesh else "",
        )  # fmt: skip
    at_once = cores()
    if lanes and at_once > 1:
        short = ("eval.points=0", "eval.episodes=1", "report=false", f"total_steps={lanes}", f"sweep.seed={at_once}")
        whole_run = rate((*given, *short, *words))
        yield Line(
            task, f"{at_once} lanes, whole runs / raw batch", n, whole_run, rates["raw"].best,
            ratio=whole_run / rates["raw"].best, repeats=1, note="as `riskppo train` spreads a sweep over the cores",
        )  # fmt: skip
    spent = 1.0 / rates["train"].best
    for name in parts:
        yield Line(
            task, f"{name}, share", n, rates[name].best, rates["train"].best,
            ratio=1.0 / rates[name].best / spent, repeats=repeats,
        )  # fmt: skip
    metrics, iteration = training.metrics, spent * steps
    around = list(_around(job, training.fetch(), metrics, task, iteration))
    yield from around
    whole = steps / (iteration + sum(line.ours for line in around) / 1e3)
    yield Line(
        task, "training, evaluation, log / raw batch", n, whole, rates["raw"].best, ratio=whole / rates["raw"].best
    )
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(metrics)) / job.chunk
    yield Line(task, "metrics of a step / 4 kB", n, size, METRICS, "B", METRICS / size, target=1.0)
    memory = training.runner.program.memory_analysis()
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    yield Line(task, "memory of the program", n, needed / 2**20, unit="MiB")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    yield Line(task, "peak memory of the process", n, peak / 2**20, unit="MiB")


class _Training:
    """A run under way, without its directory: a call is the next chunk."""

    def __init__(self, job: Job, warm_up: int):
        self.runner, self._steps = Runner(job, Way()), job.chunk * job.trainer.steps_per_iteration
        self.state = self.runner.start()
        with no_cache():
            began = time.perf_counter()
            self.runner.compile(self.state)
            self.compile_seconds = time.perf_counter() - began
        for _ in range(max(warm_up // job.chunk, 1)):  # robots that move and touch the ground cost more
            self()

    def __call__(self) -> int:
        self.state, self.metrics = self.runner(self.state)
        return self._steps

    def fetch(self) -> RunState:
        return self.runner.fetch(self.state)


def _parts(job: Job, state: RunState) -> tuple[dict[str, tuple[Callable, tuple]], np.ndarray]:
    """Compiled pieces of an iteration with their arguments (physics is within the rollout), and its actions."""
    layout, networks, hypers = job.layout, job.trainer.networks, job.hypers
    env = SpreadEnv(job.env, job.mesh) if job.mesh else job.env
    key = jax.random.key(1)

    def physics(envs, actions):
        return jax.lax.scan(lambda s, a: (jax.vmap(env.step)(s, a), None), envs, actions)[0]

    def collect(key, params, moments, envs):
        return rollout(key, env, networks, params, moments, envs, layout)

    def improve(key, learner, batch):
        return ppo_update(key, learner, batch, networks, hypers.ppo, layout)

    with jax.set_mesh(job.mesh) if job.mesh else nullcontext():
        state = spread_state(state, job.mesh).put(state) if job.mesh else state
        params, moments = state.learner.params, state.moments
        collect = compiled(collect, key, params, moments, state.envs)[0]
        _, seen = collect(key, params, moments, state.envs)
        advantage, target = jax.jit(gae)(
            seen.reward, seen.value, seen.next_value, seen.terminated, seen.truncated, hypers.ppo.gamma,
            hypers.ppo.gae_lambda, seen.valid,
        )  # fmt: skip
        batch = make_batch(seen, advantage, target, moments)
        return {
            "physics and task": (compiled(physics, state.envs, seen.action)[0], (state.envs, seen.action)),
            "rollout, physics included": (collect, (key, params, moments, state.envs)),
            "PPO update": (compiled(improve, key, state.learner, batch)[0], (key, state.learner, batch)),
        }, np.asarray(seen.action)


def _around(job: Job, state: RunState, metrics: Mapping[str, Any], task: str, step: float) -> Iterator[Line]:
    """What a run does besides: evaluation points and the host's log, per iteration, beside the iteration itself."""
    evaluation = job.settings.eval

    def episodes() -> None:
        evaluate(
            job.env, job.trainer.networks, state.learner.params, state.moments, evaluation.point_episodes,
            noise=job.hypers.noise,
        )  # fmt: skip

    def host() -> None:
        reduce_chunk(metrics)

    for name, work, each in (
        ("evaluation points", episodes, evaluation.points / (job.chunks * job.chunk)),
        ("host's log", host, 1.0 / job.chunk),
    ):
        work()
        began = time.perf_counter()
        for _ in range(3):
            work()
        seconds = (time.perf_counter() - began) / 3 * each
        yield Line(task, f"{name}, beside a step", job.layout.num_envs, 1e3 * seconds, 1e3 * step, "ms", seconds / step)


def _timed(program: Callable, args: tuple, steps: int) -> Callable[[], int]:
    def run() -> int:
        jax.block_until_ready(program(*args))
        return steps

    return run
