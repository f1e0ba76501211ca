"""The rules that move lambda and t, side by side, with equal tuning for each.

    python experiments/study.py [PART ...] [--runs runs/study]

Parts, in order: `tune` gives every rule of `RULES` the same number of settings on the same two seeds of Hopper
(`study/tune-RULE.json`). Its best setting (`miss`, from training alone) then runs on other seeds of `hopper` and
`walker2d` (`study/ROBOT-RULE.json`); so does the paper's rule at the paper's own step sizes, which nobody tuned.
`batches`, on Hopper with the default rule: a batch of its own for lambda and t, and fewer worlds for the same 2,048
steps. `trap`: how many of ten further seeds stand still on the way, for steps on lambda a factor of 30 apart.
Everything resumes; a part without `tune` before it takes the settings from the files that are here.
`python experiments/check.py --write` makes a table of all lanes.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from run import HERE, ceiling, train, write_json

from riskppo_jax.runs import read_log
from riskppo_jax.traps import find_traps

STUDY = HERE / "study"
ROBOTS = {"hopper": "Hopper", "walker2d": "Walker2d"}
PARTS = ("tune", *ROBOTS, "batches", "trap")
TUNING = ["seed=100", "sweep.seed=2", "total_steps=400000"]
REPORTED = ["seed=10", "sweep.seed=3", "total_steps=600000"]
TRAPPED = ["seed=200", "sweep.seed=10", "total_steps=200000"]
LEAN = ["eval.points=0", "eval.episodes=20", "report=false"]
NEAR = 0.02  # of both targets: risk at c, -t at the quantile
SMOOTH = 5  # log points whose mean counts as one

STEPS = [0.03, 0.15, 0.9]  # in units of the threshold, spread over a factor of 30; the default is 0.15
RAW = [0.001, 0.005, 0.03]  # the paper's rule takes raw steps
RULES: dict[str, list[str]] = {
    "pi": ["dual.lam=pi"],
    "plain": ["dual.lam=plain"],
    "optimistic": ["dual.lam=optimistic"],
    "paper": ["algo=paper", "dual.t_step=0.01"],
}
OWN = ["algo=paper"]  # the paper's own: 5e-5 for both
BATCHES = {  # of the default rule, whose own are 16 worlds of 128 steps that serve both updates
    "fresh": ["scheme.dual_rollout=fresh"],
    **{f"worlds{n}": [f"layout.num_envs={n}", f"layout.horizon={2048 // n}"] for n in (2, 4, 8)},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"), help="where to train (default: %(default)s)")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"{part} is not known; accepts {', '.join(PARTS)}")
    wanted = args.parts or PARTS
    if "tune" in wanted:
        for rule, words in RULES.items():
            run(args.runs, f"tune-{rule}", [*words, *TUNING, swept(rule)], "Hopper")
    for part, robot in ROBOTS.items():
        if part in wanted:
            for rule in RULES:
                run(args.runs, f"{part}-{rule}", [*tuned(rule), *REPORTED], robot)
            run(args.runs, f"{part}-own", [*OWN, *REPORTED], robot)
    if "batches" in wanted:
        for name, words in BATCHES.items():
            run(args.runs, f"batches-{name}", [*tuned("pi"), *words, *REPORTED], "Hopper")
    if "trap" in wanted:
        for rule in ("pi", "paper"):
            run(args.runs, f"trap-{rule}", [*RULES[rule], *TRAPPED, swept(rule)], "Hopper")
    return 0


def swept(rule: str) -> str:
    """All steps on lambda that are tried with this rule, as lanes."""
    return f"sweep.dual.lam_step=[{','.join(map(str, RAW if rule == 'paper' else STEPS))}]"


def tuned(rule: str) -> list[str]:
    """The rule with the step that its tuning found best."""
    file = STUDY / f"tune-{rule}.json"
    if not file.exists():
        raise SystemExit(f"{file} is missing; `python experiments/study.py tune` makes it")
    return [*RULES[rule], f"dual.lam_step={best(json.loads(file.read_text()))}"]


def run(runs: Path, name: str, words: list[str], robot: str) -> dict[str, Any]:
    """Trains, and adds to the summary that is kept what the log says of the way."""
    words = [f"env=Safety{robot}Velocity-v1", "experiment=velocity", *words, *LEAN]
    train(runs / name, STUDY / name, words)
    file = (STUDY / name).with_suffix(".json")
    summary = json.loads(file.read_text())
    lam_step = next((float(word.split("=")[1]) for word in words if word.startswith("dual.lam_step=")), None)
    log = read_log(runs / name / "metrics.jsonl")
    for i, lane in enumerate(summary["lanes"]):
        own = [point for point in log if point.get("sweep/lane", 0) == i]
        lane["path"] = path(own) | {"miss": miss(own, ceiling(summary))}
        lane["lam_step"] = lam_step
    write_json(file, summary)
    return summary


def path(log: list[dict[str, Any]]) -> dict[str, Any]:
    """When a run came within `NEAR` of both targets for good, how far its price overshot, whether it stood still."""
    risk, t, best_t, lam = (column(log, key) for key in ("risk", "t", "t_batch", "lam"))
    limit = log[0]["constraint0/threshold"]
    near = (np.abs(smooth(risk) / limit - 1.0) <= NEAR) & (np.abs(smooth(t - best_t) / smooth(best_t)) <= NEAR)
    away = np.flatnonzero(~near)
    first = 0 if not len(away) else away[-1] + 1
    late = lam[-max(len(lam) // 5, 1) :].mean()
    return {
        "reached": log[first]["train/env_steps"] if first < len(log) else None,
        "overshoot": float(lam.max() / late - 1.0) if late > 1e-3 else None,
        "stood_still": any("stood still" in trap for trap in find_traps(log, ["velocity"])),
    }


def miss(log: list[dict[str, Any]], highest: float) -> float:
    """Distance of the risk from its limit, and of the return from its ceiling, over the last fifth; 0 is perfect."""
    late = log[-max(len(log) // 5, 1) :]
    risk = np.nanmean(column(late, "risk")) / late[0]["constraint0/threshold"]
    earned = [point["train/return"] for point in late if point["train/return"] is not None]
    return float(abs(risk - 1.0) + max(1.0 - mean(earned or [0.0]) / highest, 0.0))


def best(summary: dict[str, Any]) -> float:
    """The setting whose seeds miss least on average."""
    by_value: dict[float, list[float]] = {}
    for lane in summary["lanes"]:
        by_value.setdefault(lane["point"]["dual.lam_step"], []).append(lane["path"]["miss"])
    return min(by_value, key=lambda value: mean(by_value[value]))


def column(log: list[dict[str, Any]], key: str) -> np.ndarray:
    values = [point[f"constraint0/{key}"] for point in log]
    return np.asarray([np.nan if value is None else value for value in values], float)


def smooth(x: np.ndarray) -> np.ndarray:
    """Mean over the present point and those before it."""
    return np.asarray([x[max(0, i - SMOOTH + 1) : i + 1].mean() for i in range(len(x))])


if __name__ == "__main__":
    raise SystemExit(main())
