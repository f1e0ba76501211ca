"""What a finished run leaves behind: the final evaluation, `summary.json`, `samples.npz`, figures and report."""

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from riskppo_jax.build import Job, describe
from riskppo_jax.evaluation import Evaluation, evaluate, metrics, risk_report
from riskppo_jax.train import BAD_ITERATIONS, RunState
from riskppo_jax.traps import find_traps
from riskppo_jax.writers import plain, read_points

if TYPE_CHECKING:
    from riskppo_jax.run import Progress

_PACKAGES = ("riskppo-jax", "jax", "jaxlib", "flax", "optax", "mujoco", "mujoco-mjx", "gymnasium", "numpy")


def finish(job: Job, folder: Path, state: RunState, progress: "Progress", clock: Callable[[], float]) -> int:
    """Evaluates the policy and writes everything; returns the exit code, 1 where the run diverged."""
    mean, sampled = (run_episodes(job, state, deterministic) for deterministic in (True, False))
    points = read_points(folder / "metrics.jsonl")
    names = [constraint.name for constraint in job.hypers.problem.constraints]
    lane = describe_lane(job, state, mean, sampled)
    env_steps = int(state.env_steps)
    summary = {
        "env": job.settings.env["id"],
        "engine": job.engine,
        "algo": job.settings.algo,
        "env_steps": env_steps,
        "wall_seconds": clock(),
        "steps_per_second": env_steps / progress.train_seconds if progress.train_seconds else None,
        "versions": versions(),
        "warnings": find_traps(points, names),
        "lanes": [lane],
    }
    _write_samples(folder / "samples.npz", job, mean, sampled)
    if job.settings.report:
        from riskppo_jax.report import write_run_report

        write_run_report(folder, summary, job, state)
    _write_json(folder / "summary.json", summary)  # last: where it is, everything is
    _say(summary, folder)
    return 1 if lane["diverged"] else 0


def run_episodes(job: Job, state: RunState, deterministic: bool, episodes: int | None = None) -> Evaluation:
    """Episodes of the run's policy in its own environment, from the fixed evaluation keys."""
    return evaluate(
        job.env, job.trainer.networks, state.learner.params, state.moments, episodes or job.settings.eval.episodes,
        deterministic, job.hypers.noise, job.hypers.ppo.obs_clip,
    )  # fmt: skip


def evaluation_point(job: Job, state: RunState) -> dict[str, float]:
    """A few episodes of the mean action while training goes on, as entries of a log point."""
    found = run_episodes(job, state, True, job.settings.eval.point_episodes)
    return metrics(found, job.hypers.problem.constraints)


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
    return {
        "seed": job.settings.seed,
        "hypers": describe(job.hypers) | {"noise": job.settings.noise},
        "constraints": constraints,
        "eval": mean.summary(),
        "eval_sampled": sampled.summary(),
        "diverged": bool(state.bad_streak >= BAD_ITERATIONS),
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


def _write_samples(path: Path, job: Job, mean: Evaluation, sampled: Evaluation) -> None:
    """Per constraint the quantity of every visited step; `episode` says which episode a step belongs to."""
    arrays: dict[str, np.ndarray] = {}
    for suffix, found in (("", mean), ("_sampled", sampled)):
        arrays |= {f"{name}{suffix}": found.samples(name) for name in job.env.constraint_names}
        arrays[f"episode{suffix}"] = np.repeat(np.arange(len(found.length)), found.length.astype(int))
        for name in ("reward", "cost", "length"):
            arrays[f"episode_{name}{suffix}"] = getattr(found, name)
    draft = path.with_name(".samples.tmp.npz")
    np.savez_compressed(draft, **arrays)
    draft.replace(path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(plain(content), indent=1, allow_nan=False) + "\n")
    draft.replace(path)


def _say(summary: dict[str, Any], folder: Path) -> None:
    lane = summary["lanes"][0]
    found = lane["eval"]
    print(
        f"{summary['env_steps']:,} steps in {summary['wall_seconds']:.0f} s; "
        f"evaluation over {found['episodes']} episodes: reward {found['reward_mean']:.1f} +- "
        f"{found['reward_std']:.1f}, cost {found['cost_mean']:.2f}, length {found['length_mean']:.0f}"
    )
    for c in lane["constraints"]:
        low, high = c["risk_value_ci"]
        verdict = "kept" if c["satisfied"] else "NOT kept"
        print(
            f"{c['name']}: {c['risk']['name']} {c['risk_value']:.4f} [{low:.4f}, {high:.4f}] against c = "
            f"{c['threshold']:g} ({verdict}), quantile {_show(c['quantile'])}, -t {_show(c['t'], -1)}, "
            f"lambda {c['lam']:.4g}"
        )
    for warning in summary["warnings"]:
        print(f"warning: {warning}")
    if lane["diverged"]:
        print("diverged: losses were not finite three iterations in a row; the last good parameters are kept")
    print("written: " + ", ".join(str(p) for p in (folder / "summary.json", folder / "report.html") if p.exists()))


def _show(value: float | list[float], sign: int = 1) -> str:
    return f"{sign * value + 0.0:.4f}" if isinstance(value, float) else " ".join(_show(x, sign) for x in value)
