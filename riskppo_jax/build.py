"""From settings to a job: the environment, the problem, the trainer and its numbers, all checked."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from riskppo_jax import deploy, grid, sgda, units
from riskppo_jax.config import Layout, PPOHypers, check_dual, check_ppo_hypers
from riskppo_jax.engines.base import resolve
from riskppo_jax.envs.base import Env
from riskppo_jax.envs.registry import list_envs, make_env
from riskppo_jax.envs.wrappers import LidarPowers
from riskppo_jax.errors import UserError
from riskppo_jax.parallel import ENVS, LANES, PAIR, SpreadEnv, fewest, make_mesh, on_own_cores
from riskppo_jax.risk import oce
from riskppo_jax.risk.lagrangian import Constraint, Problem
from riskppo_jax.risk.utility import Utility
from riskppo_jax.runs import numbered
from riskppo_jax.scheme import Scheme
from riskppo_jax.settings import Settings
from riskppo_jax.train import Hypers, Trainer, make_train

SHARDS = ("auto", LANES, ENVS, "none")
PAIRED = 16  # worlds from which on halves of them on two cores are quicker
PAIRED_ENGINES = ("native", "analytic")  # that are known to run on several devices at once: see `claim_cores`
MODES = ("auto", "vmap", "map")  # how the lanes of a sweep are run


class Job(NamedTuple):
    """What a run needs besides its directory."""

    settings: Settings
    engine: str  # the one behind `auto`
    env: Env
    layout: Layout
    trainer: Trainer
    hypers: Hypers
    chunks: int  # log points of the whole run
    chunk: int  # iterations between two of them
    point: grid.Point = {}  # noqa: RUF012  # the swept settings' values, in a lane of a sweep
    lanes: tuple["Job", ...] = ()  # of a sweep, each a single run's job with the same environment and trainer
    mesh: Mesh | None = None  # devices that the lanes, or the environments, are spread over

    def evaluates(self, iterations: int) -> bool:
        """Whether the policy is evaluated after so many iterations: about `eval.points` times, evenly."""
        points, chunk = self.settings.eval.points, iterations // self.chunk
        return bool(points) and chunk * points // self.chunks > (chunk - 1) * points // self.chunks


def build(settings: Settings) -> Job:
    """Checks every setting and makes the job; nothing is compiled or written yet."""
    engine = resolve(settings.engine)  # complains about one that is not available
    _check_counts(settings)
    layout = _named("layout", Layout, **vars(settings.layout))
    points = grid.points(settings.sweep.grid)
    base = grid.at_point(settings, points[0]) if points else settings  # what is swept need not make sense without
    rule, scheme = _dual(base)[0], Scheme(**vars(base.scheme))
    _numbers(base)
    env = _env(base)
    env = LidarPowers(env, layout.lidar_powers) if layout.lidar_powers else env
    engine = getattr(getattr(env, "engine", None), "name", engine)  # with `auto` the task may know better
    settings = dataclasses.replace(settings, engine=engine)  # what the run needs wherever it is opened again
    hypers = _hypers(base, env)
    mesh = _mesh(settings, len(points), env)
    spread = SpreadEnv(env, mesh) if mesh and not points else env
    trainer = make_train(spread, layout, hypers.problem, rule, scheme)
    chunks, chunk = plan(settings.total_steps, trainer.steps_per_iteration, settings.log.every)
    job = Job(settings, engine, env, layout, trainer, hypers, chunks, chunk, mesh=mesh)
    return job._replace(lanes=tuple(_lanes(job, points)))


def _mesh(settings: Settings, lanes: int, env: Env) -> Mesh | None:
    """The devices a run is spread over; None for one."""
    if settings.shard not in SHARDS:
        raise UserError(f"shard={settings.shard}: accepts {', '.join(SHARDS)}")
    there = jax.device_count()
    if not 0 <= settings.devices <= there:
        raise UserError(f"devices={settings.devices}: accepts 1 to {there}, or 0 for all")
    count = settings.devices or there
    if settings.shard == LANES and not lanes:
        raise UserError("shard=lanes: accepts a sweep; a single run accepts envs or none")
    if settings.shard == ENVS and lanes:
        raise UserError("shard=envs: accepts a single run; a sweep accepts lanes or none")
    if settings.shard == "none" and jax.process_count() > 1:
        raise UserError("shard=none: accepts one process; several accept lanes (a sweep) or envs (a single run)")
    own = on_own_cores() and not settings.devices
    if own and getattr(getattr(env, "engine", None), "name", None) == "mjx":  # see `run.claim_cores`
        return None
    if own and lanes:
        count = fewest(lanes, count)
    if count == 1 or settings.shard == "none":
        return None
    if own and settings.shard == "auto" and not lanes:
        n, engine = settings.layout.num_envs, getattr(env, "engine", None)
        known = getattr(engine, "name", None) in PAIRED_ENGINES  # what a task of one's own computes, nobody knows
        return make_mesh(PAIR, 2) if known and n >= PAIRED and n % 2 == 0 else None
    if jax.process_count() > 1 and count != there:
        raise UserError(f"devices={settings.devices}: several processes accept 0, all {there} devices")
    axis, size = (LANES, lanes) if lanes else (ENVS, settings.layout.num_envs)
    if size % count and not (own and lanes):
        what = f"sweep: {size} lanes" if lanes else f"layout.num_envs={size}"
        raise UserError(f"{what} do not divide over {count} devices; accepts a multiple of {count}, another devices=N "
                        "or shard=none")  # fmt: skip
    return make_mesh(axis, count)


def _lanes(job: Job, points: Sequence[grid.Point]) -> Iterator[Job]:
    """A job for each point of the grid; complains where a swept setting does not reach the problem."""
    seen: dict[str, grid.Point] = {}
    for point in points:
        own = grid.at_point(job.settings, point)
        try:
            hypers = _hypers(own, job.env)
        except UserError as error:
            raise UserError(f"sweep: at {grid.describe(point)}: {error}") from error
        if "noise" in point:
            hypers = hypers.replace(noise=point["noise"])
        numbers = repr((describe(hypers), own.seed))
        if numbers in seen:
            name = next(name for name, value in point.items() if seen[numbers][name] != value)
            raise UserError(f"sweep.{name}: nothing in this run depends on it; accepts settings that it uses")
        seen[numbers] = point
        if jax.tree.map(np.shape, hypers) != jax.tree.map(np.shape, job.hypers.replace(noise=hypers.noise)):
            raise UserError(f"sweep: at {grid.describe(point)}: accepts lists of equal length at every point")
        yield job._replace(settings=own, hypers=hypers, point=point)


def _hypers(settings: Settings, env: Env) -> Hypers:
    """Every traced number, checked."""
    ppo, dual, starts, objective = _numbers(settings)
    if settings.noise is not None and not 0 <= settings.noise < math.inf:
        raise UserError(f"noise={settings.noise}: accepts a standard deviation >= 0")
    problem = Problem(objective, _constraints(settings, env))
    units.check_ranges(problem, env)
    bounds = units.dual_sets(problem, env, starts["lam_max"], sgda.Rule(), Scheme(**vars(settings.scheme))).lam_max
    for constraint, bound in zip(problem.constraints, bounds.tolist(), strict=True):
        if starts["lam_init"] > bound * (1 + 1e-6):
            raise UserError(f"dual.lam_init={starts['lam_init']}: accepts at most {bound:g} for {constraint.name}, "
                            "dual.lam_max in what a unit is worth")  # fmt: skip
    return Hypers(problem, ppo, dual, total_steps=float(settings.total_steps), **starts)


def _numbers(settings: Settings) -> tuple[PPOHypers, sgda.DualHypers, dict[str, float], Utility]:
    """The traced numbers that can be checked without the environment."""
    ppo = PPOHypers(**vars(settings.ppo))
    _named("ppo", check_ppo_hypers, ppo)
    _, dual, starts = _dual(settings)
    objective = _utility("objective", settings.objective)
    _utility("risk", settings.risk)
    return ppo, dual, starts, objective


def plan(total_steps: int, per_iteration: int, every: int) -> tuple[int, int]:
    """Cuts a run into equal chunks: one program serves all of them.

    Returns:
      Number of chunks and iterations in each, near `every`; together they use as many of `total_steps` as
      chunks of equal length can, and never more.
    """
    iterations = total_steps // per_iteration
    if iterations < 1:
        raise UserError(
            f"total_steps={total_steps}: accepts at least one batch of {per_iteration} "
            "(layout.num_envs * layout.horizon, as often as scheme.dual_rollout=fresh and scheme.policy_updates say)"
        )
    every = min(every, iterations)
    sizes = range(max(1, (every + 1) // 2), min(iterations, 2 * every) + 1)
    best = min(sizes, key=lambda size: (iterations % size, abs(size - every)))
    return iterations // best, best


def describe(hypers: Hypers) -> dict[str, Any]:
    """The traced numbers as plain ones, by the names of the settings."""
    numbers: dict[str, Any] = {}
    for area in ("ppo", "dual"):
        numbers |= {f"{area}.{name}": float(value) for name, value in vars(getattr(hypers, area)).items()}
    numbers |= {f"dual.{name}": float(getattr(hypers, name)) for name in ("lam_max", "lam_init", "t_init")}
    numbers["objective"] = hypers.problem.objective.config()
    constraints = hypers.problem.constraints
    for name, constraint in zip(numbered(c.name for c in constraints), constraints, strict=True):
        numbers[f"risk.{name}"] = constraint.utility.config()
        numbers[f"threshold.{name}"] = float(constraint.threshold)
    if hypers.noise is not None:
        numbers["noise"] = float(hypers.noise)
    return numbers | {"total_steps": int(hypers.total_steps)}


def _check_counts(settings: Settings) -> None:
    least = {
        "seed": 0, "total_steps": 1, "log.every": 1, "checkpoint.keep": 1, "eval.episodes": 1, "eval.bootstrap": 1,
        "eval.points": 0, "eval.point_episodes": 1, "eval.confirm_episodes": 0,
    }  # fmt: skip
    for key, low in least.items():
        area, _, name = key.rpartition(".")
        value = getattr(getattr(settings, area) if area else settings, name)
        if not low <= value < 2**32:
            raise UserError(f"{key}={value}: accepts a whole number from {low} to {2**32 - 1}")
    if settings.deploy not in deploy.CHOICES:
        raise UserError(f"deploy={settings.deploy}: accepts {', '.join(deploy.CHOICES)}")
    if settings.deploy == "best" and not settings.eval.points:
        raise UserError("deploy=best: eval.points=0 leaves nothing to choose from; accepts 1 or more")
    if settings.deploy == "best" and settings.scheme.risk_of == "episode":
        raise UserError("deploy=best: chooses by the risk of a step; accepts scheme.risk_of=step")
    if settings.deploy == "best" and jax.process_count() > 1:
        raise UserError("deploy=best: accepts one process; several accept last")
    if settings.start_from is not None and jax.process_count() > 1:
        raise UserError(f"start_from={settings.start_from}: accepts one process; several accept null")
    if settings.start_from is None and settings.start_lane is not None:
        raise UserError(f"start_lane={settings.start_lane}: accepts null without start_from")
    if settings.sweep.mode not in MODES:
        raise UserError(f"sweep.mode={settings.sweep.mode}: accepts {', '.join(MODES)}")
    if settings.sweep.batch < 0:
        raise UserError(f"sweep.batch={settings.sweep.batch}: accepts lanes at a time, or 0 to choose")
    if not 0 <= settings.checkpoint.seconds < math.inf:
        raise UserError(f"checkpoint.seconds={settings.checkpoint.seconds}: accepts a number of seconds, 0 or more")


def _dual(settings: Settings) -> tuple[sgda.Rule, sgda.DualHypers, dict[str, float]]:
    given = dict(vars(settings.dual))
    for name, value in given.items():
        check_dual(name, value)
    starts = {name: given.pop(name) for name in ("lam_max", "lam_init", "t_init")}
    rule = sgda.Rule(**{name: given.pop(name) for name in ("lam", "t", "box", "smoothed")})
    return rule, sgda.DualHypers(**given), starts


def _env(settings: Settings) -> Env:
    options = dict(settings.env)
    id = options.pop("id", None)
    if not isinstance(id, str):
        raise UserError(f"env.id={id}: accepts one of {', '.join(list_envs())}")
    for name in ("noise", "auto_reset"):
        if name in options:
            raise UserError(f"env.{name}: accepts nothing here; " + (
                "set noise" if name == "noise" else "a trainer's worlds reset themselves"))  # fmt: skip
    if settings.noise is not None:
        options["noise"] = settings.noise
    if isinstance(settings.threshold, str):
        if settings.threshold not in ("paper", "v1"):
            raise UserError(f"threshold={settings.threshold}: accepts a number, paper, v1 or null")
        options["thresholds"] = settings.threshold
    try:
        return make_env(id, settings.engine, **options)
    except UserError as error:
        if str(error).split("=")[0] in settings.env:  # an option of the task, by the name it was given under
            raise UserError(f"env.{error}") from error
        if str(error).startswith("thresholds="):
            raise UserError(str(error).replace("thresholds", "threshold") + ", or a number") from error
        raise


def _constraints(settings: Settings, env: Env) -> tuple[Constraint, ...]:
    entries = settings.constraints
    if entries is None and settings.threshold is not None and not env.constraint_names:
        raise UserError(f"threshold={settings.threshold}: this task has nothing to limit; accepts null")
    if entries is None:
        usual = [name for name in env.constraint_names if name in env.thresholds]
        entries = usual if usual or settings.threshold is None else list(env.constraint_names)
    if not isinstance(entries, list | tuple):
        raise UserError(f"constraints={entries}: accepts a list of names or of {{name, threshold, risk}}")
    found = []
    for entry in entries:
        entry = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise UserError(f"constraints: entry {entry!r}: accepts a name or {{name, threshold, risk}}")
        unknown = sorted(set(entry) - {"name", "threshold", "risk"})
        if unknown:
            raise UserError(f"constraints: entry {entry['name']} has {unknown[0]}; accepts name, threshold, risk")
        name, own = entry["name"], entry.get("risk")
        if name not in env.constraint_names:
            raise UserError(f"constraints: {name} is unknown; this task accepts {', '.join(env.constraint_names)}")
        utility = _utility("risk", settings.risk if own is None else own)
        limit = _threshold(entry.get("threshold"), name, settings, env)
        if any((c.name, c.threshold, c.utility.config()) == (name, limit, utility.config()) for c in found):
            raise UserError(f"constraints: {name} is there twice with the same limit and risk; accepts each once")
        found.append(Constraint(name, limit, utility))
    return tuple(found)


def _threshold(own: Any, name: str, settings: Settings, env: Env) -> float:
    value = settings.threshold if own is None else own
    if own is None and (value is None or isinstance(value, str)):  # a word has chosen the task's own limits
        if name not in env.thresholds:
            raise UserError(f"threshold: the task has no usual limit for {name}; accepts a number")
        return float(env.thresholds[name])
    low, high = env.constraint_range[name]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and low <= value <= high):
        raise UserError(f"threshold={value}: accepts numbers from {low:g} to {high:g}, the range of {name}")
    return float(value)


def _utility(where: str, config: Any) -> Utility:
    """The utility a mapping (or a bare name) describes; complaints name the setting it came from."""
    config = {"name": config} if isinstance(config, str) else config
    try:
        return oce.from_config(config)
    except UserError as error:
        text = str(error)
        text = re.sub(r"\brisk(?=[.=])", where, text) if text.startswith("risk") else f"{where}.{text}"
        raise UserError(text) from error


def _named(area: str, make, *args, **settings):
    try:
        return make(*args, **settings)
    except UserError as error:
        raise UserError(f"{area}.{error}") from error
