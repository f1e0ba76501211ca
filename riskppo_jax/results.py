"""What a finished run leaves behind: the final evaluation, `summary.json`, `samples.npz`, figures and report."""

import json
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from riskppo_jax import deploy, lanes
from riskppo_jax.build import Job, describe
from riskppo_jax.evaluation import (
    EVALUATION_SEED,
    Evaluation,
    as_episodes,
    discounted,
    evaluate,
    metrics,
    objective_report,
    risk_report,
)
from riskppo_jax.grid import describe as describe_point
from riskppo_jax.lanes import Way, lane_of
from riskppo_jax.runs import LAWS, best_t, first_of, has_t, read_log
from riskppo_jax.train import BAD_ITERATIONS, Policy, RunState
from riskppo_jax.traps import find_traps
from riskppo_jax.writers import plain

if TYPE_CHECKING:
    from riskppo_jax.rundir import Progress

CHOOSING = 2  # what is added to the seed of worlds in which a policy is chosen; 1 is the bootstrap's
CONFIRMING = 3  # and of those in which it has to be good once more
_PACKAGES = ("riskppo-jax", "jax", "jaxlib", "flax", "optax", "mujoco", "mujoco-mjx", "gymnasium", "numpy")


def finish(job: Job, folder: Path, state: RunState, progress: "Progress", clock: Callable[[], float], way: Way) -> int:
    """Evaluates the policies and writes everything; returns the exit code, 1 where a lane diverged."""
    singles = job.lanes or (job,)
    states = [lane_of(state, i) for i in range(len(singles))] if job.lanes else [state]
    count = job.settings.eval.episodes
    mean = _all_episodes(job, state.deployed, True, count, way)
    sampled = _all_episodes(job, state.trained, False, count, way)
    found = [describe_lane(*each) for each in zip(singles, states, mean, sampled, strict=True)]
    if job.lanes:
        found = [lane | {"point": own.point} for lane, own in zip(found, singles, strict=True)]
    done = [int(each.env_steps) for each in states]
    summary = {
        "env": job.settings.env["id"],
        "engine": job.engine,
        "algo": job.settings.algo,
        "env_steps": max(done),  # of a lane
        "wall_seconds": clock(),
        "steps_per_second": sum(done) / progress.train_seconds if progress.train_seconds else None,
        "versions": versions(),
        "warnings": _warnings(job, read_log(folder / "metrics.jsonl")),
        "lanes": found,
    }
    arrays: dict[str, np.ndarray] = {}
    for i, pair in enumerate(zip(mean, sampled, strict=True)):
        arrays |= {f"lane{i}/{name}" if job.lanes else name: x for name, x in _samples(job, *pair).items()}
    _write_samples(folder / "samples.npz", arrays)
    if job.settings.report:
        from riskppo_jax.report import write_run_report

        write_run_report(folder, summary, job, state)
    _write_json(folder / "summary.json", summary)  # last: where it is, everything is
    _say(summary, folder)
    return exit_code(folder)


def exit_code(folder: Path) -> int:
    """What a finished run says of itself: 1 where a lane diverged."""
    lanes = json.loads((folder / "summary.json").read_text())["lanes"]
    return 1 if any(lane["diverged"] for lane in lanes) else 0


def run_episodes(job: Job, state: RunState, deterministic: bool, episodes: int | None = None) -> Evaluation:
    """Episodes of a single run's policy in its own environment, from the fixed evaluation keys.

    With mean actions the policy that is deployed, with sampled ones the one that was trained.
    """
    policy = state.deployed if deterministic else state.trained
    return _single(job, policy, deterministic, episodes or job.settings.eval.episodes)


def _single(job: Job, policy: Policy, deterministic: bool, episodes: int, seed: int = EVALUATION_SEED) -> Evaluation:
    return evaluate(
        job.env, job.trainer.networks, *policy, episodes, deterministic, job.hypers.noise, job.hypers.ppo.obs_clip,
        key=jax.random.key(seed),
    )  # fmt: skip


def evaluation_points(job: Job, state: RunState, way: Way) -> list[dict[str, float]]:
    """A few episodes of the mean action while training goes on, as entries of each lane's log point.

    Where they choose what is deployed they are others than those of the final evaluation.
    """
    seed = EVALUATION_SEED if job.settings.deploy == "last" else EVALUATION_SEED + CHOOSING
    return _points(job, state.newest, job.settings.eval.point_episodes, way, seed)


