"""What steps on prices and on `t` are measured in, the sets they stay in, and where they start.

One set of step sizes is to serve every task: slack and `t` are counted in thresholds, prices in what a unit of the
quantity is worth.
"""

import math

import jax.numpy as jnp

from riskppo_jax import sgda
from riskppo_jax.envs.base import Env
from riskppo_jax.errors import UserError
from riskppo_jax.risk.estimate import weighted_mean
from riskppo_jax.risk.lagrangian import Aux, Problem
from riskppo_jax.scheme import Scheme
from riskppo_jax.types import Array, ArrayLike

REWARDS = (-100.0, 100.0)  # of a step, where an environment does not say
STEEPNESS = 1 / 0.3  # of the utility that step sizes were chosen for; steps are smaller for steeper ones ...
STEEPEST = 20.0  # ... up to this factor
SLOWS = 1.5  # of limits on their way down


def dual_sets(
    problem: Problem, env: Env, lam_max: ArrayLike, rule: sgda.Rule, scheme: Scheme, eased: Problem | None = None
) -> sgda.Sets:
    """Lambda and T of this problem on this environment, with the units of their steps.

    Where limits are `eased` T is as wide as they are, and t steps in units of them; other units are the problem's own.
    """
    reach = getattr(env, "reward_range", REWARDS)
    raw = sgda.sets(eased or problem, reach, env.constraint_range, lam_max, rule.box)
    if scheme.units == "raw":
        return raw
    sizes = _sizes(problem, env)
    prices = _price_units(problem, _worth(problem, env), sizes)
    # t has further to go under a wider limit; where it lags behind its best value every slack looks worse than it is
    reaches = jnp.maximum(sizes, _sizes(eased, env)) if eased else sizes
    return raw.replace(lam_max=raw.lam_max * prices, slack_unit=sizes, t_unit=(1.0, *reaches), lam_unit=prices)


def of_rewards(sets: sgda.Sets, reward: Array, weights: Array) -> sgda.Sets:
    """`sets` with the objective's t in units of this batch's rewards, their root mean square.

    No limit says how large rewards are: a step of Humanoid earns 5, one of a navigation task 0.01. Raw sets stay raw.
    """
    if not isinstance(sets.t_unit, tuple):
        return sets
    size = jnp.sqrt(weighted_mean(jnp.square(reward), weights))
    return sets.replace(t_unit=(size, *sets.t_unit[1:]))


def ease(problem: Problem, env: Env, width: ArrayLike, left: ArrayLike) -> Problem:
    """The problem with its limits on their way down: `c + |c| ((1 + width)^(left^1.5) - 1)`, `left` from 1 to 0.

    A gait that is far beyond its limit earns less than rest once the price is what the limit needs in the end, and
    a policy that sees that gives the gait up. A limit that is never far below what the policy does charges little, and
    the gait goes along. The power lets limits slow down towards the end, about as the learning rate does: a policy that
    moves less cannot follow at the same pace, and the price would rise to drive it.
    """
    wider = _sizes(problem, env) * ((1.0 + width) ** (left**SLOWS) - 1.0)
    constraints = [c.replace(threshold=c.threshold + more) for c, more in zip(problem.constraints, wider, strict=True)]
    return problem.replace(constraints=tuple(constraints))


def start(problem: Problem, sets: sgda.Sets, lam: ArrayLike, t: ArrayLike | Aux) -> sgda.DualState:
    """Prices and t before the first step; the objective's own t starts at 0 unless all are given."""
    if not isinstance(t, tuple):
        sizes = jnp.broadcast_to(sets.slack_unit, problem.thresholds.shape)
        own = [c.utility.t_start(t, size) for c, size in zip(problem.constraints, sizes, strict=True)]
        t = (problem.objective.t_start(0.0, 1.0), *own)
    return sgda.init(sets, lam, t)


def check_ranges(problem: Problem, env: Env) -> None:
    """Raises `UserError` where the environment lacks a constrained quantity, or a measure cannot judge its range."""
    for constraint in problem.constraints:
        if constraint.name not in env.constraint_names:
            raise UserError(
                f"constraint {constraint.name!r}: this environment accepts {', '.join(env.constraint_names)}"
            )
        low, high = env.constraint_range[constraint.name]
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UserError(
                f"constraint_range of {constraint.name} is {low:g} to {high:g}; t accepts a quantity with finite bounds"
            )
        constraint.utility.require_range(low, high)
    problem.objective.require_range(*getattr(env, "reward_range", REWARDS), where="objective")


def _sizes(problem: Problem, env: Env) -> Array:
    """What slack and t are measured in: the threshold, so that one step size serves all tasks.

    A threshold of zero gives no scale; the quantity's range does then. Prices stay in raw units, reward per v; an
    environment whose rewards are of another size than its quantities says what a unit is worth in `price_units`.
    """
    widths = [env.constraint_range[c.name][1] - env.constraint_range[c.name][0] for c in problem.constraints]
    limits = jnp.abs(problem.thresholds)
    return jnp.where(limits > 0, limits, jnp.asarray(widths, limits.dtype))


def _worth(problem: Problem, env: Env) -> Array:
    """Reward per unit of each quantity, as the environment says; 1 where it does not."""
    worth = getattr(env, "price_units", {})
    return jnp.asarray([worth.get(c.name, 1.0) for c in problem.constraints], float)


def _price_units(problem: Problem, worth: Array, sizes: Array) -> Array:
    """What a price's bound and steps are measured in: what a unit of the quantity is worth, less for a steep utility.

    A price of one charges `1/beta` for each unit of excess: the same price at beta 0.05 is felt six times as much as at
    the 0.3 that steps and bounds were chosen for, and drives a policy that is still learning into standing or falling.
    """
    steep = [c.utility.steepness(size) for c, size in zip(problem.constraints, sizes, strict=True)]
    return worth / jnp.clip(jnp.asarray(steep, sizes.dtype) / STEEPNESS, 1.0, STEEPEST)
