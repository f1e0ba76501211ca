"""Wrong input is refused: an error that names it where values are known, NaN where they are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from riskppo_jax.errors import UserError
from riskppo_jax.risk import oce

X = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
NOT_A_SHARE = [0.0, -0.1, 1.5, np.nan, np.inf]
NOT_POSITIVE = [0.0, -1.0, np.nan, np.inf]
NOT_IN_01 = [-0.1, 1.1, np.nan]
BELOW_ONE = [0.5, -2.0, np.nan, np.inf]
ORDERS = [1.0, 0.5, -2.0, np.nan, np.inf]

# Per parameter: the measure with all but it, what it accepts, and numbers it does not.
PARAMETERS = {
    "cvar-beta": (lambda b: oce.cvar(b), "(0, 1]", NOT_A_SHARE),
    "two_slope-gamma1": (lambda g: oce.two_slope(g, 2.0), "[0, 1]", NOT_IN_01),
    "two_slope-gamma2": (lambda g: oce.two_slope(0.5, g), "[1, inf)", BELOW_ONE),
    "mean_cvar-kappa": (lambda k: oce.mean_cvar(k, 0.3), "[0, 1]", NOT_IN_01),
    "mean_cvar-beta": (lambda b: oce.mean_cvar(0.5, b), "(0, 1]", NOT_A_SHARE),
    "entropic-gamma": (lambda g: oce.entropic(g), "(0, inf)", NOT_POSITIVE),
    "quadratic-c": (lambda c: oce.quadratic(c), "(0, inf)", NOT_POSITIVE),
    "monotone_quadratic-c": (lambda c: oce.monotone_quadratic(c), "(0, inf)", NOT_POSITIVE),
    "polynomial-c": (lambda c: oce.polynomial(c, 3.0), "(0, inf)", NOT_POSITIVE),
    "polynomial-k": (lambda k: oce.polynomial(1.0, k), "(1, inf)", ORDERS),
    "log-a": (lambda a: oce.log(a), "(0, inf)", NOT_POSITIVE),
    "smoothed_cvar-beta": (lambda b: oce.smoothed_cvar(b, 0.1), "(0, 1]", NOT_A_SHARE),
    "smoothed_cvar-m": (lambda m: oce.smoothed_cvar(0.3, m), "(0, inf)", NOT_POSITIVE),
    "soft_cvar-beta": (lambda b: oce.soft_cvar(b, 0.1), "(0, 1]", NOT_A_SHARE),
    "soft_cvar-tau": (lambda tau: oce.soft_cvar(0.3, tau), "(0, inf)", NOT_POSITIVE),
    "spectral-betas": (lambda b: oce.spectral([0.5, 0.5], [b, 0.3]), "(0, 1]", NOT_A_SHARE),
    "spectral-kappas": (lambda k: oce.spectral([k, 0.5], [0.1, 0.3]), "sum 1", [0.4, -0.5, 0.6, np.nan]),
    "evar-alpha": (lambda a: oce.evar(a), "(0, 1]", NOT_A_SHARE),
    # At the edge, where the auxiliary variable plays no part, the other parameter still counts.
    "two_slope-gamma1-edge": (lambda g: oce.two_slope(g, 1.0), "[0, 1]", NOT_IN_01),
    "mean_cvar-beta-edge": (lambda b: oce.mean_cvar(1.0, b), "(0, 1]", NOT_A_SHARE),
    "smoothed_cvar-m-edge": (lambda m: oce.smoothed_cvar(1.0, m), "(0, inf)", NOT_POSITIVE),
    "soft_cvar-tau-edge": (lambda tau: oce.soft_cvar(1.0, tau), "(0, inf)", NOT_POSITIVE),
}
parameters = pytest.mark.parametrize("key", PARAMETERS)


def refused(action, *named):
    """`action` raises a one-line UserError that mentions all of `named`."""
    with pytest.raises(UserError) as raised:
        action()
    message = str(raised.value)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in message
    for part in named:
        assert part in message, message


@parameters
def test_known_parameters(key):
    make, accepted, wrong = PARAMETERS[key]
    name = key.split("-")[1]
    for bad in wrong:
        for given in (bad, np.float32(bad), jnp.asarray(bad)):
            refused(lambda given=given: make(given), name, accepted)
    for bad in ("abc", None, [], {}, 1j):
        refused(lambda bad=bad: make(bad), name)


def test_the_message_shows_what_was_given():
    refused(lambda: oce.cvar(1.25), "beta=1.25: accepts (0, 1]")
    refused(lambda: oce.cvar("abc"), "beta: expected a number in (0, 1], got 'abc'")
    refused(lambda: oce.two_slope(0.5, 0.25), "gamma2=0.25: accepts [1, inf)")
    refused(lambda: oce.spectral([0.5, 0.5], [0.5, 1.5]), "betas=[0.5 1.5]: accepts (0, 1]")


@parameters
def test_traced_parameters_give_nan(key):
    make, _, wrong = PARAMETERS[key]
    t = {"spectral": jnp.asarray([0.1, 0.2]), "evar": jnp.asarray([0.1, 0.9])}.get(key.split("-")[0], 0.1)

    def everything(parameter):
        measure = make(parameter)
        return {
            "value": measure.value(X),
            "t_star": measure.t_star(X),
            "pointwise": measure.pointwise(X, t),
            "pointwise_dt": jnp.sum(measure.pointwise_dt(X, t), axis=-1),
            "gradient": jax.grad(measure.value)(jnp.asarray(X)),
        }

    for name, numbers in jax.jit(jax.vmap(everything))(jnp.asarray(wrong)).items():
        assert np.all(np.isnan(numbers)), (name, numbers)


def test_traced_parameters_that_are_right_stay_right():
    betas = jnp.asarray([0.3, 1.5, 1.0, 0.0])
    values = jax.vmap(lambda beta: oce.cvar(beta).value(X))(betas)
    np.testing.assert_array_equal(np.isnan(values), [False, True, False, True])
    assert values[0] == oce.cvar(0.3).value(X)


@pytest.mark.parametrize(
    "make",
    [
        oce.cvar,
        lambda b: oce.mean_cvar(0.5, b),
        oce.entropic,
        lambda c: oce.polynomial(c, 2.5),
        oce.log,
        lambda b: oce.soft_cvar(b, 0.1),
    ],
)
def test_g_and_dg_of_what_is_not_a_number(make):
    both = jax.jit(lambda p, u: (make(p).g(u), make(p).dg(u)))
    for u in (-0.5, 0.0, 0.5, 50.0):  # flat parts included
        assert all(np.isnan(both(-1.0, u)))
    measure = make(0.5)
    for of in (measure.g, measure.dg):
        assert np.isnan(of(jnp.nan))
    assert np.isnan(measure.pointwise(jnp.nan, 0.0)) and np.isnan(measure.pointwise_dt(jnp.nan, 0.0))


@pytest.mark.parametrize(
    "kappas, betas, named",
    [
        ([0.5, 0.5], [0.1], "as many kappas as betas"),
        ([], [], "at least one"),
        (np.ones(()), np.ones(()), "as many kappas as betas"),
        (1.0, 0.3, "kappas"),
        ("ab", [0.1, 0.2], "kappas"),
        ([0.5, 0.5], None, "betas"),
        ([0.5, 0.5], ["x", "y"], "betas"),
        ([[0.5], [0.25, 0.25]], [0.1, 0.2], "kappas"),
        ([0.6, 0.5], [0.1, 0.2], "sum 1"),
        ([1.5, -0.5], [0.1, 0.2], "non-negative"),
        ([0.5, 0.5], [0.1, 1.2], "betas"),
    ],
)
def test_spectral_lists(kappas, betas, named):
    refused(lambda: oce.spectral(kappas, betas), named)


SAMPLES = {
    "empty": ([], None, "samples"),
    "empty matrix": (np.zeros((0, 3)), None, "samples"),
    "nan": ([1.0, np.nan], None, "finite"),
    "inf": ([1.0, -np.inf], None, "finite"),
    "nan with weights": ([1.0, np.nan], [1.0, 0.5], "finite samples"),
    "negative weight": ([1.0, 2.0], [1.0, -0.5], "non-negative"),
    "weights of sum zero": ([1.0, 2.0], [1.0, -1.0], "non-negative"),
    "no weight": ([1.0, 2.0], [0.0, 0.0], "positive sum"),
    "nan weight": ([1.0, 2.0], [1.0, np.nan], "weights"),
    "infinite weight": ([1.0, 2.0], [1.0, np.inf], "weights"),
}


@pytest.mark.parametrize("measure", [oce.mean(), oce.cvar(0.3), oce.log(1.0), oce.evar(0.3)])
@pytest.mark.parametrize("case", SAMPLES)
def test_known_samples(case, measure):
    x, weights, named = SAMPLES[case]
    refused(lambda: measure.value(x, weights), named)
    refused(lambda: measure.t_star(x, weights), named)


@pytest.mark.parametrize("name", oce.MEASURES)
def test_traced_samples_give_nan(name):
    measure = oce.from_config(
        {"name": name}
        | {
            "cvar": {"beta": 0.3},
            "two_slope": {"gamma1": 0.2, "gamma2": 2.0},
            "mean_cvar": {"kappa": 0.5, "beta": 0.3},
            "entropic": {"gamma": 1.0},
            "quadratic": {"c": 1.0},
            "monotone_quadratic": {"c": 1.0},
            "polynomial": {"c": 1.0, "k": 3},
            "log": {"a": 1.0},
            "smoothed_cvar": {"beta": 0.3, "m": 0.1},
            "soft_cvar": {"beta": 0.3, "tau": 0.1},
            "spectral": {"kappas": [0.5, 0.5], "betas": [0.1, 0.9]},
            "evar": {"alpha": 0.3},
        }.get(name, {})
    )
    run = jax.jit(lambda x, w: (measure.value(x, w), measure.t_star(x, w)))
    for x, weights, _ in SAMPLES.values():
        if np.size(x):
            w = np.ones(2) if weights is None else weights
            for found in run(np.asarray(x, np.float32), np.asarray(w, np.float32)):
                assert np.all(np.isnan(found)), (x, weights)


@pytest.mark.parametrize(
    "x_shape, w_shape",
    [((4,), (3,)), ((4,), (5,)), ((4,), (2, 4)), ((3, 4), (4, 3)), ((3, 4), (12,)), ((4,), (0,))],
)
def test_weights_of_another_shape(x_shape, w_shape):
    x, weights = np.zeros(x_shape, np.float32), np.ones(w_shape, np.float32)
    refused(lambda: oce.cvar(0.3).value(x, weights), "weights", str(w_shape), str(x_shape))
    refused(lambda: jax.jit(oce.cvar(0.3).t_star)(x, weights), "weights")


def test_parameters_that_are_arrays_need_vmap():
    refused(lambda: oce.cvar(jnp.asarray([0.1, 0.3])).value(X[:2]), "cvar", "jax.vmap")
    refused(lambda: oce.cvar([0.1, 0.3]).t_star(X), "cvar", "jax.vmap")
    two = oce.spectral(jnp.full((2, 2), 0.5), jnp.full((2, 2), 0.3))
    refused(lambda: two.value(X), "spectral", "jax.vmap")


@pytest.mark.parametrize(
    "low, high, named",
    [(1.0, 0.0, "x_min <= x_max"), (np.nan, 1.0, ""), (0.0, np.nan, ""), (0.0, np.inf, "bounded")],
)
@pytest.mark.parametrize("measure", [oce.cvar(0.3), oce.log(1.0), oce.evar(0.3), oce.spectral([1.0], [0.3])])
def test_intervals(measure, low, high, named):
    refused(lambda: measure.t_interval(low, high), "accepts", named)
    for end in jax.jit(measure.t_interval)(low, high):
        assert np.all(np.isnan(end))


def test_the_log_utility_refuses_unbounded_losses():
    for low in (-np.inf, np.nan, np.float32(-np.inf), jnp.asarray(-jnp.inf)):
        refused(lambda low=low: oce.log(1.0).t_interval(low, 0.0), "log", "x_min", "finite")
    assert all(np.isnan(jax.jit(oce.log(1.0).t_interval)(-np.inf, 0.0)))
    low, high = jax.jit(lambda: oce.log(2.0).t_interval(-1.0, 5.0))()  # known bounds while tracing
    assert low == -1.0 and 0.9 < high < 1.0


@pytest.mark.parametrize(
    "config, named",
    [
        ({"name": "cvra", "beta": 0.3}, ["cvra", "did you mean 'cvar'"]),
        ({"name": "entropc", "gamma": 1.0}, ["did you mean 'entropic'"]),
        ({"name": "zzz"}, ["zzz", "accepts", "soft_cvar"]),
        ({"beta": 0.3}, ["risk=None", "accepts", "cvar"]),
        ({}, ["accepts"]),
        ({"name": None}, ["accepts"]),
        ({"name": ["cvar"]}, ["accepts"]),
        ({"name": "cvar"}, ["missing risk.beta", "cvar takes risk.beta"]),
        ({"name": "polynomial", "c": 1.0}, ["missing risk.k"]),
        ({"name": "cvar", "beta": 0.3, "tau": 1.0}, ["unknown risk.tau", "cvar takes risk.beta"]),
        ({"name": "mean", "beta": 0.3}, ["unknown risk.beta", "no parameters"]),
        ({"name": "cvar", "alpha": 0.3}, ["unknown risk.alpha"]),
        ({"name": "cvar", "beta": 1.5}, ["beta=1.5", "(0, 1]"]),
        ({"name": "cvar", "beta": None}, ["beta", "(0, 1]"]),
        ("cvar", ["risk='cvar'", "mapping"]),
        (None, ["mapping"]),
    ],
)
def test_configs(config, named):
    refused(lambda: oce.from_config(config), *named)