def choose(job: Job, state: RunState, points: list[dict[str, float]], way: Way) -> RunState:
    """The state with the newest policies chosen where they are the best so far, here and in further episodes."""
    problems = [own.hypers.problem for own in job.lanes or (job,)]
    leads = np.atleast_1d(deploy.leads(state, points, problems))
    episodes = job.settings.eval.confirm_episodes
    if episodes and leads.any():
        again = _confirm(job, state, leads, episodes, way)
        points = [again[i] if lead else point for i, (lead, point) in enumerate(zip(leads, points, strict=True))]
    return deploy.choose(state, points, problems)


def _confirm(job: Job, state: RunState, leads: np.ndarray, episodes: int, way: Way) -> dict[int, dict[str, float]]:
    """Further episodes of the lanes that lead: all lanes at once, unless they run a few at a time anyway."""
    seed = EVALUATION_SEED + CONFIRMING
    if not job.lanes or way.mode == "vmap":
        return dict(enumerate(_points(job, state.newest, episodes, way, seed)))
    leading, size = np.flatnonzero(leads), way.batch * (job.mesh.size if job.mesh else 1)
    found: dict[int, dict[str, float]] = {}
    for some in (leading[i : i + size] for i in range(0, len(leading), size)):
        few = job._replace(lanes=tuple(job.lanes[i] for i in some))
        policies = jax.tree.map(lambda x, some=some: x[some], state.newest)
        found |= zip(some.tolist(), _points(few, policies, episodes, way, seed), strict=True)
    return found


def _points(job: Job, policy: Policy, episodes: int, way: Way, seed: int) -> list[dict[str, float]]:
    found, singles = _all_episodes(job, policy, True, episodes, way, seed), job.lanes or (job,)
    if job.settings.scheme.occupancy == "discounted":
        found = [discounted(each, float(own.hypers.ppo.gamma)) for own, each in zip(singles, found, strict=True)]
    return [metrics(each, own.hypers.problem) for own, each in zip(singles, found, strict=True)]


def _all_episodes(
    job: Job, policy: Policy, deterministic: bool, episodes: int, way: Way, seed: int = EVALUATION_SEED
) -> list[Evaluation]:
    if job.lanes:
        return lanes.run_episodes(job, policy, deterministic, episodes, way, seed)
    return [_single(job, policy, deterministic, episodes, seed)]


def _warnings(job: Job, points: list[dict[str, Any]]) -> list[str]:
    names = [constraint.name for constraint in job.hypers.problem.constraints]
    if not job.lanes:
        return find_traps(points, names)
    found = []
    for i, lane in enumerate(job.lanes):
        traps = find_traps([point for point in points if point["sweep/lane"] == i], names)
        found += [f"lane {i} ({describe_point(lane.point)}): {trap}" for trap in traps]
    return found


def describe_lane(job: Job, state: RunState, mean: Evaluation, sampled: Evaluation) -> dict[str, Any]:
    """One entry of `lanes`: numbers of the mean action, and under `sampled` those of sampled ones."""
    constraints = []
    for i, constraint in enumerate(job.hypers.problem.constraints):
        resamples = job.settings.eval.bootstrap
        constraints.append(
            {
                "name": constraint.name,
                "threshold": float(constraint.threshold),
                "risk": constraint.utility.config(),
                "lam": float(state.dual.lam[i]),
                "t": np.asarray(state.dual.t[i + 1], np.float64).tolist(),
                **risk_report(constraint, mean, resamples),
                "sampled": risk_report(constraint, sampled, resamples),
            }
        )
        if job.settings.scheme.risk_of == "episode":  # what lambda and t are about
            constraints[-1]["whole"] = risk_report(constraint, as_episodes(mean, job.env.limit), resamples)
        if job.settings.scheme.occupancy == "discounted":  # likewise
            law = discounted(mean, float(job.hypers.ppo.gamma))
            constraints[-1]["discounted"] = risk_report(constraint, law, resamples)
        if state.chosen is not None:  # t and lam are of the last policy
            constraints[-1]["deployed_after"] = int(state.chosen.env_steps)
    own = {"objective": _objective(job, state, mean, sampled)} if job.hypers.problem.averse else {}
    return (
        own
        | {
            "seed": job.settings.seed,
            "hypers": describe(job.hypers) | {"noise": job.settings.noise},
            "constraints": constraints,
            "eval": mean.summary(),
            "eval_sampled": sampled.summary(),
            "diverged": bool(state.bad_streak >= BAD_ITERATIONS),
        }
        | ({} if state.chosen is None else {"chosen": {"env_steps": int(state.chosen.env_steps)}})
    )


