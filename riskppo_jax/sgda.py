"""Algorithm 1's lines 6 and 7: projected descent on the prices `lam`, projected ascent on `t`.

    lam <- Proj_Lambda(lam - eta_lam * slack)          t <- Proj_T(t + eta_t * dL/dt)

One interface for the paper's rule and its variants: `init(rule, ...) -> DualState` and
`dual_step(rule, state, oracle, ...) -> DualState`. The oracle maps `(lam, t)` to a batch's `Estimates`; rules
that look ahead (extragradient, smoothed) call it twice, all others once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from riskppo_jax.errors import UserError
from riskppo_jax.risk.lagrangian import Aux, Estimates, Problem
from riskppo_jax.types import Array, ArrayLike, Key

Oracle = Callable[[Array, Aux], Estimates]

LAM_RULES = ("plain", "pi", "optimistic", "extragradient", "adam")
T_RULES = ("scaled", "plain", "quantile")


@dataclass(frozen=True)
class Rule:
    """Static: which update.

    Attributes:
      lam: `plain` is the paper's; `pi` adds a term proportional to the present violation; `optimistic` and
        `extragradient` damp by looking ahead; `adam` is what the authors' code used.
      t: `scaled` keeps the factor lam of dL/dt; `plain` drops it (same maximiser, and t moves while lam is 0);
        `quantile` jumps to the maximiser of the batch.
      box: `tight` also uses that no policy is feasible below `t = -c - sup g` (for CVaR: VaR <= CVaR <= c);
        `wide` is the whole range of the quantity.
      smoothed: gradients of the Lagrangian averaged over a ball, from two oracle calls at mirrored points.
    """

    lam: str = "pi"
    t: str = "plain"
    box: str = "tight"
    smoothed: bool = False

    def __post_init__(self):
        for field, accepted in (("lam", LAM_RULES), ("t", T_RULES), ("box", ("tight", "wide"))):
            if getattr(self, field) not in accepted:
                raise UserError(f"dual.{field}={getattr(self, field)!r}: accepts {', '.join(accepted)}")
        if self.smoothed and self.t == "quantile":
            raise UserError("dual.smoothed: accepts dual.t=scaled or dual.t=plain, a gradient to average")


@struct.dataclass
class DualHypers:
    """Traced: step sizes and bounds, in the units of `Sets`; the defaults are the trainer's.

    The policy answers a price with a drift of its risk, so price and risk form two integrators in a row: without
    a proportional term they swing for ever. Measured on Hopper, the risk drifts by 0.3% of the threshold per
    iteration and unit of price; these gains then damp the swing at 0.7 of critical. The clips keep the wild
    violations of an untrained policy from winding the price up, or from freezing it at the start; within them the step
    is large enough to close the last per cent.
    """

    lam_step: ArrayLike = 0.15  # eta_lam
    lam_delay: ArrayLike = 0  # steps before a price moves: a policy that earns nothing yet answers it by standing still
    t_step: ArrayLike = 0.02  # eta_t
    t_clip: ArrayLike = 50.0  # largest slope a step on t sees: those of exponential utilities have no bound
    lam_gain: ArrayLike = 10.0  # proportional term of `pi`
    gain_clip: ArrayLike = 0.03  # largest slack that term sees
    gain_warmup: ArrayLike = 200  # steps over which it grows to its size; at once, it freezes Hopper standing
    lam_damping: ArrayLike = 0.0  # its derivative term: answers to a slack that shrinks
    slack_clip: ArrayLike = 0.033  # largest slack a step sees, in its unit; infinity sees it all
    lam_growth: ArrayLike = 2.0  # Lambda grows by this factor when a price sits at its bound ...
    lam_patience: ArrayLike = 50  # ... for this many steps more than it lies below; a factor of 1 never grows
    radius: ArrayLike = 0.05  # of the ball that `smoothed` averages over
    ease: ArrayLike = 0.0  # thresholds by which limits are wider at the start; they come down, slower and slower, ...
    ease_until: ArrayLike = 0.8  # ... until this share of training, from where on they are their own


@struct.dataclass
class Sets:
    """The compact sets Lambda and T, and the natural units of their members.

    With units of one, step sizes are raw. Otherwise slack is measured in `slack_unit`, prices in `lam_unit`
    and `t` in `t_unit`, so that one step size serves problems of any scale.
    """

    t_low: Aux
    t_high: Aux
    lam_max: Array  # [m], where Lambda starts
    slack_unit: ArrayLike = 1.0
    lam_unit: ArrayLike = 1.0
    t_unit: Any = 1.0  # a scalar, or an entry for each of `t`


@struct.dataclass
class DualState:
    """Prices, auxiliary variables, and what the rule remembers. Everything that must survive a restart."""

    lam: Array  # [m], >= 0
    t: Aux
    integral: Array  # [m], the integral part of `pi`; equal to lam for other rules
    lam_max: Array  # [m], present bound of Lambda
    pressed: Array  # [m], steps at that bound, less those below it; never negative
    previous: Estimates  # of the step before, for `optimistic`
    moments: tuple[Any, Any]  # first and second, for `adam`
    count: Array


def sets(
    problem: Problem,
    reward_range: tuple[ArrayLike, ArrayLike],
    ranges: dict[str, tuple[ArrayLike, ArrayLike]],
    lam_max: ArrayLike,
    box: str = "tight",
) -> Sets:
    """T from each utility and its quantity's range, Lambda from a bound; raw units.

    Args:
      reward_range: smallest and largest reward of a step.
      ranges: smallest and largest value of every constrained quantity `v`.
      lam_max: a price for all constraints, or one for each.
      box: `tight` raises the lower end of T to what a feasible policy can need.
    """
    low, high = problem.objective.t_interval(*reward_range)
    t_low, t_high = [low], [high]
    for constraint in problem.constraints:
        v_min, v_max = ranges[constraint.name]
        low, high = constraint.utility.t_interval(-jnp.asarray(v_max), -jnp.asarray(v_min))
        if box == "tight":
            low = jnp.clip(constraint.utility.t_floor(-jnp.asarray(constraint.threshold)), low, high)
        t_low.append(low)
        t_high.append(high)
    count = len(problem.constraints)
    return Sets(tuple(t_low), tuple(t_high), jnp.broadcast_to(jnp.asarray(lam_max, float), (count,)))


def init(sets: Sets, lam: ArrayLike = 0.0, t: Aux | None = None) -> DualState:
    """Starts at the given prices and `t` (projected onto T; its upper end if not given)."""
    count = sets.lam_max.shape[0]
    t = _clip(t if t is not None else sets.t_high, sets)
    lam = jnp.clip(jnp.broadcast_to(jnp.asarray(lam, sets.lam_max.dtype), (count,)), 0.0, sets.lam_max)
    zeros = Estimates(jnp.zeros(()), jnp.zeros((count,)), jax.tree.map(jnp.zeros_like, t))
    moments = (lam * 0, jax.tree.map(jnp.zeros_like, t))
    return DualState(
        lam=lam,
        t=t,
        integral=lam,
        lam_max=sets.lam_max,
        pressed=jnp.zeros((count,), jnp.int32),
        previous=zeros,
        moments=(moments, moments),
        count=jnp.zeros((), jnp.int32),
    )


def dual_step(
    rule: Rule,
    sets: Sets,
    state: DualState,
    oracle: Oracle,
    hypers: DualHypers,
    t_star: Aux | None = None,
    key: Key | None = None,
) -> DualState:
    """One step on `(lam, t)`.

    Args:
      oracle: `(lam, t) -> Estimates` of a batch (or of the exact law) at these prices.
      t_star: the batch's own maximiser, needed by `t: quantile`.
      key: randomness, needed by `smoothed`.
    """
    if rule.smoothed:
        found = _smoothed(oracle, state, sets, hypers, key)
    else:
        found = oracle(state.lam, state.t)
    estimate, at = found, state
    if rule.lam == "extragradient":
        at = _move(rule, sets, state, found, state.lam, hypers, t_star)
        estimate = oracle(at.lam, at.t)
    elif rule.lam == "optimistic":
        last = jax.tree.map(lambda now, then: jnp.where(state.count > 0, then, now), found, state.previous)
        estimate = jax.tree.map(lambda now, then: 2 * now - then, found, last)
        estimate = estimate._replace(dt=tuple(
            # a slope beyond its clip says where to go, not how far: looking ahead from it, t would go to and fro
            jnp.where(jnp.maximum(jnp.abs(now), jnp.abs(then)) < hypers.t_clip, ahead, now)
            for now, then, ahead in zip(found.dt, last.dt, estimate.dt, strict=True)
        ))  # fmt: skip
    moved = _move(rule, sets, state, estimate, at.lam, hypers, t_star)
    return _grow(moved.replace(previous=found, count=state.count + 1), hypers)


def _move(rule, sets, state, estimate, price, hypers, t_star) -> DualState:
    """The projected step along the given gradients, `price` being the factor lam of dL/dt."""
    slack = jnp.clip(estimate.slack / sets.slack_unit, -hypers.slack_clip, hypers.slack_clip)
    units = _t_units(sets, state.t)
    direction = tuple(jnp.clip(d, -hypers.t_clip, hypers.t_clip) for d in estimate.dt)
    if rule.t == "scaled":
        factors = (1.0, *(price / sets.lam_unit))
        direction = tuple(f * d for f, d in zip(factors, direction, strict=True))
    moments = state.moments
    if rule.lam == "adam":
        (slack, direction), moments = _adam((slack, direction), moments, state.count + 1)
    since = state.count - hypers.lam_delay
    slack = jnp.where(since >= 0, slack, 0.0)
    integral = jnp.clip(state.integral - hypers.lam_step * sets.lam_unit * slack, 0.0, state.lam_max)
    lam = integral
    if rule.lam == "pi":
        before = jnp.clip(state.previous.slack / sets.slack_unit, -hypers.slack_clip, hypers.slack_clip)
        shrinks = jnp.where(since > 0, before - slack, 0.0)
        near = jnp.clip(slack, -hypers.gain_clip, hypers.gain_clip)
        gain = hypers.lam_gain * jnp.clip((since + 1) / hypers.gain_warmup, 0.0, 1.0)
        push = hypers.lam_damping * jnp.maximum(shrinks, 0.0) - gain * near
        lam = jnp.clip(integral + sets.lam_unit * push, 0.0, state.lam_max)
    if rule.t == "quantile":
        t = t_star
    else:
        t = tuple(t_i + hypers.t_step * unit * d for t_i, unit, d in zip(state.t, units, direction, strict=True))
    return state.replace(lam=lam, integral=integral, t=_clip(t, sets), moments=moments)


def _grow(state: DualState, hypers: DualHypers) -> DualState:
    """Lambda grows where a price has sat at its bound: the bound was a guess, the optimum may lie beyond.

    A price leaves its bound for a step or two whenever a batch happens to look well: steps in a row would not add up.
    """
    pressed = jnp.where(state.lam >= state.lam_max, state.pressed + 1, jnp.maximum(state.pressed - 1, 0))
    full = pressed >= hypers.lam_patience
    return state.replace(
        lam_max=jnp.where(full, state.lam_max * hypers.lam_growth, state.lam_max),
        pressed=jnp.where(full, 0, pressed),
    )


def _smoothed(oracle, state, sets, hypers, key) -> Estimates:
    """Gradients at `(lam, t) + mu U` and at `(lam, t) - mu U`, averaged; U uniform in the unit ball of each."""
    key_lam, *keys_t = jax.random.split(key, 1 + len(state.t))
    units = _t_units(sets, state.t)
    shift_lam = hypers.radius * sets.lam_unit * _ball(key_lam, state.lam)
    shift_t = tuple(hypers.radius * u * _ball(k, t_i) for k, u, t_i in zip(keys_t, units, state.t, strict=True))

    def at(sign):
        lam = jnp.maximum(state.lam + sign * shift_lam, 0.0)
        return oracle(lam, _clip(tuple(t_i + sign * d for t_i, d in zip(state.t, shift_t, strict=True)), sets))

    return jax.tree.map(lambda a, b: 0.5 * (a + b), at(1.0), at(-1.0))


def _ball(key: Key, like: Array) -> Array:
    """A point uniform in the unit ball of `like`'s shape."""
    key_direction, key_radius = jax.random.split(key)
    direction = jax.random.normal(key_direction, like.shape)
    size = max(like.size, 1)
    norm = jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(direction))), 1e-12)
    return direction / norm * jax.random.uniform(key_radius) ** (1.0 / size)


def _adam(gradient, moments, count, b1=0.9, b2=0.999, eps=1e-8):
    first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments[0], gradient)
    second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), moments[1], gradient)
    scaled = jax.tree.map(lambda m, v: m / (1 - b1**count) / (jnp.sqrt(v / (1 - b2**count)) + eps), first, second)
    return scaled, (first, second)


def _t_units(sets: Sets, t: Aux) -> tuple:
    return sets.t_unit if isinstance(sets.t_unit, tuple) else (sets.t_unit,) * len(t)


def _clip(t: Aux, sets: Sets) -> Aux:
    return tuple(jnp.clip(t_i, low, high) for t_i, low, high in zip(t, sets.t_low, sets.t_high, strict=True))
