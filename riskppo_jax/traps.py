"""Known ways for a run to go wrong, found in its log points and said in plain words."""

from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

AT_BOUND = 0.2  # share of training a price may sit at its bound
STILL = 0.3  # of the limit: a policy whose mean quantity is below this hardly moves
FREE = 0.02  # of the highest price so far: what counts as no price at all
STILL_SHARE = 0.1  # of all log points, in a row, and at least this many:
STILL_POINTS = 5
HALF = 0.5  # of the best return: below it a policy has lost something ...
LITTLE = 0.2  # of it: not even a price explains that, unless its limit leaves no more
NEAR = 0.9  # ... unless a risk fell below this share of what it was
BINDS = 0.85  # of the limit: a risk above this holds the policy ...
SWINGS = 0.6  # ... and a mean below this says that it is the quantity's swings that do
RUNAWAY = 1e3  # deviations of the return: what a critic is to tell apart is of the order of one
POOR = 0.8  # of the best so far, an episode or a step: one that earns as ever does not stand still


class Watch:
    """Says what goes wrong as soon as the log shows it, each kind once for a lane."""

    def __init__(self, names: Sequence[str], total: int):
        """`names` are the constraints', `total` the log points of the whole run."""
        self._names, self._total = names, total
        self._points: dict[int, list[dict[str, Any]]] = {}
        self._said: set[tuple[int, str]] = set()

    def see(self, point: dict[str, Any], lane: int = 0) -> list[str]:
        """What is new with this point."""
        points = self._points.setdefault(lane, [])
        points.append(point)
        new = {(lane, kind): trap for kind, trap in _traps(points, self._names, self._total).items()}
        new = {kind: trap for kind, trap in new.items() if kind not in self._said}
        self._said |= set(new)
        return list(new.values())


def find_traps(points: Sequence[dict[str, Any]], names: Sequence[str], total: int = 0) -> list[str]:
    """Sentences about what a run's log points show; empty if all is well.

    Args:
      points: in order.
      names: of the constraints.
      total: log points of the whole run, where it is not over: shares of training are shares of it.
    """
    return list(_traps(points, names, total).values())


def _traps(points: Sequence[dict[str, Any]], names: Sequence[str], total: int) -> dict[str, str]:
    """The sentences by kind: what a kind says may change from point to point, its count for one."""
    total = max(total, len(points))
    found: dict[str, str | None] = {}
    for i, name in enumerate(names):
        for look in (_at_bound, _standing, _swings):
            found[f"{look.__name__} {i}"] = look(points, i, name, total)
    found["forgot"] = _forgot(points, len(names), total)
    found["runaway"] = _runaway(points)
    skipped = sum(point.get("ppo/skipped") or 0 for point in points)
    if skipped:
        found["skipped"] = f"{skipped} gradient steps were skipped because a loss or gradient was not finite"
    lost = sum(point.get("train/diverged") or 0 for point in points)
    if lost:
        found["diverged"] = f"the simulation diverged in {lost} steps; they were left out"
    return {kind: trap for kind, trap in found.items() if trap}


def _at_bound(points: Sequence[dict[str, Any]], i: int, name: str, total: int) -> str | None:
    """A price that sits at its present bound and has for long.

    A bound that grows for a price that follows it says nothing, nor does a price that came down again: its limit was
    within reach.
    """
    if not points or not points[-1].get(f"constraint{i}/at_bound"):
        return None
    bounds = [point.get(f"constraint{i}/lam_max") for point in points]
    shares = [
        point[f"constraint{i}/at_bound"] for point, bound in zip(points, bounds, strict=True) if bound == bounds[-1]
    ]
    share = sum(shares) / max(total, 1)
    if share < AT_BOUND:
        return None
    return (
        f"lambda of {name} was at its bound for {share:.0%} of training: the limit may be out of reach, "
        "or dual.lam_max too small"
    )


