"""Pictures that compare the results of a part, drawn from the files the results are kept in and from nothing else.

So they show what `results.md` says, also where the runs themselves are gone: `python experiments/run.py --pictures`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from riskppo_jax import plotting
from riskppo_jax.figures import comparisons
from riskppo_jax.runs import SEED, Lane, describe_point


def compare(part: Path) -> list[Path]:
    """Frontier, distributions, and learning curves of what keeps them; where nothing does, older ones stay."""
    found = read_part(part)
    if sum(map(len, found.values())) < 2:
        return []
    for old in [*part.glob("frontier_*.png"), *part.glob("distributions_*.png")]:
        old.unlink()
    return [path for name, figure in comparisons(found) for path in plotting.save(figure, part / name, ("png",))]


def read_part(part: Path) -> dict[str, list[Lane]]:
    """The lanes of a part under labels that say in what they differ but the seed."""
    files = sorted(part.glob("*.json"))
    found: dict[str, list[Lane]] = {}
    for path in files:
        summary = json.loads(path.read_text())
        for i, lane in enumerate(summary["lanes"]):
            words = describe_point({name: value for name, value in lane.get("point", {}).items() if name != SEED})
            label = ", ".join(word for word in (path.stem if len(files) > 1 or not words else "", words) if word)
            found.setdefault(label, []).append(_lane(i, lane))
    return found


def curves(lane: Lane, points: int = 60) -> dict[str, Any]:
    """A lane's learning curves, short enough to keep."""
    found = {}
    for name, (steps, values) in {"reward": lane.reward_curve()[:2], "cost": lane.curve("train/cost")}.items():
        some = np.unique(np.linspace(0, len(steps) - 1, min(points, len(steps))).round().astype(int))
        found[name] = {"steps": steps[some].astype(int).tolist(), "values": [float(f"{x:.5g}") for x in values[some]]}
    return found


def _lane(index: int, found: dict[str, Any]) -> Lane:
    points = [
        {"train/env_steps": step, key: value}
        for name, key in (("reward", "eval/reward"), ("cost", "train/cost"))
        for step, value in zip(*found.get("curves", {}).get(name, {"steps": (), "values": ()}).values(), strict=True)
    ]
    laws = {c["name"]: np.array(c["steps"]["percentiles"]) for c in found["constraints"] if "steps" in c}
    return Lane(index, found, points, laws)
