"""Algorithm 1 on finite problems with an exact policy oracle, judged against the stored optimum.

The same `sgda.dual_step` that trains networks runs here with exact expectations, so whatever goes wrong is the
algorithm's and not the sampler's. The value of the problem with `t` held fixed is not concave in `t`, so our
variant starts from several `t` at once (a `vmap`) and returns the best feasible outcome; the paper's has one.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax import iterates, sgda
from riskppo_jax.envs import tabular
from riskppo_jax.envs.tabular import Instance
from riskppo_jax.risk.lagrangian import Aux
from riskppo_jax.truth.setup import Outcome, Setup, around, best_feasible, score, starts
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
    infinity = float("inf")
    return sgda.DualHypers(slack_clip=infinity, gain_clip=infinity, t_clip=infinity, gain_warmup=1.0, **steps)


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
    "smoothed": Variant(sgda.Rule("plain", "scaled", "wide", smoothed=True), _steps(lam_step=0.02, t_step=0.02)),
    "pi": replace(_DAMPED, hypers=_steps(lam_step=0.1, lam_gain=2.0, t_step=0.005)),
    "optimistic": replace(_DAMPED, rule=sgda.Rule("optimistic"), hypers=_steps(lam_step=1.0, t_step=0.005)),
    "extragradient": replace(_DAMPED, rule=sgda.Rule("extragradient"), hypers=_steps(lam_step=1.0, t_step=0.005)),
    "adam": replace(_DAMPED, rule=sgda.Rule("adam"), hypers=_steps(lam_step=0.01, t_step=0.005)),
}


class Trace(NamedTuple):
    """A run over time, from every start: `[start, snapshot, ...]`."""

    iteration: np.ndarray  # [snapshot]
    start: tuple[np.ndarray, ...]  # [start], the initial `t`
    lam: np.ndarray
    t: tuple[np.ndarray, ...]
    objective: np.ndarray  # of the returned iterate had the run ended there
    slack: np.ndarray


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
        begin = starts(setup, sets, count, seed)
        ended = run(begin, keys)
        best = best_feasible(ended[0][3], sets, _FEASIBLE)
        if count > 1 and len(levels) > 1:  # once more around the best, moving one of its several t at a time
            again = around(setup, sets, count, [float(t[best]) for t in ended[0][2]], levels)
            ended = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ended, run(again, keys))
            begin = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), begin, again)
            best = best_feasible(ended[0][3], sets, _FEASIBLE)
        policy = jax.vmap(tabular.policy_of)(ended[0][0])
        (chosen, trace), begin, policy = jax.tree.map(np.asarray, (ended, begin, policy))
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
    return outcome, Trace(iteration, begin, snapshot_lam, snapshot_t, snapshot.objective, snapshot.slack)


def settled(instance: Instance, outcome: Outcome, trace: Trace) -> int | None:
    """The iteration from which on the returned iterate stays solved, to the trace's resolution; None if never."""
    objective, slack = trace.objective[outcome.start], trace.slack[outcome.start]
    solved = [
        score(instance, outcome._replace(objective=objective[k], slack=slack[k])).within(TOLERANCE)
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
