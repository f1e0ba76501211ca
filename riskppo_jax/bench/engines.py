"""Speed of the engines beside what one would use without them: `riskppo bench engines`.

`native` is measured against a bare loop over `mujoco.batch.Batch.step` and against Gymnasium's own task with
the same robot, `mjx` against Brax's. Compiled programs start from the same states in every round.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from riskppo_jax.bench.timing import Rate, compiled, race, ratios
from riskppo_jax.engines.base import Sim
from riskppo_jax.engines.models import quiet
from riskppo_jax.envs.registry import make_env
from riskppo_jax.types import Array, PyTree

ROBOTS = ("HalfCheetah", "Hopper", "Swimmer", "Walker2d", "Ant", "Humanoid")
TASKS = tuple(f"Safety{robot}Velocity-v1" for robot in ROBOTS)

# what the project wants of itself
RAW = 0.9  # native over the bare batch
GYMNASIUM = {"HalfCheetah": 5.0, "Swimmer": 5.0, "Hopper": 3.0, "Walker2d": 3.0}  # on two cores


@dataclass(frozen=True)
class Line:
    """One comparison. `ratio` is best over best, `ratio_median` the median over rounds."""

    task: str
    what: str
    num_envs: int
    ours: float | None = None
    theirs: float | None = None
    unit: str = "steps/s"
    ratio: float | None = None
    ratio_median: float | None = None
    repeats: int | None = None
    target: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None or self.ratio is None:
            return ""
        return "met" if self.ratio >= self.target else "missed"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def measure(task: str, engine: str, num_envs: Sequence[int], steps: int, repeats: int) -> Iterator[Line]:
    """Lines of one task on one engine, as they are ready.

    Args:
      task: one of `TASKS` or of `navigation.TASKS`.
      engine: `native` or `mjx`.
      num_envs: batch sizes.
      steps: length of the scan.
      repeats: measured rounds.
    """
    from riskppo_jax.bench import brax, navigation

    lines = {"native": _native, "mjx": brax.measure}[engine]
    if task in navigation.TASKS:
        lines = partial(navigation.measure, engine=engine)
    for n in num_envs:
        yield from lines(task, n=n, steps=steps, repeats=repeats)


def task_speed(task: str, engine: str = "auto", num_envs: int = 256, steps: int = 40, repeats: int = 5) -> float:
    """Environment steps per second of a whole task inside `jit(scan(vmap))`, the best of several rounds."""
    env = make_env(task, engine=engine)
    states, actions = jax.jit(jax.vmap(env.reset))(world_keys(num_envs)), random_actions(env, steps, num_envs)
    program, _ = compiled(scan_of(jax.vmap(env.step)), states, actions)
    return race({task: until_ready(program, states, actions)}, repeats)[task].best


def _native(task: str, n: int, steps: int, repeats: int) -> Iterator[Line]:
    env, robot = make_env(task, engine="native"), robot_of(task)
    states = jax.jit(jax.vmap(env.reset))(world_keys(n))
    actions = random_actions(env, steps, n)
    # from where the task begins; only that resets itself
    carry, raw = raw_loop(env.engine, actions, getattr(states.sim, "carry", states.sim))
    engine, seconds = compiled(scan_of(engine_step(env.engine)), carry, actions)
    yield Line(task, "native engine, compile", n, seconds, unit="s")
    whole, seconds = compiled(scan_of(jax.vmap(env.step)), states, actions)
    yield Line(task, "native task, compile", n, seconds, unit="s")
    programs = {
        "raw": raw,
        "engine": until_ready(engine, carry, actions),
        "task": until_ready(whole, states, actions),
    }
    loop, reason = _gymnasium_loop(f"{robot}-v5", min(steps * n, 1000))
    rates = race(programs if loop is None else {**programs, "gymnasium": loop}, repeats)
    yield line_of(task, "native engine / raw batch", n, rates["engine"], rates["raw"], RAW)
    yield line_of(task, "native task / raw batch", n, rates["task"], rates["raw"])
    what = f"native task / {robot}-v5"
    if loop is None:
        yield Line(task, what, n, rates["task"].best, repeats=repeats, note=reason)
    else:
        yield line_of(task, what, n, rates["task"], rates["gymnasium"], GYMNASIUM.get(robot))
        yield line_of(task, f"raw batch / {robot}-v5", n, rates["raw"], rates["gymnasium"])


def line_of(
    task: str, what: str, n: int, ours: Rate, theirs: Rate, target: float | None = None, note: str = ""
) -> Line:
    best, median = ratios(ours, theirs)
    return Line(task, what, n, ours.best, theirs.best, "steps/s", best, median, len(ours.samples), target, note)


def robot_of(task: str) -> str:
    return task.removeprefix("Safety").removesuffix("Velocity-v1")


def world_keys(n: int) -> Array:
    return jax.random.split(jax.random.key(0), n)


def random_actions(env: Any, steps: int, n: int) -> Array:
    low, high = getattr(env, "action_range", (-1.0, 1.0))
    return jax.random.uniform(jax.random.key(1), (steps, n, env.action_size), minval=low, maxval=high)


def scan_of(step: Callable) -> Callable:
    def run(state, actions):
        return jax.lax.scan(lambda s, a: (step(s, a), None), state, actions)[0]

    return run


def engine_step(engine: Any) -> Callable:
    return jax.vmap(lambda carry, ctrl: engine.step(Sim(carry=carry, derived={}), ctrl).carry)


def until_ready(program: Callable, state: PyTree, actions: Array) -> Callable[[], int]:
    def run() -> int:
        jax.block_until_ready(program(state, actions))
        return actions.shape[0] * actions.shape[1]

    return run


def raw_loop(engine: Any, actions: Array, carry: Array | None = None) -> tuple[Array, Callable[[], int]]:
    """A carry for the engine, and what a user of `mujoco.batch` would write from the same states.

    Args:
      engine: a native one.
      actions: `[time, world, action]`.
      carry: the engine's own `[world, words]` to start from; by default near the model's rest.
    """
    from mujoco.batch import Batch

    from riskppo_jax.engines.native import _columns, _threads

    steps, n, _ = actions.shape
    model, substeps = engine.model, round(engine.dt / engine.model.opt.timestep)
    batch = Batch(model, n, nthread=min(n, _threads()))
    if carry is None:
        rng = np.random.default_rng(0)
        qpos = (model.qpos0 + 0.005 * rng.normal(size=(n, model.nq))).astype(np.float32)
        qvel = (0.005 * rng.normal(size=(n, model.nv))).astype(np.float32)
        batch.qpos, batch.qvel = qpos, qvel
        carry = jax.jit(jax.vmap(engine.init))(qpos, qvel).carry
    else:
        words, at = np.asarray(carry).view(np.float64), 0
        for start, stop in _columns(model, batch):
            batch.state[:, start:stop] = words[:, at : at + stop - start]
            at += stop - start
    batch.forward()
    start, ctrl, rows = batch.state.copy(), batch.bind("ctrl"), np.asarray(actions)

    def run() -> int:
        batch.state[:] = start
        for action in rows:
            ctrl[:] = action
            batch.step(nstep=substeps)
        return steps * n

    return carry, run


def _gymnasium_loop(id: str, steps: int) -> tuple[Callable[[], int] | None, str]:
    """A loop over `step` in one process, or None and the reason."""
    import gymnasium

    try:
        with quiet():
            env = gymnasium.make(id)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        return None, f"no comparison: gymnasium's {id} says: {error} (pip install 'riskppo-jax[bench]')"
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]
    env.reset(seed=0)

    def run() -> int:
        for action in actions:
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return steps

    return run, ""
