"""Algorithm 1 on finite problems with an exact policy oracle, judged against the stored optimum.

The same `sgda.dual_step` that trains networks runs here with exact expectations, so whatever goes wrong is the
algorithm's and not the sampler's. The value of the problem with `t` held fixed is not concave in `t`, so our
variant starts from several `t` at once (a `vmap`) and returns the best feasible outcome; the paper's has one.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax import iterates, sgda
from riskppo_jax.envs import tabular
from riskppo_jax.envs.tabular import Instance
from riskppo_jax.risk import lagrangian, oce
from riskppo_jax.risk.lagrangian import Aux, Constraint, Estimates, Problem
from riskppo_jax.types import Array

TOLERANCE = 0.01  # solved: objective and violation within this, normalised
_FEASIBLE = 1e-3  # of the unconstrained violation: what counts as feasible when choosing among starts


@dataclass(frozen=True)
class Variant:
    """A rule with everything it needs to run; step sizes are in units of `Setup.sets`.

    Attributes:
      oracle: `best_response` solves the priced problem at every step, as the theorem assumes; `gradual` takes one
        natural-gradient step on it, as PPO would.
      decay: steps shrink like `1/sqrt(1 + k/decay)` (lam) and `1/(1 + k/(5 decay))` (t); None: constant.
      hold: steps before `t` first moves, so that prices settle first: t is the slow variable.
      starts: how many initial `t` to run side by side, for each quantity that has one; 1 is one in all.
      iterate: which iterate is returned, see `iterates`.
    """

    rule: sgda.Rule
    hypers: sgda.DualHypers
    oracle: str = "best_response"
    policy_step: float = 1.0
    decay: float | None = None
    hold: int = 0
    starts: int = 1
    iterate: str = "average"
    iterations: int = 16000


def _steps(**steps: float) -> sgda.DualHypers:
    # exact gradients: every slack is to be believed
    return sgda.DualHypers(slack_clip=float("inf"), gain_clip=float("inf"), gain_warmup=1.0, **steps)


_DAMPED = Variant(sgda.Rule(), _steps(), "gradual", decay=100.0, hold=500, starts=16, iterate="last")
VARIANTS: dict[str, Variant] = {
    "default": Variant(
        sgda.Rule("plain", "plain", "tight"),
        _steps(lam_step=0.1, t_step=0.01),
        decay=100.0,
        hold=500,
        starts=16,
    ),
    "paper": Variant(sgda.Rule("plain", "scaled", "wide"), _steps(lam_step=0.02, t_step=0.02)),
    "plain": Variant(sgda.Rule("plain", "plain", "tight"), _steps(lam_step=0.02, t_step=0.02)),
    "smoothed": Variant(
        sgda.Rule("plain", "scaled", "wide", smoothed=True), _steps(lam_step=0.02, t_step=0.02)
    ),
    "pi": replace(_DAMPED, hypers=_steps(lam_step=0.1, lam_gain=2.0, t_step=0.005)),
    "optimistic": replace(
        _DAMPED, rule=sgda.Rule("optimistic"), hypers=_steps(lam_step=1.0, t_step=0.005)
    ),
    "extragradient": replace(
        _DAMPED, rule=sgda.Rule("extragradient"), hypers=_steps(lam_step=1.0, t_step=0.005)
    ),
    "adam": replace(_DAMPED, rule=sgda.Rule("adam"), hypers=_steps(lam_step=0.01, t_step=0.005)),
}


class Outcome(NamedTuple):
    """What a run ends with. The policy's own values are exact: its law, each OCE at its own best `t`."""

    policy: np.ndarray  # [state, action]
    objective: float
    slack: np.ndarray  # [m]
    lam: np.ndarray  # [m]
    t: tuple[float, ...]  # of the iterate; the objective's first
    start: int  # which of the starts it came from; its initial `t` is the trace's


class Trace(NamedTuple):
    """A run over time, from every start: `[start, snapshot, ...]`."""

    iteration: np.ndarray  # [snapshot]
    start: tuple[np.ndarray, ...]  # [start], the initial `t`
    lam: np.ndarray
    t: tuple[np.ndarray, ...]
    objective: np.ndarray  # of the returned iterate had the run ended there
    slack: np.ndarray


