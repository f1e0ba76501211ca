"""The paper's figures and what goes beyond them: trains what is missing and keeps the results beside this file.

    python experiments/run.py [PART ...] [--only NAME ...] [--runs runs/paper] [--list | --pictures]

A part is a set of `riskppo train` commands, `PARTS` below; seeds of one setting are lanes of one program. Everything
resumes: what is finished is skipped, what was interrupted goes on. Each command leaves `PART/NAME.json` (the run's
`summary.json` with the command, its learning curves, lambda's last fifth of training and the iterates one could have
returned) and a picture; a part leaves `PART/*.png` that compare what its files say (`compare.py`). `python
experiments/check.py` then says which claims hold.
"""

import argparse
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from compare import compare, curves

from riskppo_jax.cli import main as riskppo
from riskppo_jax.runs import read_log, read_run

HERE = Path(__file__).parent
ROBOTS = ("HalfCheetah", "Hopper", "Swimmer", "Walker2d", "Ant", "Humanoid")
TASKS = ("Goal1", "Button1", "Push1", "Circle1")
HOPPER = ["experiment=velocity", "env=SafetyHopperVelocity-v1"]
WEIGHTS = {"Humanoid": 1.25}  # reward per speed, 1 elsewhere
SURVIVAL = {"Hopper": 1.0, "Walker2d": 1.0, "Ant": 1.0, "Humanoid": 5.0}  # reward per step, 0 elsewhere
DIVERGED = 1  # exit code of a run with a seed that diverged: a result like any other
FIRST = "seed=10"  # reported seeds: 0 to 4 had been seen with other settings, from 100 on are for tuning

BETAS = (0.05, 0.1, 0.3, 1.0)
# any single update may spoil a gait: the policy of the best evaluation point, by other episodes than those reported
BEST = ["deploy=best", "eval.point_episodes=10"]
OWN = {
    "Swimmer": ["total_steps=3000000"],  # its price comes late and slowly
    "Ant": ["total_steps=2000000", *BEST],
    "Humanoid": ["total_steps=3000000"],  # still learns to stay up after two
}
LIMITS = {
    "paper": {"Walker2d": ["layout.num_envs=64", "layout.horizon=32", *BEST]},
    "v1": {
        "HalfCheetah": ["layout.num_envs=64", "layout.horizon=32"],  # at twice the speed it wants a longer horizon
        "Hopper": BEST,
        "Walker2d": BEST,
        "Swimmer": ["total_steps=3000000", "eval.points=40", *BEST],
    },
}
PRICED = {  # steps; unconstrained PPO has the preset's million
    "fixed": {"Goal1": 2_500_000, "Button1": 2_500_000, "Push1": 2_000_000},
    "random": {"Goal1": 5_000_000, "Button1": 5_000_000, "Push1": 2_500_000},
    "short": {"Goal1": 3_500_000, "Button1": 3_000_000, "Push1": 2_000_000},  # in the fixed world, too
}
# 20 in 1000, not the benchmark's 25: a hundred episodes tell a mean to a tenth of itself
MARGIN = ["threshold=0.02", "risk=mean"]
# costs of contacts come in bursts: a hundred episodes tell their mean to a third of itself
RANDOM = ["threshold=0.015", "risk=mean", "dual.lam_max=10", "dual.lam_step=0.1", "deploy=best",
          "eval.point_episodes=20", "eval.confirm_episodes=100"]  # fmt: skip
ROOM = {"Goal1": -0.05, "Button1": 0.01}  # limits on nearness; Button1's is measured to a sphere round each obstacle
DEAR = {"Button1": ["dual.lam_max=0.6"]}  # twice the preset's: the way round a button is short
POINTS = {
    "Goal1": ["eval.points=25", "eval.point_episodes=20"],
    "Button1": ["eval.points=40", "eval.point_episodes=10"],
}
SHORT = ["total_steps=1000000", "sweep.seed=2", "eval.points=0"]

Commands = dict[str, list[str]]  # name -> settings


def velocity(limits: str, robots: tuple[str, ...], seeds: int) -> Commands:
    """Every robot under a CVaR constraint on its speed."""
    own = OWN | LIMITS[limits]
    return {
        robot.lower(): ["experiment=velocity", f"env=Safety{robot}Velocity-v1", f"threshold={limits}",
                        FIRST, f"sweep.seed={seeds}", *own.get(robot, [])]
        for robot in robots
    }  # fmt: skip


