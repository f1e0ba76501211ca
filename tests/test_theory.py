import math

import numpy as np
import pytest

from riskppo_jax import theory
from riskppo_jax.errors import UserError


def test_lipschitz_constant_by_hand():
    # gamma 0.9, lam (2, 1), betas (0.5, 0.25), risk-averse objective at 0.5: 10 sqrt(9 + 36 + 25)
    assert theory.lipschitz_t(0.9, [2.0, 1.0], [0.5, 0.25], 0.5) == pytest.approx(10 * math.sqrt(70))
    # risk-neutral objective, per step: lam (1 + 1/beta)
    assert theory.lipschitz_t(0.0, [3.0], [0.1]) == pytest.approx(33.0)


def test_lipschitz_constant_bounds_the_true_slope():
    """|dL/dt| = lam |1 - P(v > -t)/beta| <= lam (1/beta - 1) <= C per step."""
    beta, lam = 0.3, 1.7
    steepest = lam * max(1.0, 1 / beta - 1)
    assert steepest <= theory.lipschitz_t(0.0, [lam], [beta])


def test_step_sizes_by_hand():
    # ell 2, C 3, sigma 4, delta 0, eps 1, D 1: S 16, A 5
    steps = theory.step_sizes(ell=2, C=3, sigma=4, delta=0, epsilon=1, diameter_lam=1)
    assert steps.lam == pytest.approx(1 / 512)  # eps^2/(16 ell S) = 1/512 < 1/4
    # 1/(12*2*25)=1/600; 1/(1152*8*15)=1/138240; 1/(9216*8*16*15)=1/17694720
    assert steps.t == pytest.approx(1 / 17694720)
    assert theory.step_sizes(2, 3, 0, 0, 1, 1).lam == pytest.approx(1 / 4)  # exact gradients
    assert theory.step_sizes(2, 3, 0, 0, 1, 1).t == pytest.approx(min(1 / 216, 1 / 82944))


def test_t_is_the_slow_variable():
    steps = theory.step_sizes(ell=1, C=5, sigma=1, delta=0.1, epsilon=0.1, diameter_lam=10)
    assert steps.t < 1e-3 * steps.lam


def test_iteration_bound_by_hand():
    # ell 1, C 3, sigma 4, eps 1, D 2, gaps 1 and 5: (25*4*1 + 4*5) * 16
    assert theory.iteration_bound(1, 3, 4, 0, 1, 2, 1, 5) == pytest.approx(120 * 16)
    assert theory.iteration_bound(1, 3, 0, 0, 0.5, 1, 1, 0) == pytest.approx(9 * 64)


def test_stationarity_of_a_tent():
    """phi(u) = -|u|, ell 1: prox moves by 1/(2 ell) towards 0, so the measure is 1 until |t| < 1/2."""
    for t, expected in ((2.0, 1.0), (0.25, 0.5), (0.0, 0.0), (-3.0, 1.0)):
        found = theory.moreau_stationarity(lambda u: -np.abs(u), t, (-5, 5), ell=1.0)
        assert found == pytest.approx(expected, abs=1e-3)


def test_stationarity_of_a_parabola():
    """phi(u) = -u^2/2, ell 2: prox(t) = 4t/5, measure 2*2*t/5."""
    found = theory.moreau_stationarity(lambda u: -0.5 * u**2, 1.5, (-4, 4), ell=2.0)
    assert found == pytest.approx(4 * 1.5 / 5, abs=1e-3)


def test_stationarity_respects_the_interval():
    assert theory.moreau_stationarity(lambda u: u, 1.0, (-1, 1), ell=1.0) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: theory.lipschitz_t(1.0, [1], [0.3]), "gamma"),
        (lambda: theory.lipschitz_t(0.9, [1], [0.0]), "betas"),
        (lambda: theory.lipschitz_t(0.9, [1, 2], [0.3]), "one price per constraint"),
        (lambda: theory.step_sizes(0, 1, 1, 1, 1, 1), "ell"),
        (lambda: theory.step_sizes(1, 1, -1, 1, 1, 1), "sigma"),
        (lambda: theory.step_sizes(1, 1, 1, 1, float("nan"), 1), "epsilon"),
        (lambda: theory.moreau_stationarity(lambda u: u, 0.0, (1, 0), 1.0), "low <= high"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(UserError, match=named):
        call()
