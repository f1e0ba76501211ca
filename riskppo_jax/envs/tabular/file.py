"""Reading a finite problem, and its stored optimum, from a JSON file; every complaint names the field."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from riskppo_jax.envs.tabular.mdp import TabularMDP
from riskppo_jax.errors import UserError

_NOTHING = 1e-6  # differences up to this are rounding

# file's kind of utility -> (ours, {file's parameter: ours})
_UTILITIES = {
    "risk_neutral": ("mean", {}),
    "cvar": ("cvar", {"beta": "beta"}),
    "entropic": ("entropic", {"alpha": "gamma"}),
    "mean_variance": ("quadratic", {"alpha": "c"}),
    "monotone_quadratic": ("monotone_quadratic", {"alpha": "c"}),
}


@dataclass(frozen=True)
class Solution:
    """The stored optimum on the per-step scale, and the scales errors are measured in."""

    objective: float  # P*
    t_interval: tuple[tuple[float, float] | None, ...]  # per utility; None where t does not matter
    lam: tuple[float, ...]
    lam_interval: tuple[tuple[float, float], ...]  # all optimal prices at the optimal t
    objective_scale: float  # |unconstrained objective - P*|
    violation_scale: tuple[float, ...]  # the unconstrained optimum's violation, per constraint


@dataclass(frozen=True)
class Instance:
    """A finite problem: the MDP, its utilities as configs, thresholds `b` on rewards, and the optimum if known."""

    name: str
    mdp: TabularMDP
    utilities: tuple[dict, ...]  # objective first; `risk.oce.from_config` reads them
    thresholds: tuple[float, ...]  # S_gi(r_i) >= b_i
    solution: Solution | None


def load(path: str | Path) -> Instance | None:
    """The instance stored at `path`; None where the file is valid JSON without `transitions`."""
    path = Path(path)
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: accepts a JSON object with the field `transitions`")
    if "transitions" not in data:
        return None
    return _Reader(path, data).instance()


class _Reader:
    def __init__(self, path: Path, data: dict):
        self.path, self.data = path, data

    def fail(self, field: str, accepts: str):
        raise UserError(f"{self.path}: field `{field}` accepts {accepts}")

    def get(self, field: str) -> Any:
        value = self.data
        for part in field.split("."):
            if not isinstance(value, dict) or part not in value:
                self.fail(field, "a value, and is missing")
            value = value[part]
        return value

    def numbers(self, field: str, shape: tuple[int | None, ...], kind: type = float) -> np.ndarray:
        """The field as an array of this shape (None: any length), all entries finite."""
        said = f"{'integers' if kind is int else 'finite numbers'} of shape {_shape(shape)}"
        try:
            value = np.asarray(self.get(field), dtype=float)
        except (TypeError, ValueError):
            self.fail(field, said)
        fits = value.ndim == len(shape) and all(
            want in (None, got) for want, got in zip(shape, value.shape, strict=True)
        )
        if not fits or not np.all(np.isfinite(value)) or (kind is int and np.any(value != np.round(value))):
            self.fail(field, said)
        return value.astype(int) if kind is int else value

    def instance(self) -> Instance:
        mdp = self.mdp()
        utilities = tuple(self.utility(i) for i in range(mdp.rewards.shape[0]))
        if len(self.get("utilities")) != len(utilities):
            self.fail("utilities", f"as many entries as transitions.rewards has rows ({len(utilities)})")
        thresholds = tuple(self.numbers("thresholds_per_step", (len(utilities) - 1,)).tolist())
        solution = self.solution(utilities) if "solution" in self.data else None
        return Instance(str(self.data.get("name", self.path.stem)), mdp, utilities, thresholds, solution)

    def mdp(self) -> TabularMDP:
        states = int(self.numbers("n_states", (), int))
        actions = int(self.numbers("n_actions", (), int))
        for field, count in (("n_states", states), ("n_actions", actions)):
            if count < 1:
                self.fail(field, "a positive integer")
        gamma = float(self.numbers("gamma", ()))
        if not 0 <= gamma < 1:
            self.fail("gamma", f"a number in [0, 1), got {gamma}")
        initial = self.numbers("initial_distribution", (states,))
        if np.any(initial < 0) or abs(initial.sum() - 1) > 1e-6:
            self.fail("initial_distribution", "non-negative numbers with sum 1")
        s = self.numbers("transitions.s", (None,), int)
        columns = {"s": s}
        for name, limit in (("s", states), ("a", actions), ("s_next", states)):
            columns[name] = self.numbers(f"transitions.{name}", s.shape, int)
            if np.any((columns[name] < 0) | (columns[name] >= limit)):
                self.fail(f"transitions.{name}", f"integers from 0 to {limit - 1}")
        prob = self.numbers("transitions.prob", s.shape)
        total = np.zeros((states, actions))
        np.add.at(total, (s, columns["a"]), prob)
        if np.any(prob < 0) or np.any(abs(total - 1) > 1e-6):
            self.fail("transitions.prob", "non-negative numbers that sum to 1 for every state and action")
        rewards = self.numbers("transitions.rewards", (None, *s.shape))
        return TabularMDP(
            **{name: jnp.asarray(column) for name, column in columns.items()},
            prob=jnp.asarray(prob),
            rewards=jnp.asarray(rewards),
            initial=jnp.asarray(initial),
            gamma=gamma,
            num_states=states,
            num_actions=actions,
        )

    def utility(self, i: int) -> dict:
        entries = self.get("utilities")
        entry = entries[i] if isinstance(entries, list) and i < len(entries) else None
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind not in _UTILITIES:
            self.fail(f"utilities[{i}].kind", f"one of {', '.join(_UTILITIES)}; got {kind!r}")
        name, renamed = _UTILITIES[kind]
        for theirs in renamed:
            value = entry.get(theirs)
            positive = isinstance(value, int | float) and 0 < value < math.inf
            if not positive or (theirs == "beta" and value > 1):
                self.fail(f"utilities[{i}].{theirs}", "a number in (0, 1]" if theirs == "beta" else "a positive number")
        return {"name": name} | {ours: float(entry[theirs]) for theirs, ours in renamed.items()}

    def solution(self, utilities: tuple[dict, ...]) -> Solution:
        best = float(self.numbers("solution.P_star", ()))
        count = len(utilities) - 1
        t_star = self.get("solution.t_star")
        if (
            not isinstance(t_star, list)
            or len(t_star) != count + 1
            or not all(t is None or _is_number(t) for t in t_star)
        ):
            self.fail("solution.t_star", f"a list of {count + 1} numbers, null where t does not matter")
        intervals = self.intervals("t_star_interval", t_star)
        t_interval = tuple(None if t is None else own for t, own in zip(t_star, intervals, strict=True))
        comparisons = self.get("comparisons")
        averse = utilities[0]["name"] != "mean" and "unconstrained_risk_averse" in (comparisons or {})
        free = f"comparisons.unconstrained_risk_{'averse' if averse else 'neutral'}"
        objective = float(self.numbers(f"{free}.objective", ()))
        slack = self.numbers(f"{free}.constraint_slack", (count,))
        lam = tuple(self.numbers("solution.lambda_star", (count,)).tolist())
        spread = np.array(
            [float(np.ptp(rewards)) or 1.0 for rewards in self.numbers("transitions.rewards", (None, None))]
        )
        lost = abs(objective - best)
        return Solution(
            objective=best,
            t_interval=t_interval,
            lam=lam,
            lam_interval=self.intervals("lambda_interval", list(lam)),
            # where the constraints cost nothing, by the range of the reward
            objective_scale=lost if lost > _NOTHING * spread[0] else spread[0],
            violation_scale=tuple(_violation_scale(slack, spread[1:]).tolist()),
        )

    def intervals(self, name: str, centres: list[float | None]) -> tuple[tuple[float, float], ...]:
        """Ends of the interval around each entry, from `solution`; where it says nothing, the entry itself."""
        given = self.data["solution"].get(name) or [None] * len(centres)
        pairs = isinstance(given, list) and len(given) == len(centres)
        for pair in given if pairs else ():
            pairs = pairs and (pair is None or (isinstance(pair, list) and len(pair) == 2 and all(map(_is_end, pair))))
        if not pairs:
            self.fail(f"solution.{name}", f"a list of {len(centres)} pairs of numbers, null where there is none")
        ends = [(x or 0.0, x or 0.0) if pair is None else pair for pair, x in zip(given, centres, strict=True)]
        return tuple((float(low), float(high)) for low, high in ends)


def _violation_scale(slack: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """How far the free policy violates; a constraint it meets is measured by the worst of the others, or its range."""
    violated = -slack > _NOTHING
    if not violated.any():
        return spread
    return np.where(violated, -slack, -slack.min())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_end(value: Any) -> bool:
    return _is_number(value) or value == "inf"


def _shape(shape: tuple[int | None, ...]) -> str:
    return "a number" if shape == () else " x ".join("any" if n is None else str(n) for n in shape)
