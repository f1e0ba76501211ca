"""The paper's constants: Lipschitz constant, Theorem 3's step sizes and iteration bound, stationarity.

Symbols: `ell` smoothness of the Lagrangian in (t, lam), `C` its Lipschitz constant in t, `sigma` the standard
deviation of the stochastic gradients, `delta` their bias (an inexact policy), `epsilon` the accuracy asked for,
`D` the diameter of Lambda. `S = sigma^2 + delta^2`, `A = sqrt(C^2 + S)`. Plain Python numbers in and out.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from riskppo_jax.errors import UserError


class StepSizes(NamedTuple):
    """Theorem 3's constant steps."""

    lam: float
    t: float


def lipschitz_t(gamma: float, lam: Sequence[float], betas: Sequence[float], beta0: float | None = None) -> float:
    """Lipschitz constant of the Lagrangian in t, on the return scale.

    `C = (1 - gamma)^-1 sqrt((1 + 1/beta_0)^2 + sum_i lam_i^2 (1 + 1/beta_i)^2)`

    Args:
      gamma: discount in [0, 1); 0 gives the per-step scale.
      lam: largest prices, one per constraint.
      betas: tail masses of the constraints, in (0, 1].
      beta0: tail mass of the objective; None for a risk-neutral one, which has no t and no term.
    """
    if not 0 <= gamma < 1:
        raise UserError(f"gamma={gamma}: accepts [0, 1)")
    if len(lam) != len(betas):
        raise UserError(f"lam has {len(lam)} entries, betas {len(betas)}: accepts one price per constraint")
    for name, value in (("beta0", 1.0 if beta0 is None else beta0), *(("betas", b) for b in betas)):
        if not 0 < value <= 1:
            raise UserError(f"{name}={value}: accepts (0, 1]")
    total = 0.0 if beta0 is None else (1 + 1 / beta0) ** 2
    total += sum((price * (1 + 1 / beta)) ** 2 for price, beta in zip(lam, betas, strict=True))
    return math.sqrt(total) / (1 - gamma)


def step_sizes(ell: float, C: float, sigma: float, delta: float, epsilon: float, diameter_lam: float) -> StepSizes:
    """Theorem 3's steps.

        eta_lam = min{ 1/(2 ell), eps^2 / (16 ell S) }
        eta_t   = min{ eps^2 / (12 ell A^2), eps^4 / (1152 ell^3 D^2 C A), eps^6 / (9216 ell^3 D^2 S C A) }

    The paper gives `eta_t` up to constants and prints `C A` of its second term in the numerator; bounding each
    term of its last inequality by `eps^2` gives these constants and puts `C A` in the denominator.
    """
    S, A = _noise(ell, C, sigma, delta, epsilon, diameter_lam)
    D = diameter_lam
    quiet = S == 0  # exact gradients: the terms that divide by S do not bind
    eta_lam = min(1 / (2 * ell), math.inf if quiet else epsilon**2 / (16 * ell * S))
    eta_t = min(
        epsilon**2 / (12 * ell * A**2),
        epsilon**4 / (1152 * ell**3 * D**2 * C * A),
        math.inf if quiet else epsilon**6 / (9216 * ell**3 * D**2 * S * C * A),
    )
    return StepSizes(lam=eta_lam, t=eta_t)


def iteration_bound(
    ell: float,
    C: float,
    sigma: float,
    delta: float,
    epsilon: float,
    diameter_lam: float,
    gap_phi: float,
    gap_0: float,
) -> float:
    """Theorem 3's number of iterations, without the constant its O hides.

    `J = (ell^3 A^2 D^2 Delta_Phi / eps^6 + ell^3 D^2 Delta_0 / eps^4) max{1, S / eps^2}`

    Args:
      gap_phi: `Delta_Phi`, how far the start is from the optimum in the Moreau envelope.
      gap_0: `Delta_0`, the inner problem's gap at the start.
    """
    S, A = _noise(ell, C, sigma, delta, epsilon, diameter_lam)
    scale = ell**3 * diameter_lam**2
    return (scale * A**2 * gap_phi / epsilon**6 + scale * gap_0 / epsilon**4) * max(1.0, S / epsilon**2)


def moreau_stationarity(
    phi: Callable[[np.ndarray], np.ndarray],
    t: float,
    interval: tuple[float, float],
    ell: float,
    points: int = 4001,
) -> float:
    """How far a one-dimensional `t` is from stationary for the maximisation of `phi` on an interval.

    The Moreau envelope of `-phi` with parameter `1/(2 ell)` has the gradient `2 ell (t - prox(t))`, where
    `prox(t) = argmax_u phi(u) - ell (u - t)^2`; its absolute value is zero exactly at stationary points.
    The prox is found on a grid and then on a grid of the best cell, so `phi` needs no derivative; points
    outside its domain may be minus infinity.
    """
    low, high = interval
    if not low <= high or ell <= 0:
        raise UserError(f"moreau_stationarity: accepts low <= high and ell > 0, got {interval}, ell={ell}")
    best = t
    for _ in range(3):
        grid = np.unique(np.append(np.linspace(low, high, points), np.clip([t, best], low, high)))
        best = float(grid[np.argmax(np.asarray(phi(grid)) - ell * (grid - t) ** 2)])
        width = (high - low) / (points - 1)
        low, high = max(low, best - width), min(high, best + width)
    return 2 * ell * abs(t - best)


def _noise(ell, C, sigma, delta, epsilon, diameter) -> tuple[float, float]:
    for name, value in (("ell", ell), ("C", C), ("epsilon", epsilon), ("diameter_lam", diameter)):
        if not 0 < value < math.inf:
            raise UserError(f"{name}={value}: accepts a positive number")
    for name, value in (("sigma", sigma), ("delta", delta)):
        if not 0 <= value < math.inf:
            raise UserError(f"{name}={value}: accepts a non-negative number")
    S = sigma**2 + delta**2
    return S, math.sqrt(C**2 + S)
