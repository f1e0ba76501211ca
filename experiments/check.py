"""Re-reads the committed results and prints the paper's claims with pass or miss; exit 0 only if all pass.

python experiments/check.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
WEIGHTS = {"Humanoid": 1.25}  # reward per speed, 1 elsewhere
SURVIVAL = {"Hopper": 1.0, "Walker2d": 1.0, "Ant": 1.0, "Humanoid": 5.0}  # reward per step, 0 elsewhere

Claim = tuple[str, bool, str]  # what is claimed, whether it holds, the numbers


def main() -> int:
    claims = [(path.stem, *claim) for path in sorted((HERE / "velocity").glob("*.json")) for claim in velocity(path)]
    if not claims:
        print("nothing to check: run experiments/velocity.py first")
        return 1
    for name, what, holds, numbers in claims:
        print(f"{'pass' if holds else 'MISS'}  {name:<20} {what:<52} {numbers}")
    missed = sum(not holds for _, _, holds, _ in claims)
    print(f"check: claims={len(claims)} passed={len(claims) - missed} missed={missed}")
    return 1 if missed else 0


def velocity(path: Path) -> Iterator[Claim]:
    """The claims about one task, over all seeds that were run."""
    summary = json.loads(path.read_text())
    lanes = summary["lanes"]
    limits = [lane["constraints"][0] for lane in lanes]
    off = [abs(-c["t"] - c["sampled"]["quantile"]) / c["sampled"]["quantile"] for c in limits]
    yield "-t within 1% of the quantile (median), none beyond 3%", median(off) <= 0.01 and max(off) <= 0.03, shares(off)
    upper = [c["risk_value_ci"][1] / c["threshold"] for c in limits]
    yield "upper bound of CVaR <= 1.01 c, mean action", max(upper) <= 1.01, shares(upper)
    top = ceiling(summary)
    reward = [lane["eval"]["reward_mean"] / top for lane in lanes]
    yield "reward >= 95% of its ceiling (97% median)", min(reward) >= 0.95 and median(reward) >= 0.97, shares(reward)
    steady = [abs(lane["lam_last_fifth"]["drift"]) / max(lane["lam_last_fifth"]["mean"], 1e-9) for lane in lanes]
    yield "lambda drifts by < 10% of itself over the last fifth", max(steady) < 0.1, shares(steady)
    length = [lane["eval"]["length_mean"] for lane in lanes]
    yield "episodes of full length (> 950)", min(length) > 950, " ".join(f"{x:.0f}" for x in length)


def ceiling(summary: dict[str, Any]) -> float:
    """`1000 (w c + healthy bonus)`: the reward of moving at the limit all the time, without any effort."""
    robot = summary["env"].removeprefix("Safety").removesuffix("Velocity-v1")
    limit = summary["lanes"][0]["constraints"][0]["threshold"]
    return 1000 * (WEIGHTS.get(robot, 1.0) * limit + SURVIVAL.get(robot, 0.0))


def shares(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    raise SystemExit(main())
