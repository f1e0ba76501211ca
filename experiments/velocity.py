"""The paper's velocity figure: seeds of one task as lanes of one program, its claims as numbers.

    python experiments/velocity.py [--tasks Hopper ...] [--thresholds paper] [--seeds 5] [--runs runs/velocity]

Trains (or goes on training, or skips what is finished) and leaves `velocity/TASK-THRESHOLDS.json`, the run's
`summary.json` with lambda's last fifth beside it, and a PNG with the four panels of the first seed.
`python experiments/check.py` then says which claims hold.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from riskppo_jax.cli import main as riskppo
from riskppo_jax.runs import read_log

HERE = Path(__file__).parent
ROBOTS = ("HalfCheetah", "Hopper", "Swimmer", "Walker2d", "Ant", "Humanoid")
PAPER = ROBOTS[:4]  # the paper has no limits for the others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=ROBOTS, help="default: all that have such thresholds")
    parser.add_argument("--thresholds", default="paper", choices=("paper", "v1"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/velocity"))
    args = parser.parse_args()
    for robot in args.tasks or (PAPER if args.thresholds == "paper" else ROBOTS):
        name = f"{robot.lower()}-{args.thresholds}"
        words = [
            "experiment=velocity", f"env=Safety{robot}Velocity-v1", f"threshold={args.thresholds}",
            f"sweep.seed={args.seeds}", f"output={args.runs / name}", "resume=true",
        ]  # fmt: skip
        code = riskppo(["train", *words])
        if code:
            return code
        keep(args.runs / name, HERE / "velocity" / name, "riskppo train " + " ".join(words))
    return 0


def keep(run: Path, stem: Path, command: str) -> None:
    """The run's summary with what the claims need of its log, and its first figure, beside this script."""
    stem.parent.mkdir(exist_ok=True)
    summary = json.loads((run / "summary.json").read_text())
    log = read_log(run / "metrics.jsonl")
    for i, lane in enumerate(summary["lanes"]):
        own = [point["constraint0/lam"] for point in log if point.get("sweep/lane", 0) == i]
        lane["lam_last_fifth"] = last_fifth(np.asarray(own, float))
    stem.with_suffix(".json").write_text(json.dumps({"command": command, **summary}, indent=1) + "\n")
    figures = sorted((run / "figures").glob("*overview*.png"))
    if figures:
        stem.with_suffix(".png").write_bytes(figures[0].read_bytes())


def last_fifth(lam: np.ndarray) -> dict[str, float]:
    """Mean, drift (fitted line's rise over the stretch) and standard deviation around it."""
    late = lam[-max(len(lam) // 5, 2) :]
    x = np.linspace(-0.5, 0.5, len(late))
    drift = float(np.polyfit(x, late, 1)[0])
    return {"mean": float(late.mean()), "drift": drift, "sd": float(np.std(late - drift * x))}


if __name__ == "__main__":
    raise SystemExit(main())
