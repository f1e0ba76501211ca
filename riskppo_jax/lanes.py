"""A grid of runs as one program: the same `step`, over a leading axis `[lane, ...]` of states and numbers.

`vmap` runs all lanes at once; `map` runs them one after the other, or a batch at a time, in the same compiled
program, for where memory or cores are the limit. A lane's numbers are those of the single run with its settings.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from riskppo_jax import deploy, evaluation
from riskppo_jax.build import Job
from riskppo_jax.config import check_dual, check_ppo_hypers
from riskppo_jax.errors import UserError
from riskppo_jax.evaluation import Evaluation
from riskppo_jax.grid import points as product
from riskppo_jax.parallel import lanes_apart, put, spread_state, with_ghosts
from riskppo_jax.risk import oce
from riskppo_jax.risk.utility import Utility
from riskppo_jax.train import Hypers, Policy, RunState, Trainer, scan_steps
from riskppo_jax.types import Key, Metrics, PyTree


class Way(NamedTuple):
    """How lanes are run; `batch` lanes at a time under `map`."""

    mode: str = "vmap"
    batch: int = 1


def over_lanes(function: Callable, way: Way) -> Callable:
    """`function` of one lane as a function of all: arguments and results lead with `[lane]`."""
    if way.mode == "vmap":
        return jax.vmap(function)
    size = way.batch if way.batch > 1 else None
    return lambda *args: jax.lax.map(lambda own: function(*own), args, batch_size=size)


def inputs(job: Job) -> tuple[Key, Hypers]:
    """Key and numbers a run starts from; of a sweep one for each lane, stacked."""
    if not job.lanes:
        return jax.random.key(job.settings.seed), job.hypers
    keys = jnp.stack([jax.random.key(lane.settings.seed) for lane in job.lanes])
    return keys, stack([lane.hypers for lane in job.lanes])


def programs(job: Job, way: Way) -> tuple[Callable, Callable]:
    """`init(keys, hypers)` and a chunk of steps `(states, hypers) -> (states, metrics)`, not compiled yet."""
    pair = _init(job), scan_steps(job.trainer, job.chunk)
    if job.lanes:
        pair = over_lanes(pair[0], way), over_lanes(pair[1], way)
        if job.mesh:
            pair = lanes_apart(pair[0], job.mesh), lanes_apart(pair[1], job.mesh)
    return pair


def _init(job: Job) -> Callable[[Key, Hypers], RunState]:
    if job.settings.deploy == "last":
        return job.trainer.init
    return lambda key, hypers: deploy.begin(job.trainer.init(key, hypers))


class Runner:
    """The programs of a run, compiled for where its state lives; a state goes in and out, nothing stays."""

    def __init__(self, job: Job, way: Way):
        self._init, self._chunk = programs(job, way)
        self._lanes = len(job.lanes)
        self._ghosts = -self._lanes % job.mesh.size if job.mesh and job.lanes else 0
        self._inputs = with_ghosts(inputs(job), self._ghosts)
        self._spread = spread_state(jax.eval_shape(self._init, *self._inputs), job.mesh) if job.mesh else None
        self.program: Any = None  # the compiled chunk
        if self._spread:
            self._inputs = jax.tree.map(lambda x: put(jnp.asarray(x), self._spread.inputs), self._inputs)

    def start(self) -> RunState:
        """The state before the first step."""
        if not self._spread:
            return jax.jit(self._init)(*self._inputs)
        with jax.set_mesh(self._spread.mesh):
            return jax.jit(self._init, out_shardings=self._spread.state)(*self._inputs)

    def put(self, state: RunState) -> RunState:
        """A restored state, where the program wants it."""
        return self._spread.put(with_ghosts(state, self._ghosts)) if self._spread else state

    def fetch(self, state: RunState) -> RunState:
        """The state as this process alone can use it; all processes must ask together."""
        return self._own(self._spread.fetch(state)) if self._spread else state

    def _own(self, tree: PyTree) -> PyTree:
        """The lanes that somebody asked for."""
        return jax.tree.map(lambda x: x[: self._lanes], tree) if self._ghosts else tree

    def compile(self, state: RunState) -> None:
        """Compiles the chunk; `state` gives the shapes."""
        if not self._spread:
            self.program = jax.jit(self._chunk, donate_argnums=0).lower(state, self._inputs[1]).compile()
            return
        out = (self._spread.state, self._spread.inputs)
        with jax.set_mesh(self._spread.mesh):
            chunk = jax.jit(self._chunk, donate_argnums=0, out_shardings=out)
            self.program = chunk.lower(state, self._inputs[1]).compile()

    def __call__(self, state: RunState) -> tuple[RunState, dict[str, np.ndarray]]:
        """The next chunk: the state afterwards (the one given is gone) and its metrics on the host."""
        state, metrics = self.program(state, self._inputs[1])
        if self._spread:
            metrics = self._own(self._spread.fetch(metrics, jax.tree.map(lambda _: self._spread.inputs, metrics)))
        return state, jax.device_get(metrics)


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Trees of equal shapes as one with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def lane_of(tree: PyTree, index: int) -> PyTree:
    """One lane of a stacked tree."""
    return jax.tree.map(lambda x: x[index], tree)


def run_episodes(
    job: Job, policies: Policy, deterministic: bool, episodes: int, way: Way, seed: int
) -> list[Evaluation]:
    """Every lane's policy in its own environment; all of them meet the worlds of the same fixed keys."""
    noises = [lane.hypers.noise for lane in job.lanes]
    noise = None if noises[0] is None else jnp.asarray(noises, float)
    clip = jnp.asarray([lane.hypers.ppo.obs_clip for lane in job.lanes], float)
    limit = getattr(job.env, "limit", None) or 1000
    mesh = job.mesh if jax.process_count() == 1 else None  # evaluation is the business of process 0
    ghosts = -len(job.lanes) % mesh.size if mesh else 0
    found = _episodes(
        *with_ghosts((*policies, noise, clip), ghosts), seed,
        env=job.env, networks=job.trainer.networks, episodes=episodes, deterministic=deterministic, limit=limit,
        way=way, mesh=mesh,
    )  # fmt: skip
    (reward, cost, length, terminated), steps = jax.tree.map(np.asarray, found)
    every = Evaluation(reward, cost, length, terminated, *steps)
    return [lane_of(every, i) for i in range(len(job.lanes))]


