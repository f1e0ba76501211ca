"""Known ways for a run to go wrong, found in its log points and said in plain words."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

AT_BOUND = 0.2  # share of training a price may sit at its bound
STILL = 0.1  # of the limit: a policy whose mean quantity is below this hardly moves
STILL_POINTS = 3  # log points in a row, and at least this share of all:
STILL_SHARE = 0.05


def find_traps(points: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Sentences about what a run's log points show; empty if all is well."""
    found = []
    for i, name in enumerate(names):
        found += [trap for trap in (_at_bound(points, i, name), _standing(points, i, name)) if trap]
    skipped = sum(point.get("ppo/skipped") or 0 for point in points)
    if skipped:
        found.append(f"{skipped} gradient steps were skipped because a loss or gradient was not finite")
    lost = sum(point.get("train/diverged") or 0 for point in points)
    if lost:
        found.append(f"the simulation diverged in {lost} steps; they were left out")
    return found


def _at_bound(points: Sequence[dict[str, Any]], i: int, name: str) -> str | None:
    shares = [point[f"constraint{i}/at_bound"] for point in points]
    share = sum(shares) / max(len(shares), 1)
    if share < AT_BOUND:
        return None
    return (
        f"lambda of {name} was at its bound for {share:.0%} of training: the limit may be out of reach, "
        "or dual.lam_max too small"
    )


def _standing(points: Sequence[dict[str, Any]], i: int, name: str) -> str | None:
    """A policy that rests far below the limit while its price falls: it will not move again by itself soon."""
    longest, run = 0, 0
    for before, point in pairwise(points):
        limit, mean = point[f"constraint{i}/threshold"], point[f"constraint{i}/mean"]
        still = mean is not None and limit > 0 and abs(mean) < STILL * limit
        run = run + 1 if still and point[f"constraint{i}/lam"] < before[f"constraint{i}/lam"] else 0
        longest = max(longest, run)
    if longest < max(STILL_POINTS, STILL_SHARE * len(points)):
        return None
    return (
        f"the policy stands still while lambda decays: mean {name} below {STILL:.0%} of its limit for "
        f"{longest} log points in a row; smaller dual.lam_step and dual.lam_gain avoid this"
    )
