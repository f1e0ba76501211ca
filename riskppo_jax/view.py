"""What a batch shows of the problem: single steps, or whole episodes.

The paper measures the risk of a visited step. The usual alternative measures the risk of an episode's sum; on the
same scale that is `R = sum_k x_k / H` with `H` the time limit. Both are a reward and quantities with weights, so
the Lagrangian and the descent-ascent need not know which.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from riskppo_jax.episodes import Episodes, added
from riskppo_jax.risk import estimate, lagrangian
from riskppo_jax.risk.lagrangian import Problem
from riskppo_jax.sgda import DualState
from riskppo_jax.solvers.ppo import Transition
from riskppo_jax.types import Array, ArrayLike, Metrics


class View(NamedTuple):
    """Reward and quantities `[time, env]`, the weight each has for lambda and t, and that by discounted visits."""

    reward: Array
    quantities: dict[str, Array]
    weights: Array
    discounted: Array


def of_steps(batch: Transition, started: Array, gamma: ArrayLike) -> View:
    """Every visited step alike; `started` is how many steps each world's episode had before the batch."""
    visited = batch.valid.astype(batch.reward.dtype)
    discounted = visited * estimate.occupancy_weights(batch.terminated | batch.truncated, gamma, started)
    return View(batch.reward, batch.constraints, visited, discounted)


def of_episodes(batch: Transition, sums: Episodes, limit: int) -> View:
    """Sums over the time limit, and only where an episode ends; staggered worlds cut their first one short."""
    whole = batch.terminated | (batch.truncated & (sums.length >= limit))
    ends = (whole & batch.valid).astype(batch.reward.dtype)
    return View(sums.reward / limit, {name: x / limit for name, x in sums.quantities.items()}, ends, ends)


def priced_steps(
    problem: Problem, dual: DualState, batch: Transition, constant: bool, averse: ArrayLike | None = None
) -> Array:
    """The reward of each step at these prices."""
    return lagrangian.priced_reward(problem, dual.lam, dual.t, batch.reward, batch.constraints, constant, averse)


def priced_episodes(
    problem: Problem, dual: DualState, batch: Transition, sums: Episodes, limit: int, averse: ArrayLike | None = None
) -> Array:
    """What each step adds to the priced value `u(R)` of its episode: `H (u(R_k) - u(R_{k-1}))`, which adds up to it."""

    def worth(sums: Episodes) -> Array:
        quantities = {name: x / limit for name, x in sums.quantities.items()}
        return lagrangian.priced_reward(problem, dual.lam, dual.t, sums.reward / limit, quantities, averse=averse)

    before = jax.tree.map(jnp.subtract, sums, added(batch, tuple(sums.quantities)))
    return limit * (worth(sums) - worth(before))


def risk_metrics(problem: Problem, present: Problem, dual: DualState, view: View) -> Metrics:
    """Per constraint: price, t, slack at t, the batch's own best t, risk and mean; NaN where nothing has weight.

    Of an objective that is not the mean: t, the batch's own best t, and its value there.
    `present` has the limits as they are now, if they are on their way down; slack is to the problem's own.
    """
    metrics: Metrics = {}
    known = jnp.where(jnp.sum(view.weights) > 0, 1.0, jnp.nan)
    found = lagrangian.estimates(problem, dual.t, view.reward, view.quantities, view.weights)
    if problem.averse:
        metrics |= {
            "objective/t": dual.t[0],
            "objective/t_batch": known * problem.objective.t_star(view.reward, view.weights),
            "objective/value": known * problem.objective.value(view.reward, view.weights),
        }
    for i, constraint in enumerate(problem.constraints):
        v, utility = view.quantities[constraint.name], constraint.utility
        area = f"constraint{i}"
        metrics |= {
            f"{area}/lam": dual.lam[i],
            f"{area}/lam_max": dual.lam_max[i],
            f"{area}/t": dual.t[i + 1],
            f"{area}/slack": known * found.slack[i],
            f"{area}/t_batch": known * utility.t_star(-v, view.weights),
            f"{area}/t_batch_discounted": known * utility.t_star(-v, view.discounted),
            f"{area}/risk": -known * utility.value(-v, view.weights),
            f"{area}/mean": known * estimate.weighted_mean(v, view.weights),
            f"{area}/threshold": jnp.asarray(constraint.threshold),
            f"{area}/limit": jnp.asarray(present.constraints[i].threshold),
        }
    return metrics