@partial(jax.jit, static_argnames=("env", "networks", "episodes", "deterministic", "limit", "way", "mesh"))
def _episodes(params, moments, noise, clip, seed, *, way: Way, mesh: Mesh | None, **static):
    key = jax.random.key(seed)

    def one(params, moments, noise, clip):
        return evaluation._episodes(key, params, moments, noise, clip, **static)

    every = over_lanes(one, way)
    return (lanes_apart(every, mesh) if mesh else every)(params, moments, noise, clip)


class Swept(NamedTuple):
    """What `sweep` returns; states and metrics lead with `[lane]`, metrics then with the iteration."""

    points: list[dict[str, Any]]
    state: RunState
    metrics: Metrics
    hypers: Hypers


def sweep(
    trainer: Trainer,
    grid: Mapping[str, Sequence[Any] | int],
    iterations: int,
    hypers: Hypers | None = None,
    mode: str = "vmap",
    batch: int = 1,
) -> Swept:
    """Trains every point of a grid in one compiled program.

    Args:
      trainer: from `make_train`.
      grid: setting -> values, by the names of the command line: `risk.beta` (of every constraint), `objective.beta`,
        `threshold`, `noise`, `ppo.lr`, `dual.lam_step`, ...; `seed` takes a list, or a number of seeds from 0.
      iterations: steps of the trainer.
      hypers: everything that is not swept; if None the trainer's own, its learning rate falling over `iterations`.
      mode: `vmap` for all lanes at once, `map` for `batch` lanes at a time.
      batch: lanes at a time under `map`.

    Returns:
      The points in order, the final states, every iteration's metrics and the numbers of each lane.
    """
    if mode not in ("vmap", "map"):
        raise UserError(f"mode={mode}: accepts vmap, map")
    steps = float(iterations * trainer.steps_per_iteration)
    base = trainer.hypers.replace(total_steps=steps) if hypers is None else hypers
    values = {}
    for name, given in grid.items():
        if name == "seed" and isinstance(given, int | np.integer):
            given = range(int(given))
        elif not isinstance(given, Sequence | np.ndarray | jax.Array) or isinstance(given, str) or not np.ndim(given):
            raise UserError(f"grid: {name}={given!r}: accepts a list of values")
        values[name] = np.asarray(given).tolist() if isinstance(given, np.ndarray | jax.Array) else list(given)
    points = product(values)
    if not points:
        raise UserError("grid: is empty; accepts values for at least one setting")
    for seed in values.get("seed", ()):
        if not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise UserError(f"grid: seed={seed!r}: accepts whole numbers from 0 to 2^32 - 1")
    keys = jnp.stack([jax.random.key(point.get("seed", 0)) for point in points])
    stacked = stack([_with_point(base, point) for point in points])
    chunk = scan_steps(trainer, iterations)

    def run(key: Key, hypers: Hypers):
        return chunk(trainer.init(key, hypers), hypers)

    state, metrics = jax.jit(over_lanes(run, Way(mode, batch)))(keys, stacked)
    return Swept(points, state, metrics, stacked)


