"""A risk-constrained problem as functions of a batch: priced reward, slack, gradients in (lambda, t).

    maximise  S_g0(r)   subject to   rho_gi(v_i) <= c_i,   i = 1..m

    J_0(t_0) = E[t_0 + g_0(r - t_0)]         slack_i(t_i) = c_i + E[t_i + g_i(-v_i - t_i)]
    L(pi, t, lam) = J_0 + sum_i lam_i slack_i

`t` is a tuple: the objective's entry first, then one for each constraint, each of its utility's `t_shape`.
"""

from collections.abc import Mapping
from numbers import Real
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct

from riskppo_jax.errors import UserError
from riskppo_jax.risk.estimate import weighted_mean
from riskppo_jax.risk.families import Mean
from riskppo_jax.risk.utility import Utility
from riskppo_jax.types import Array, ArrayLike

Aux = tuple[Array, ...]  # (t_0, t_1, ..., t_m)


@struct.dataclass
class Constraint:
    """`rho(v) <= threshold`, per step and in units of `v`."""

    name: str = struct.field(pytree_node=False)  # which of the environment's quantities
    threshold: ArrayLike
    utility: Utility

    def __post_init__(self):
        c = self.threshold  # traced, or whatever JAX puts in the place of a leaf, is taken as it is
        if isinstance(c, str) or (isinstance(c, Real) and not abs(c) < float("inf")):
            raise UserError(f"threshold of {self.name!r}: accepts a finite number, got {c!r}")
        if isinstance(self.utility, str | Real):
            raise UserError(
                f"constraint {self.name!r}: accepts a risk measure such as oce.cvar(0.3), got {self.utility!r}"
            )


@struct.dataclass
class Problem:
    """An objective utility and any number of constraints, each with a utility of its own."""

    objective: Utility = struct.field(default_factory=Mean)
    constraints: tuple[Constraint, ...] = ()

    @property
    def utilities(self) -> tuple[Utility, ...]:
        """The utilities in the order of `t`: the objective's, then the constraints'."""
        return (self.objective, *(constraint.utility for constraint in self.constraints))

    @property
    def averse(self) -> bool:
        """Whether the objective is anything but the mean: then it has a `t` and a value of its own."""
        return not isinstance(self.objective, Mean)

    @property
    def thresholds(self) -> Array:
        """`c`, of shape `[m]`."""
        return jnp.asarray([constraint.threshold for constraint in self.constraints], jnp.result_type(float))


class Estimates(NamedTuple):
    """What a batch says at a given `t`; everything the dual variables need to know."""

    objective: Array  # J_0(t_0)
    slack: Array  # [m], dL/dlam
    dt: Aux  # d/dt of E[t + g(x - t)], without the factor lam


def priced_reward(
    problem: Problem,
    lam: Array,
    t: Aux,
    reward: Array,
    quantities: Mapping[str, Array],
    constant: bool = False,
    averse: ArrayLike | None = None,
) -> Array:
    """The reward whose expectation the policy maximises at given prices.

    `u_0(r) - u_0(0) + sum_i lam_i (u_i(-v_i) - u_i(0))` with `u(x) = t + g(x - t)`: a step that is not taken
    counts as rest, with no reward and `v = 0`. With `constant`, the Lagrangian's integrand itself,
    `u_0(r) + sum_i lam_i (c_i + u_i(-v_i))`; where episodes can end early its constant pays for living or for
    falling, so it is not the default. With `averse`, a share `a` of the objective: `(1 - a) r + a u_0(r)`.
    """

    def priced(utility, x, t):
        value = utility.pointwise(x, t)
        return value if constant else value - utility.pointwise(jnp.zeros((), x.dtype), t)

    total = priced(problem.objective, reward, t[0])
    if averse is not None:
        total = reward + averse * (total - reward)
    for i, constraint in enumerate(problem.constraints):
        term = priced(constraint.utility, -_quantity(constraint, quantities), t[i + 1])
        total = total + lam[i] * (term + (constraint.threshold if constant else 0.0))
    return total


def estimates(
    problem: Problem,
    t: Aux,
    reward: Array,
    quantities: Mapping[str, Array],
    weights: Array | None = None,
) -> Estimates:
    """Objective, slacks and t-derivatives of a weighted batch at `t`."""
    xs = [reward, *(-_quantity(constraint, quantities) for constraint in problem.constraints)]
    pairs = list(zip(problem.utilities, xs, t, strict=True))
    weights = jnp.full(jnp.shape(reward), 1.0 / jnp.size(reward)) if weights is None else weights
    values = [weighted_mean(utility.pointwise(x, t_i), weights) for utility, x, t_i in pairs]
    dt = tuple(weighted_mean(utility.pointwise_dt(x, t_i), weights) for utility, x, t_i in pairs)
    slack = problem.thresholds + jnp.asarray(values[1:]) if problem.constraints else jnp.zeros((0,))
    return Estimates(objective=values[0], slack=slack, dt=dt)


def lagrangian(estimates: Estimates, lam: Array) -> Array:
    """`L = J_0 + sum_i lam_i slack_i`."""
    return estimates.objective + jnp.dot(lam, estimates.slack)


def gradients(estimates: Estimates, lam: Array) -> tuple[Array, Aux]:
    """`dL/dlam_i = slack_i` and `dL/dt_i = lam_i (1 - E[g_i'(-v_i - t_i)])`; `dL/dt_0` has no price."""
    return estimates.slack, (estimates.dt[0], *(lam[i] * d for i, d in enumerate(estimates.dt[1:])))


def batch_t_star(problem: Problem, reward: Array, quantities: Mapping[str, Array], weights: Array | None = None) -> Aux:
    """The `t` that is best for this batch, exactly: the step without a step size."""
    xs = [reward, *(-_quantity(constraint, quantities) for constraint in problem.constraints)]
    return tuple(utility.t_star(x, weights) for utility, x in zip(problem.utilities, xs, strict=True))


def _quantity(constraint: Constraint, quantities: Mapping[str, Array]) -> Array:
    if constraint.name not in quantities:
        raise UserError(f"constraint {constraint.name!r}: accepts {', '.join(quantities) or 'none (no quantities)'}")
    return quantities[constraint.name]