class Score(NamedTuple):
    """Errors as shares of the scales the instance gives."""

    objective_gap: float  # |objective - P*| / |unconstrained objective - P*|
    violation: float  # over the unconstrained violation
    t_error: float  # distance to the optimal t's interval over the range of the quantity

    @property
    def solved(self) -> bool:
        """Whether objective and violation are within 1%; several t can be as good, so t is only reported."""
        return max(self.objective_gap, self.violation) <= TOLERANCE


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
        return raw.replace(
            slack_unit=jnp.asarray(self.free_violation()), lam_unit=price, t_unit=tuple(t_unit.tolist())
        )

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


def solve(
    instance: Instance, variant: Variant = VARIANTS["default"], seed: int = 0, snapshots: int = 50
) -> tuple[Outcome, Trace]:
    """Runs a variant from all its starts; the best feasible outcome, and a trace with this many snapshots."""
    every = max(variant.iterations // snapshots, 1)
    with jax.enable_x64(True):
        setup = Setup(instance)
        sets = setup.sets(variant.rule.box)
        levels = [i for i, config in enumerate(instance.utilities) if config["name"] != "mean"]
        count = variant.starts * max(len(levels), 1) if variant.starts > 1 else 1
        keys = jax.random.split(jax.random.key(seed), count)
        run = jax.jit(jax.vmap(lambda t, key: _run(setup, sets, variant, t, key, every)))
        starts = _starts(setup, sets, count, seed)
        ended = run(starts, keys)
        best = _best_feasible(ended, sets)
        if count > 1 and len(levels) > 1:  # once more around the best, moving one of its several t at a time
            again = _around(setup, sets, count, [float(t[best]) for t in ended[0][2]], levels)
            ended = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ended, run(again, keys))
            starts = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), starts, again)
            best = _best_feasible(ended, sets)
        policy = jax.vmap(tabular.policy_of)(ended[0][0])
        (chosen, trace), starts, policy = jax.tree.map(np.asarray, (ended, starts, policy))
    _, lam, t, judged = chosen
    outcome = Outcome(
        policy=policy[best],
        objective=float(judged.objective[best]),
        slack=judged.slack[best],
        lam=lam[best],
        t=tuple(float(t_i[best]) for t_i in t),
        start=best,
    )
    snapshot_lam, snapshot_t, snapshot = trace
    iteration = every * np.arange(1, snapshot.objective.shape[1] + 1)
    return outcome, Trace(iteration, starts, snapshot_lam, snapshot_t, snapshot.objective, snapshot.slack)


def score(instance: Instance, objective: float, slack: np.ndarray, t: tuple[float, ...]) -> Score:
    """Normalised errors against the stored optimum."""
    best = instance.solution
    rewards = np.asarray(instance.mdp.rewards)
    errors = [0.0]
    for t_i, interval, row in zip(t, best.t_interval, rewards, strict=True):
        if interval is not None:
            distance = max(interval[0] - t_i, t_i - interval[1], 0.0)
            errors.append(distance / (np.ptp(row) or 1.0))
    return Score(
        objective_gap=abs(objective - best.objective) / best.objective_scale,
        violation=float(np.max(np.maximum(-slack, 0.0) / np.asarray(best.violation_scale), initial=0.0)),
        t_error=max(errors),
    )


def settled(instance: Instance, outcome: Outcome, trace: Trace) -> int | None:
    """The iteration from which on the returned iterate stays solved, to the trace's resolution; None if never."""
    solved = [
        score(instance, trace.objective[outcome.start, k], trace.slack[outcome.start, k], outcome.t).solved
        for k in range(len(trace.iteration))
    ]
    missed = [k for k, ok in enumerate(solved) if not ok]
    if not missed:
        return int(trace.iteration[0])
    return int(trace.iteration[missed[-1] + 1]) if missed[-1] + 1 < len(solved) else None