def navigation(reset: str, seeds: int, short: bool = False) -> Commands:
    """Point's tasks, unconstrained and under constraints.

    In the fixed world no step of cost is allowed, as in the paper; in Goal1 and Button1 a second constraint wants room
    before it, for a cost of 0 or 1 says nothing of how near it was. With random layouts the constraint is the
    benchmark's, on the mean: of a cost that is 0 or 1, CVaR is a multiple of it, and so are its prices.
    """
    return {
        f"{task.lower()}-{algo}": ["experiment=navigation", f"env=SafetyPoint{task}-v0", f"env.reset={reset}",
                                   f"algo={algo}", FIRST, f"sweep.seed={seeds}", *_limits(reset, task, algo, short)]
        for task in TASKS
        for algo in ("riskppo", "ppo")
    }  # fmt: skip


def _limits(reset: str, task: str, algo: str, short: bool) -> list[str]:
    if task == "Circle1":  # no contacts, so quick
        # before the preset had a low bound on prices, a bonus for entropy and powers of lidars
        before = ["ppo.entropy_coef=0", "dual.lam_max=20", "dual.lam_growth=2", "dual.lam_patience=50",
                  "layout.lidar_powers=[]"]  # fmt: skip
        words = ["engine=analytic", "total_steps=10000000", *before]
        limit = ["threshold=paper"] if reset == "fixed" else MARGIN
        return [*words, *limit, "dual.lam_step=0.01"] if algo == "riskppo" else words
    if algo == "ppo":
        return []
    steps = f"total_steps={PRICED['short' if short else reset][task]}"
    if reset == "random":
        return [steps, *RANDOM]
    if task == "Push1":  # the way round the box is found on the way to it: many short episodes, then long ones
        on = ["total_steps=1000000", "start_from=RUNS/navigation_500/push1-riskppo", "ppo.memory_until=0"]
        return [*([steps] if short else on), "threshold=paper", *BEST]
    room = f"{{name: nearness, threshold: {ROOM[task]}, risk: {{name: cvar, beta: 0.05}}}}"
    limits = [f"constraints=[{{name: cost, threshold: 0}}, {room}]", "dual.lam_step=0.1", *DEAR.get(task, [])]
    if short and task == "Button1":  # with short episodes it has learned what a button is worth later
        limits.append("dual.lam_delay=200")
    # mean actions may graze something in one episode of hundreds: hence the best of many points, confirmed in as many
    return [steps, *limits, "deploy=best", *POINTS[task], f"eval.confirm_episodes={200 if short else 100}"]