def _standing(points: Sequence[dict[str, Any]], i: int, name: str, total: int) -> str | None:
    """A policy that was priced, and rests far below its limit although its price falls or is gone.

    Nothing holds it there but itself: standing earns the survival bonus, and moving again is a risk. A run whose
    price never rose is another matter; its limit is simply out of the policy's way.
    """
    highest, longest, run, last = 0.0, 0, 0, None
    best = dict.fromkeys(("train/return", "train/reward"), 0.0)
    for before, point in pairwise(points):
        limit, mean, lam = (point[f"constraint{i}/{key}"] for key in ("threshold", "mean", "lam"))
        highest = max(highest, lam)
        earned = {key: point[key] for key in best if point.get(key) is not None}
        best |= {key: max(best[key], value) for key, value in earned.items()}
        # a fall cuts an episode short, but its steps were fast: either may tell
        poor = not earned or any(value < POOR * best[key] or best[key] == 0.0 for key, value in earned.items())
        still = poor and mean is not None and limit > 0 and abs(mean) < STILL * limit
        released = highest > 0 and (lam < before[f"constraint{i}/lam"] or lam <= FREE * highest)
        run = run + 1 if still and released else 0
        if run >= longest:
            longest, last = run, point
    if longest < max(STILL_POINTS, STILL_SHARE * total):
        return None
    ended = "and left it later" if last is not points[-1] else "so far" if len(points) < total else "to the end"
    return (
        f"the policy stood still while lambda decayed: mean {name} below {STILL:.0%} of its limit for {longest} log "
        f"points in a row, {ended}; a smaller dual.lam_step, or a longer dual.gain_warmup or dual.lam_delay, avoid this"
    )


def _swings(points: Sequence[dict[str, Any]], i: int, name: str, total: int) -> str | None:
    """A risk at its limit while the mean is far below: bursts take up the limit, and steady motion would earn more.

    A quantity that is zero in most steps, as a cost of 0 or 1, is always so and is left alone; so is one that is below
    zero on average, as a nearness: nobody wants it at its limit.
    """

    def swings(point: dict[str, Any]) -> bool:
        limit, mean, risk, t = (point.get(f"constraint{i}/{key}") for key in ("threshold", "mean", "risk", "t_batch"))
        if None in (mean, risk, t) or isinstance(t, list) or limit <= 0:
            return False
        return -t > 0.1 * limit and risk > BINDS * limit and 0 <= mean < SWINGS * limit

    last = list(takewhile(swings, reversed(points)))
    if len(last) < max(STILL_POINTS, STILL_SHARE * total):
        return None
    share = sum(point[f"constraint{i}/mean"] / point[f"constraint{i}/threshold"] for point in last) / len(last)
    ended = "so far" if len(points) < total else "to the end"
    return (
        f"{name} swings: its risk is at the limit while its mean is {share:.0%} of it, for {len(last)} log points, "
        f"{ended}; the policy moves in bursts, and another seed or a longer dual.lam_delay may find a steadier way"
    )


def _forgot(points: Sequence[dict[str, Any]], constraints: int, total: int) -> str | None:
    """A return that fell to half of what it was and stays there although no risk fell with it.

    Where risks fall as well a price is at work; here the policy has lost what it could do. A return that fell with its
    risk is a policy that pays, but not where hardly anything is left of it: that one has given its task up.
    """
    known = [point for point in points if point.get("train/return") is not None]
    if not known:
        return None
    best = max(known, key=lambda point: point["train/return"])
    after, high = known[known.index(best) + 1 :], best["train/return"]
    low, little = (
        list(takewhile(lambda point, share=share: point["train/return"] < share * high, reversed(after)))
        for share in (HALF, LITTLE)
    )
    long, ended = max(STILL_POINTS, STILL_SHARE * total), "so far" if len(points) < total else "to the end"
    if high <= 0 or len(low) < long:
        return None
    then, now = ([point.get(f"constraint{i}/risk") for i in range(constraints)] for point in (best, low[0]))
    if any(new is not None and old is not None and new < NEAR * old for old, new in zip(then, now, strict=True)):
        return None if len(little) < long else (
            f"the policy gave its task up for a limit: its return fell from {high:.4g} to "
            f"{little[0]['train/return']:.4g} and stayed below {LITTLE:.0%} of that for {len(little)} log points, "
            f"{ended}; unless the limit leaves no more, a limit that comes down (dual.ease), a smaller dual.lam_step "
            "or dual.lam_max, or a longer dual.lam_delay avoid this"
        )  # fmt: skip
    return (
        f"the policy forgot what it could do: its return fell from {high:.4g} to {low[0]['train/return']:.4g} and "
        f"stayed below half of that for {len(low)} log points, {ended}; a smaller ppo.value_huber, "
        "ppo.target_kl or ppo.lr avoids this"
    )


def _runaway(points: Sequence[dict[str, Any]]) -> str | None:
    """Value targets that have grown out of all proportion to the returns they stand for."""
    spread = max((point.get("ppo/target_spread") or 0.0 for point in points), default=0.0)
    if spread < RUNAWAY:
        return None
    return (
        f"the critic's targets ran away: they spread {spread:.2g} times as far as returns do; "
        "layout.keep_values=true or a smaller ppo.gamma avoids this"
    )
