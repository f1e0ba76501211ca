"""A finite problem as functions, starts for its `t`, and how far an outcome is from the stored optimum."""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from riskppo_jax import sgda
from riskppo_jax.envs import tabular
from riskppo_jax.envs.tabular import Instance
from riskppo_jax.risk import lagrangian, oce
from riskppo_jax.risk.lagrangian import Aux, Constraint, Estimates, Problem
from riskppo_jax.types import Array


class Outcome(NamedTuple):
    """What a run ends with. The policy's own values are exact: its law, each OCE at its own best `t`."""

    policy: np.ndarray  # [state, action]
    objective: float
    slack: np.ndarray  # [m]
    lam: np.ndarray  # [m]
    t: tuple[float, ...]  # of the iterate; the objective's first
    start: int  # which of the starts it came from; its initial `t` is the trace's


class Score(NamedTuple):
    """Errors as shares of the scales the instance gives."""

    objective_gap: float  # |objective - P*| / |unconstrained objective - P*|
    violation: float  # over the unconstrained violation
    t_error: float  # distance to the optimal t's interval over the range of the quantity
    lam_error: float  # distance to the optimal prices' interval over its nearer end

    def within(self, tolerance: float) -> bool:
        """Whether objective and violation are; several t can be as good, so t and prices are only reported."""
        return max(self.objective_gap, self.violation) <= tolerance


@dataclass(frozen=True)
class Setup:
    """An instance as functions: the problem, its sets, and exact estimates of an occupancy."""

    instance: Instance
    problem: Problem = field(init=False)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self):
        utilities = [oce.from_config(config) for config in self.instance.utilities]
        names = tuple(f"v{i + 1}" for i in range(len(utilities) - 1))
        constraints = tuple(
            Constraint(name, -b, utility)
            for name, b, utility in zip(names, self.instance.thresholds, utilities[1:], strict=True)
        )
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "problem", Problem(utilities[0], constraints))

    @property
    def rewards(self) -> np.ndarray:
        return np.asarray(self.instance.mdp.rewards)

    @property
    def batch(self) -> tuple[Array, dict[str, Array]]:
        """Reward and quantities of every outcome row, as a batch whose weights are a policy's law."""
        rewards = self.instance.mdp.rewards
        return rewards[0], {name: -rewards[i + 1] for i, name in enumerate(self.names)}

    def sets(self, box: str) -> sgda.Sets:
        """T and Lambda. Slack is measured in the free policy's violation, t and prices by the quantities' ranges."""
        low, high = self.rewards.min(axis=1), self.rewards.max(axis=1)
        ranges = {name: (-high[i + 1], -low[i + 1]) for i, name in enumerate(self.names)}
        width = np.where(high > low, high - low, 1.0)
        price = jnp.asarray(width[0] / width[1:])
        raw = sgda.sets(self.problem, (low[0], high[0]), ranges, 20.0 * price, box)
        # A step of t is as large as the steepest slope of g: 1/beta for CVaR. Measured in that, it chatters less.
        slopes = [float(jnp.max(utility.dg(-w))) for utility, w in zip(self.problem.utilities, width, strict=True)]
        t_unit = width / np.clip(slopes, 1.0, 20.0)
        return raw.replace(slack_unit=jnp.asarray(self.free_violation()), lam_unit=price, t_unit=tuple(t_unit.tolist()))

    def free_violation(self) -> np.ndarray:
        """Violation of the policy that knows no constraint, per constraint; the range where it has hardly any."""
        mdp = self.instance.mdp
        free = tabular.occupancy(mdp, tabular.best_response(mdp, mdp.rewards[0]))
        slack = np.asarray(self.judge(free).slack)
        width = np.ptp(self.rewards[1:], axis=1)
        return np.where(-slack > 0.01 * width, -slack, width)

    def priced(self, lam: Array, t: Aux) -> Array:
        return lagrangian.priced_reward(self.problem, lam, t, *self.batch)

    def estimates(self, nu: Array, t: Aux) -> Estimates:
        return lagrangian.estimates(self.problem, t, *self.batch, tabular.law(self.instance.mdp, nu))

    def t_star(self, nu: Array) -> Aux:
        return lagrangian.batch_t_star(self.problem, *self.batch, tabular.law(self.instance.mdp, nu))

    def judge(self, nu: Array) -> Estimates:
        """The occupancy's true objective and slacks: every OCE at its own best `t`."""
        return self.estimates(nu, self.t_star(nu))


def score(instance: Instance, outcome: Outcome) -> Score:
    """Normalised errors against the stored optimum."""
    best = instance.solution
    rewards = np.asarray(instance.mdp.rewards)
    errors = [0.0]
    for t_i, interval, row in zip(outcome.t, best.t_interval, rewards, strict=True):
        if interval is not None:
            distance = max(interval[0] - t_i, t_i - interval[1], 0.0)
            errors.append(distance / (np.ptp(row) or 1.0))
    return Score(
        objective_gap=abs(outcome.objective - best.objective) / best.objective_scale,
        violation=float(np.max(np.maximum(-outcome.slack, 0.0) / np.asarray(best.violation_scale), initial=0.0)),
        t_error=max(errors),
        lam_error=max(map(_outside, outcome.lam, best.lam_interval), default=0.0),
    )


def _outside(x: float, interval: tuple[float, float]) -> float:
    """How far `x` lies outside, over the end it is nearer to."""
    low, high = interval
    if x < low:
        return float((low - x) / low)
    return float((x - high) / max(high, 1e-9)) if x > high else 0.0


def best_feasible(judged: Estimates, sets: sgda.Sets, feasible: float) -> int:
    """The start with the best objective among the feasible; chosen without looking at the stored optimum."""
    objective, slack = np.asarray(judged.objective), np.asarray(judged.slack)
    violation = np.max(np.maximum(-slack, 0.0) / np.asarray(sets.slack_unit), axis=-1, initial=0.0)
    kept = violation <= feasible
    return int(np.argmax(np.where(kept, objective, -np.inf)) if kept.any() else np.argmin(violation))


def starts(setup: Setup, sets: sgda.Sets, count: int, seed: int) -> Aux:
    """Initial `t`, combined at random. The first is the upper end of T, where every loss counts in full."""
    rng = np.random.default_rng(seed)
    columns = []
    for i in range(len(sets.t_low)):
        column = _spread(setup, sets, i, count)
        column[1:] = rng.permutation(column[1:]) if i else column[1:]
        columns.append(jnp.asarray(column))
    return tuple(columns)


def around(setup: Setup, sets: sgda.Sets, count: int, center: list[float], levels: list[int]) -> Aux:
    """Initial `t` that differ from `center` in one of the levels, each in turn."""
    rows = np.tile(np.asarray(center)[:, None], (1, count))
    for share, i in zip(np.array_split(np.arange(count), len(levels)), levels, strict=True):
        rows[i, share] = _spread(setup, sets, i, len(share))
    return tuple(jnp.asarray(row) for row in rows)


def _spread(setup: Setup, sets: sgda.Sets, i: int, count: int) -> np.ndarray:
    """`count` of the values that quantity `i` takes inside T, where the optimal t of CVaR lies; largest first."""
    atoms = np.unique(setup.rewards[i])
    atoms = np.unique(np.append(atoms[(atoms >= sets.t_low[i]) & (atoms <= sets.t_high[i])], sets.t_high[i]))[::-1]
    if len(atoms) > count:
        atoms = atoms[np.round(np.linspace(0, len(atoms) - 1, count)).astype(int)]
    return np.resize(atoms, count)