def _objective(job: Job, state: RunState, mean: Evaluation, sampled: Evaluation) -> dict[str, Any]:
    """What came of an objective that is not the mean; of whole episodes where training looks at these."""
    objective, resamples = job.hypers.problem.objective, job.settings.eval.bootstrap
    if job.settings.scheme.risk_of == "episode":
        mean, sampled = as_episodes(mean, job.env.limit), as_episodes(sampled, job.env.limit)
    return {
        "risk": objective.config(),
        "t": np.asarray(state.dual.t[0], np.float64).tolist(),
        **objective_report(objective, mean, resamples),
        "sampled": objective_report(objective, sampled, resamples),
    }


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _samples(job: Job, mean: Evaluation, sampled: Evaluation) -> dict[str, np.ndarray]:
    """Per constraint the quantity of every visited step; `episode` says which episode a step belongs to.

    Where the objective is not the mean the reward of every step as well.
    """
    arrays: dict[str, np.ndarray] = {}
    for suffix, found in (("", mean), ("_sampled", sampled)):
        arrays |= {f"{name}{suffix}": found.samples(name) for name in job.env.constraint_names}
        if job.hypers.problem.averse:
            arrays[f"reward{suffix}"] = found.rewards()
        arrays[f"episode{suffix}"] = np.repeat(np.arange(len(found.length)), found.visited.sum(0))
        for name in ("reward", "cost", "length"):
            arrays[f"episode_{name}{suffix}"] = getattr(found, name)
    return arrays


def _write_samples(path: Path, arrays: dict[str, np.ndarray]) -> None:
    draft = path.with_name(".samples.tmp.npz")
    np.savez_compressed(draft, **arrays)
    draft.replace(path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(plain(content), indent=1, allow_nan=False) + "\n")
    draft.replace(path)


def _say(summary: dict[str, Any], folder: Path) -> None:
    found = summary["lanes"]
    print(f"{summary['env_steps']:,} steps in {summary['wall_seconds']:.0f} s")
    for i, lane in enumerate(found):
        if len(found) > 1 or "point" in lane:
            print(f"lane {i}: {describe_point(lane['point'])}")
        _say_lane(lane)
    for warning in summary["warnings"]:
        print(f"warning: {warning}")
    diverged = [i for i, lane in enumerate(found) if lane["diverged"]]
    if diverged:
        which = f" in lanes {', '.join(map(str, diverged))}" if "point" in found[0] else ""
        print(f"diverged{which}: losses were not finite three iterations in a row; the last good parameters are kept")
    print("written: " + ", ".join(str(p) for p in (folder / "summary.json", folder / "report.html") if p.exists()))


def _say_lane(lane: dict[str, Any]) -> None:
    found = lane["eval"]
    if "chosen" in lane:
        print(f"deployed: the policy after {lane['chosen']['env_steps']:,} steps, the best of the evaluation points")
    print(
        f"evaluation over {found['episodes']} episodes: reward {found['reward_mean']:.1f} +- "
        f"{found['reward_std']:.1f}, cost {found['cost_mean']:.2f}, length {found['length_mean']:.0f}"
    )
    if "objective" in lane:
        print(say_objective(lane["objective"]))
    for c in lane["constraints"]:
        low, high = c["risk_value_ci"]
        verdict = "kept" if c["satisfied"] else "NOT kept"
        print(
            f"{c['name']}: {c['risk']['name']} {c['risk_value']:.4g} [{low:.4g}, {high:.4g}] against c = "
            f"{c['threshold']:g} ({verdict}), {_say_t(c)}lambda {c['lam']:.4g}"
        )
        for line in say_laws(c):
            print(line)


def _say_t(c: dict[str, Any]) -> str:
    if not has_t(c["risk"]):
        return ""
    return f"{best_t(c['risk'])} {_show(first_of(c, 'quantile'))}, -t {_show(first_of(c, 't'), -1)}, "


def say_objective(own: dict[str, Any]) -> str:
    """One line about the value of an objective that is not the mean."""
    low, high = own["value_ci"]
    return (
        f"objective: {own['risk']['name']} of the reward {own['value']:.4g} [{low:.4g}, {high:.4g}], "
        f"t {_show(own['t'])}, its best {_show(own['best_t'])}"
    )


def say_laws(constraint: dict[str, Any]) -> Iterator[str]:
    """A line about the law that was constrained, where that is not the one of all visited steps alike."""
    for law, called in LAWS.items():
        if law in constraint:
            found = {**constraint, **constraint[law]}
            yield (
                f"  of {called}, which t and lambda are about: {found['risk']['name']} {found['risk_value']:.4g} "
                f"({'kept' if found['satisfied'] else 'NOT kept'}), {best_t(found['risk'])} "
                f"{_show(first_of(found, 'quantile'))}"
            )


def _show(value: float | list[float], sign: int = 1) -> str:
    return f"{sign * value + 0.0:.4g}" if isinstance(value, float) else " ".join(_show(x, sign) for x in value)