def _with_point(hypers: Hypers, point: Mapping[str, Any]) -> Hypers:
    """The numbers with those of a point in their places."""
    for name, value in point.items():
        if name == "seed":
            continue
        area, _, key = name.rpartition(".")
        try:
            hypers = _with_number(hypers, area, key, value)
        except (AttributeError, TypeError):
            raise UserError(f"grid: {name} is not among the traced numbers of this trainer") from None
    return hypers


def _with_number(hypers: Hypers, area: str, key: str, value: Any) -> Hypers:
    problem = hypers.problem
    if area == "risk" or (not area and key == "threshold"):
        field = {"threshold": value} if not area else {}
        constraints = tuple(c.replace(**field or {"utility": _with_parameter(c.utility, key, value)})
                            for c in problem.constraints)  # fmt: skip
        return hypers.replace(problem=problem.replace(constraints=constraints))
    if area == "objective":
        objective = _with_parameter(problem.objective, key, value)
        return hypers.replace(problem=problem.replace(objective=objective))
    if area == "ppo":
        ppo = hypers.ppo.replace(**{key: value})
        check_ppo_hypers(ppo)
        return hypers.replace(ppo=ppo)
    if area == "dual":
        check_dual(key, value)
    elif (area, key) == ("", "noise") and not 0 <= value < math.inf:
        raise UserError(f"grid: noise={value}: accepts a standard deviation >= 0")
    if area == "dual" and hasattr(hypers.dual, key):
        return hypers.replace(dual=hypers.dual.replace(**{key: value}))
    if area not in ("", "dual") or dataclasses.is_dataclass(getattr(hypers, key)):
        raise AttributeError(key)
    return hypers.replace(**{key: value})


def _with_parameter(utility: Utility, key: str, value: Any) -> Utility:
    """The utility with another number in it, checked as if it had been made with it."""
    if not hasattr(utility, key):
        raise AttributeError(key)
    if utility.name not in oce.MEASURES:  # one of the user's own
        return dataclasses.replace(utility, **{key: value})
    return oce.from_config({**utility.config(), key: value})


def state_bytes(job: Job) -> int:
    """What one lane carries from step to step."""
    lane = job.lanes[0] if job.lanes else job
    state = jax.eval_shape(job.trainer.init, jax.random.key(0), lane.hypers)
    return sum(_size(leaf) for leaf in jax.tree.leaves(state))


def _size(leaf: Any) -> int:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return math.prod(leaf.shape) * leaf.dtype.itemsize
