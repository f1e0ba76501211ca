"""Run directories made of plausible numbers: everything that reads runs can be tested without training one."""

import json
from pathlib import Path

import numpy as np
import yaml

from riskppo_jax.settings import read_settings, to_dict

VERSIONS = {"riskppo-jax": "0.1.0", "jax": "0.10.1"}


def fake_run(
    folder: Path, betas=(0.1, 0.3, 1.0), seeds=3, env="SafetyHopperVelocity-v1", algo="riskppo", finished=True,
    evaluations=True, limit=0.373,
) -> Path:  # fmt: skip
    """A sweep over beta and seeds, or a single run where there is one of each."""
    folder.mkdir(parents=True)
    constrained = algo != "ppo"
    words = [f"env={env}", f"algo={algo}", "total_steps=200000", f"risk.beta={betas[0]}"]
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(read_settings(words)), sort_keys=False))
    points = [(beta, seed) for beta in betas for seed in range(seeds)]
    rng = np.random.default_rng(0)
    lanes, lines, samples = [], [], {}
    for i, (beta, seed) in enumerate(points):
        v = np.clip(rng.normal(limit * (0.5 + 0.4 * beta), 0.1 * limit, 2000), 0, None)
        samples |= {f"{'' if len(points) == 1 else f'lane{i}/'}velocity": v}
        lanes.append(_lane(v, beta, seed, limit, constrained) | ({"point": {"risk.beta": beta, "seed": seed}}
                     if len(points) > 1 else {}))  # fmt: skip
    for step in range(40):
        for i, (beta, seed) in enumerate(points):
            line = _point(step, beta, seed, limit, constrained)
            line |= {"eval/reward": 900 * step / 40 + 20 * seed} if evaluations and step % 4 == 0 else {}
            lines.append(line | ({"sweep/lane": i} if len(points) > 1 else {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        np.savez_compressed(folder / "samples.npz", **samples)
        summary = {
            "env": env, "engine": "native", "algo": algo, "env_steps": 200_000, "wall_seconds": 30.0,
            "steps_per_second": 6666.0, "versions": VERSIONS, "warnings": ["a warning <to escape>"], "lanes": lanes,
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _lane(v, beta, seed, limit, constrained):
    tail = np.sort(v)[::-1][: max(1, int(beta * len(v)))]
    risk = float(tail.mean())
    constraint = {
        "name": "velocity", "threshold": limit, "risk": {"name": "cvar", "beta": beta}, "lam": 0.5 * beta,
        "t": -float(tail[-1]) * 1.01, "quantile": float(tail[-1]), "risk_value": risk,
        "risk_value_ci": [0.98 * risk, 1.02 * risk], "satisfied": risk <= 1.01 * limit, "mean": float(v.mean()),
    }  # fmt: skip
    constraint["sampled"] = {name: constraint[name] for name in ("risk_value", "risk_value_ci", "satisfied", "mean")}
    return {
        "seed": seed, "hypers": {"ppo.lr": 3e-4, "risk.velocity": {"name": "cvar", "beta": beta}},
        "constraints": [constraint] if constrained else [],
        "eval": {"episodes": 20, "reward_mean": 900.0 + 300 * beta + 20 * seed, "reward_std": 12.0,
                 "cost_mean": 3.0, "cost_rate": 0.003, "length_mean": 1000.0},
        "diverged": False,
    }  # fmt: skip


def _point(step, beta, seed, limit, constrained):
    near = 1 - np.exp(-step / 10)
    point = {"train/env_steps": 5000 * (step + 1), "train/return": 900 * near + 20 * seed if step else None,
             "train/cost": 0.5 * (1 - near), "train/episode_cost": 200 * (1 - near),
             "perf/steps_per_second": 9000.0, "perf/wall_seconds": float(step)}  # fmt: skip
    if constrained:
        point |= {f"constraint0/{name}": value for name, value in {
            "t": -limit * near * 0.9, "t_batch": -limit * (0.9 + 0.1 * np.sin(step)), "risk": limit * (2 - near),
            "lam": 0.5 * beta * near, "threshold": limit, "mean": 0.5 * limit, "at_bound": 0.0, "slack": 0.0,
        }.items()}  # fmt: skip
    return point


def untrained_run(folder: Path, *words: str) -> Path:
    """A run directory at its very beginning: settings and a checkpoint of the first state, nothing else."""
    import jax

    from riskppo_jax import checkpoint
    from riskppo_jax.build import build
    from riskppo_jax.rundir import Progress

    settings = read_settings([*words, f"output={folder}"])
    job = build(settings)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(settings), sort_keys=False))
    state = jax.jit(job.trainer.init)(jax.random.key(settings.seed), job.hypers)
    checkpoint.save(folder / "checkpoints" / "000000000", state, Progress()._asdict())
    return folder