def _run(setup: Setup, sets: sgda.Sets, variant: Variant, t: Aux, key: Array, every: int):
    """One start: the chosen iterate `(nu, lam, t, judged)` and its snapshots after every so many steps."""
    mdp = setup.instance.mdp
    gradual = variant.oracle == "gradual"
    width = float(np.ptp(setup.rewards[0])) or 1.0
    dual = sgda.init(sets, t=t)
    if gradual:
        policy = jnp.full((mdp.num_states, mdp.num_actions), 1.0 / mdp.num_actions)
    else:
        policy = tabular.best_response(mdp, setup.priced(dual.lam, dual.t))
    first = (tabular.occupancy(mdp, policy), dual.lam, dual.t)

    def respond(policy, lam, t):
        return policy if gradual else tabular.best_response(mdp, setup.priced(lam, t), policy)

    def step(carry, k):
        dual, policy, seen, key = carry
        key, key_smooth, key_draw = jax.random.split(key, 3)
        policy = respond(policy, dual.lam, dual.t)  # line 4
        nu = tabular.occupancy(mdp, policy)  # line 5, all trajectories at once
        found = setup.estimates(nu, dual.t)
        violation = jnp.max(-found.slack / sets.slack_unit, initial=0.0)
        seen = iterates.update(seen, (nu, dual.lam, dual.t), found.objective, violation, key_draw, _FEASIBLE)

        def oracle(lam, t):
            return setup.estimates(tabular.occupancy(mdp, respond(policy, lam, t)), t)

        hypers = _scheduled(variant, k)
        t_star = setup.t_star(nu) if variant.rule.t == "quantile" else None
        dual = sgda.dual_step(variant.rule, sets, dual, oracle, hypers, t_star, key_smooth)  # lines 6, 7
        if gradual:
            values = tabular.action_values(mdp, policy, setup.priced(dual.lam, dual.t))
            logits = jnp.log(policy) + variant.policy_step * values / ((1 - mdp.gamma) * width)
            policy = jnp.maximum(jax.nn.softmax(logits), 1e-40)
        return (dual, policy, seen, key), None

    def snapshot(carry, ks):
        carry, _ = jax.lax.scan(step, carry, ks)
        dual, _, seen, _ = carry
        return carry, (dual.lam, dual.t, setup.judge(getattr(seen, variant.iterate)[0]))

    ks = jnp.arange(variant.iterations // every * every, dtype=float).reshape(-1, every)
    (_, _, seen, _), trace = jax.lax.scan(snapshot, (dual, policy, iterates.init(first), key), ks)
    nu, lam, t = getattr(seen, variant.iterate)
    return (nu, lam, t, setup.judge(nu)), trace


def _scheduled(variant: Variant, k: Array) -> sgda.DualHypers:
    hypers, moving = variant.hypers, k >= variant.hold
    if variant.decay is None:
        return hypers.replace(t_step=jnp.where(moving, hypers.t_step, 0.0))
    age, age_t = k / variant.decay, jnp.maximum(k - variant.hold, 0.0) / (5.0 * variant.decay)
    return hypers.replace(
        lam_step=hypers.lam_step / jnp.sqrt(1.0 + age) if variant.oracle == "best_response" else hypers.lam_step,
        t_step=jnp.where(moving, hypers.t_step / (1.0 + age_t), 0.0),
    )


def _best_feasible(ended, sets: sgda.Sets) -> int:
    """The start with the best objective among the feasible; chosen without looking at the stored optimum."""
    judged = jax.tree.map(np.asarray, ended[0][3])
    violation = np.max(np.maximum(-judged.slack, 0.0) / np.asarray(sets.slack_unit), axis=-1, initial=0.0)
    feasible = violation <= _FEASIBLE
    return int(np.argmax(np.where(feasible, judged.objective, -np.inf)) if feasible.any() else np.argmin(violation))


def _starts(setup: Setup, sets: sgda.Sets, count: int, seed: int) -> Aux:
    """Initial `t`, combined at random. The first is the upper end of T, where every loss counts in full."""
    rng = np.random.default_rng(seed)
    columns = []
    for i in range(len(sets.t_low)):
        column = _spread(setup, sets, i, count)
        column[1:] = rng.permutation(column[1:]) if i else column[1:]
        columns.append(jnp.asarray(column))
    return tuple(columns)


def _around(setup: Setup, sets: sgda.Sets, count: int, center: list[float], levels: list[int]) -> Aux:
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