PARTS: dict[str, Commands] = {
    "velocity": velocity("paper", ROBOTS[:4], 5),  # the paper has no limits for the others
    "velocity_v1": velocity("v1", ROBOTS, 3),
    "navigation_500": {  # the paper's length of an episode; Circle1's is that already. First: Push1 goes on from here
        name: [*words, "env.time_limit=500"]
        for name, words in navigation("fixed", 5, short=True).items()
        if name in ("goal1-riskppo", "button1-riskppo", "push1-riskppo")
    },
    "navigation_fixed": navigation("fixed", 5),
    "navigation_random": navigation("random", 3),
    "frontier": {
        "hopper": [*HOPPER, FIRST, f"sweep.beta={[*BETAS]}", "sweep.seed=2", "eval.points=0"],
    },
    "per_step_or_return": {
        algo: [*HOPPER, FIRST, f"algo={algo}", *SHORT] for algo in ("riskppo", "cvar_return", "ppo_lagrangian")
    },
    "two_constraints": {
        "hopper": [*HOPPER, FIRST, *SHORT,
                   "constraints=[{name: velocity, threshold: 0.373}, {name: effort, threshold: 0.05}]"],
    },
    "utilities": {  # where the rest of this part goes on from: utilities.py
        "start": [*HOPPER, FIRST, *SHORT],
    },
    "averse_objective": {
        # the averse objective is whole after 60% of training; what is left has to do for the price
        "hopper": [*HOPPER, "objective=cvar", FIRST, "sweep.objective.beta=[0.3,1.0]", "sweep.seed=2", *BEST],
    },
    "mjx": {  # for transfer.py; without an accelerator MJX is slow, so short
        "hopper": [*HOPPER, "engine=mjx", FIRST, "total_steps=500000", "layout.num_envs=64", "layout.horizon=32",
                   "eval.points=0", "eval.episodes=20", "report=false"],
    },
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of a part's commands")
    parser.add_argument("--runs", type=Path, default=Path("runs/paper"), help="where to train (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the commands and train nothing")
    parser.add_argument("--pictures", action="store_true", help="draw those that compare again and train nothing")
    args = parser.parse_args()
    for part in args.parts or PARTS:
        if part not in PARTS:
            parser.error(f"{part} is not known; accepts {', '.join(PARTS)}")
        for name, words in PARTS[part].items():
            if args.only and name not in args.only:
                continue
            folder, words = args.runs / part / name, [word.replace("RUNS", str(args.runs)) for word in words]
            if args.list:
                print(command(folder, words))
            elif not args.pictures:
                train(folder, HERE / part / name, words)
        if not args.list:
            compare(HERE / part)
    return 0


def train(folder: Path, stem: Path, words: list[str]) -> None:
    """Runs a command, or what is left of it, and keeps its results, diverged seeds included; ends where it fails."""
    line = command(folder, words)
    print(line, flush=True)
    code = riskppo(shlex.split(line)[1:])
    if code not in (0, DIVERGED):
        raise SystemExit(code)
    keep(folder, stem, line)


def command(folder: Path, words: list[str]) -> str:
    return shlex.join(["riskppo", "train", *words, f"output={folder}", "resume=true"])


def keep(run: Path, stem: Path, command: str) -> None:
    """The run's summary with what the claims need of its log, and the four panels of its first lane."""
    stem.parent.mkdir(exist_ok=True)
    summary = json.loads((run / "summary.json").read_text())
    log = read_log(run / "metrics.jsonl")
    for i, (lane, read) in enumerate(zip(summary["lanes"], read_run(run).lanes, strict=True)):
        own = [point for point in log if point.get("sweep/lane", 0) == i]
        for constraint in lane["constraints"]:
            constraint["steps"] = tail(read.samples[constraint["name"]])
        lane["curves"] = curves(read)
        if lane["constraints"]:
            prices = [point.get("constraint0/lam_mean", point["constraint0/lam"]) for point in own]
            lane["lam_last_fifth"] = last_fifth(np.asarray(prices, float))
            lane["iterates"] = iterates([point for point in own if "eval/risk0" in point], lane["constraints"][0])
        if "objective" in lane:  # the reward as what is to be large: its bad side is the loss's large one
            lane["objective"]["losses"] = tail(-read.samples["reward"])
        del lane["hypers"]  # in the run's config.yaml, and the same for all lanes but for `point`
    write_json(stem.with_suffix(".json"), {"command": command, **summary})
    figures = sorted((run / "figures").rglob("*overview*.png"))
    if figures:
        shutil.copyfile(figures[0], stem.with_suffix(".png"))


def ceiling(summary: dict[str, Any]) -> float:
    """`1000 (w c + healthy bonus)`: the reward of moving at the limit all the time, without any effort."""
    limit = summary["lanes"][0]["constraints"][0]["threshold"]
    return 1000 * (weight(summary) * limit + SURVIVAL.get(robot(summary), 0.0))


def weight(summary: dict[str, Any]) -> float:
    """Reward per speed."""
    return WEIGHTS.get(robot(summary), 1.0)


def robot(summary: dict[str, Any]) -> str:
    return summary["env"].removeprefix("Safety").removesuffix("Velocity-v1")


def tail(x: np.ndarray) -> dict[str, Any]:
    """The law of a quantity over the steps of the evaluation, mean actions: what every measure looks at."""
    worst = np.sort(x)[::-1].astype(float)
    cvar = {f"cvar_{beta:g}": float(worst[: max(round(beta * len(worst)), 1)].mean()) for beta in BETAS}
    return {"sd": float(worst.std()), **cvar, "percentiles": np.percentile(worst, range(101)).round(5).tolist()}


def last_fifth(lam: np.ndarray) -> dict[str, float]:
    """Mean, drift (fitted line's rise over the stretch) and standard deviation around it."""
    late = lam[-max(len(lam) // 5, 2) :]
    x = np.linspace(-0.5, 0.5, len(late))
    drift = float(np.polyfit(x, late, 1)[0])
    return {"mean": float(late.mean()), "drift": drift, "sd": float(np.std(late - drift * x))}


def iterates(points: list[dict[str, Any]], constraint: dict[str, Any]) -> dict[str, Any]:
    """What the evaluation points say of the policies a run could return: the last, one drawn uniformly, the best.

    The theorem draws one uniformly; its numbers are means over all points. The best feasible is the one with the
    highest reward within 1% of the limit, chosen by the very episodes that are then reported, which flatters it.
    """
    if not points:
        return {}
    found = [{"steps": p["train/env_steps"], "reward": p["eval/reward"], "risk": p["eval/risk0"]} for p in points]
    within = [point for point in found if point["risk"] <= 1.01 * constraint["threshold"]]
    drawn = {key: float(np.mean([point[key] for point in found])) for key in ("reward", "risk")}
    return {
        "points": len(found),
        "last": found[-1],
        "uniform": drawn | {"feasible": len(within) / len(found)},
        "best": max(within, key=lambda point: point["reward"]) if within else None,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
