"""What every optimized certainty equivalent must do, on laws drawn at random and on awkward ones."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riskppo_jax.risk import oce

MEASURES = {
    "mean": oce.mean(),
    "cvar": oce.cvar(0.3),
    "two_slope": oce.two_slope(0.4, 2.5),
    "mean_cvar": oce.mean_cvar(0.25, 0.2),
    "entropic": oce.entropic(0.7),
    "quadratic": oce.quadratic(0.2),
    "monotone_quadratic": oce.monotone_quadratic(0.6),
    "polynomial": oce.polynomial(0.5, 3.5),
    "log": oce.log(1.5),
    "smoothed_cvar": oce.smoothed_cvar(0.3, 0.8),
    "soft_cvar": oce.soft_cvar(0.3, 0.5),
    "spectral": oce.spectral([0.5, 0.3, 0.2], [0.1, 0.35, 1.0]),
    "evar": oce.evar(0.4),
}
ONE_T = sorted(set(MEASURES) - {"spectral", "evar"})
PIECEWISE = ("cvar", "two_slope", "mean_cvar", "spectral")
SIZE = 7
ONES = np.ones(SIZE, np.float32)

every = pytest.mark.parametrize("name", MEASURES)
one_t = pytest.mark.parametrize("name", ONE_T)
draws = functools.partial(
    settings,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

reals = st.floats(-20, 20, width=32)
laws = st.tuples(
    st.lists(reals | st.sampled_from([-1.0, 0.0, 2.0]), min_size=SIZE, max_size=SIZE),  # ties are likely
    st.lists(st.integers(0, 4), min_size=SIZE, max_size=SIZE).filter(any),
).map(lambda law: (np.array(law[0]), np.array(law[1], float)))


@jax.jit
def solve(measure, x, w):
    """The value, its gradient in the samples, the maximiser, the objective there: one program for all."""
    value, gradient = jax.value_and_grad(measure.value)(x, w)
    t = measure.t_star(x, w)
    return value, gradient, t, jnp.sum(jnp.where(w > 0, w * measure.pointwise(x, t), 0.0)) / jnp.sum(w)


def value(measure, x, w):
    return float(solve(measure, x, w)[0])


def gradient(measure, x, w):
    return np.asarray(solve(measure, x, w)[1])


def t_star(measure, x, w):
    return np.asarray(solve(measure, x, w)[2], float)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def mean(x, w):
    return w @ x / w.sum()


def levels(name, t):
    """The part of the auxiliary variable that moves with the samples and has a unique meaning."""
    return {"evar": lambda: t[0], "spectral": lambda: t[:2]}.get(name, lambda: t)()


# Reference utilities, as written in the literature: no care for rounding, double precision only.
REFERENCE = {
    "mean": lambda u: u,
    "cvar": lambda u: -np.maximum(-u, 0) / 0.3,
    "two_slope": lambda u: 0.4 * np.maximum(u, 0) - 2.5 * np.maximum(-u, 0),
    "mean_cvar": lambda u: 0.25 * u - 0.75 * np.maximum(-u, 0) / 0.2,
    "entropic": lambda u: (1 - np.exp(-0.7 * u)) / 0.7,
    "quadratic": lambda u: u - 0.1 * u**2,
    "monotone_quadratic": lambda u: (1 - np.maximum(1 - 0.6 * u, 0) ** 2) / 1.2,
    "polynomial": lambda u: (1 - np.maximum(1 - 0.5 * u, 0) ** 3.5) / 1.75,
    "log": lambda u: 1.5 * np.log(np.maximum(1 + u / 1.5, 0)),
    "smoothed_cvar": lambda u: np.select([u >= 0.24, u >= -0.56], [0.12, u - u**2 / 0.48], u / 0.3 + 0.8 * 0.49 / 0.6),
    "soft_cvar": lambda u: -(0.5 / 0.3) * np.log(0.7 + 0.3 * np.exp(-u / 0.5)),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@one_t
def test_g_is_the_written_formula(name, x64):
    if name == "mean_cvar":  # the mean beside CVaR: kappa u + (1 - kappa) g_cvar(u) only up to the shift by t
        REFERENCE[name] = lambda u: np.where(u < 0, (0.25 + 0.75 / 0.2) * u, 0.25 * u)
    u = np.linspace(-12, 12, 2001)
    np.testing.assert_allclose(MEASURES[name].g(u), REFERENCE[name](u), rtol=1e-12, atol=1e-12)


@one_t
@draws(max_examples=15)
@given(law=laws)
def test_value_is_the_supremum_over_t(name, law):
    x, w = law
    with jax.enable_x64(True):
        found = value(MEASURES[name], x, w)
    seen = x[w > 0]
    grid = np.append(np.linspace(seen.min(), seen.max(), 4001), seen)
    with np.errstate(divide="ignore"):
        utilities = grid + (w[w > 0] / w.sum()) @ REFERENCE[name](seen[:, None] - grid)
    best = utilities.max()
    scale = 1 + np.ptp(seen)
    assert best <= found + 1e-9 * scale * max(1.0, abs(found))
    # Between two points of the grid the concave objective rises by less than a few of its steps.
    assert found <= best + 0.02 * scale


@every
@draws(max_examples=15)
@given(law=laws, shift=reals)
def test_translation(name, law, shift):
    x, w = law
    with jax.enable_x64(True):
        here, there = (value(MEASURES[name], x + k, w) for k in (0, shift))
        t_here, t_there = (levels(name, t_star(MEASURES[name], x + k, w)) for k in (0, shift))
    assert there == pytest.approx(here + shift, abs=1e-9)
    np.testing.assert_allclose(t_there, t_here + shift, atol=1e-6)


@every
@draws(max_examples=15)
@given(law=laws, gains=st.lists(st.floats(0, 5), min_size=SIZE, max_size=SIZE))
def test_more_reward_is_never_worse(name, law, gains):
    if name == "quadratic":
        pytest.skip("known not to be monotone")
    x, w = law
    with jax.enable_x64(True):
        assert value(MEASURES[name], x + np.array(gains), w) >= value(MEASURES[name], x, w) - 1e-9


def test_the_quadratic_utility_is_not_monotone(x64):
    small, large = (oce.quadratic(1.0).value(np.array([0.0, top])) for top in (1.0, 9.0))
    assert large < small


@every
@draws(max_examples=15)
@given(law=laws, other=laws, share=st.floats(0, 1))
def test_concavity_in_outcomes_and_convexity_in_the_law(name, law, other, share):
    (x, w), (y, v) = law, other
    w, v = w / w.sum(), v / v.sum()
    with jax.enable_x64(True):
        measure = MEASURES[name]
        mixed = value(measure, share * x + (1 - share) * y, w)
        assert mixed >= share * value(measure, x, w) + (1 - share) * value(measure, y, w) - 1e-9
        # A supremum over t of averages is convex in the weights: knowing which law helps in choosing t.
        mixture = value(measure, np.append(x, y), np.append(share * w, (1 - share) * v))
        assert mixture <= share * value(measure, x, w) + (1 - share) * value(measure, y, v) + 1e-9


@every
@draws(max_examples=15)
@given(law=laws)
def test_between_the_worst_case_and_the_mean_with_t_in_its_interval(name, law):
    x, w = law
    seen = x[w > 0]
    with jax.enable_x64(True):
        found, t = value(MEASURES[name], x, w), t_star(MEASURES[name], x, w)
        low, high = (np.asarray(end) for end in MEASURES[name].t_interval(seen.min(), seen.max()))
    assert found <= mean(x, w) + 1e-9
    if name != "quadratic":
        assert found >= seen.min() - 1e-9
    if name == "evar":  # s may tend to zero: no interval holds it
        low, high, t = low[0], high[0], t[0]
    edge = 1e-3 * 1.5 if name == "log" else 0.0  # its interval stays a little away from its domain's edge
    assert np.all(low - 1e-9 <= t) and np.all(t <= high + edge + 1e-9)


@every
@draws(max_examples=10)
@given(law=laws)
def test_t_star_attains_the_value(name, law):
    x, w = law
    with jax.enable_x64(True):
        found, _, _, attained = map(np.asarray, solve(MEASURES[name], x, w))
    assert attained == pytest.approx(found, abs=1e-4 if name == "evar" else 1e-8)


@one_t
def test_dg_is_the_derivative_of_g(name, x64):
    u = np.linspace(-1.45, 6, 1491) + 1e-4  # within the domain of the log utility, and between the kinks
    slopes = jax.jit(jax.vmap(jax.grad(MEASURES[name].g)))(u)
    np.testing.assert_allclose(MEASURES[name].dg(u), slopes, rtol=1e-9, atol=1e-9)


def test_dg_of_a_spectral_risk_is_its_gradient(x64):
    u = np.random.default_rng(0).normal(size=(50, 3))
    spectral = MEASURES["spectral"]
    np.testing.assert_allclose(spectral.dg(u), jax.vmap(jax.grad(spectral.g))(u), rtol=1e-12)


@every
def test_pointwise_dt_is_the_derivative_of_pointwise(name, x64):
    measure = MEASURES[name]
    t = {"spectral": np.array([0.1, -0.3, 0.2]), "evar": np.array([0.1, 0.7])}.get(name, np.asarray(0.1))
    # Beyond 50 exponents entropic and EVaR follow their tangent; there, too, the step is a derivative.
    x = np.append(np.linspace(-1.2, 4, 700), np.linspace(-120.0, -30.0, 20) if name != "log" else [])
    slopes = jax.jit(jax.vmap(jax.grad(measure.pointwise, argnums=1), (0, None)))(x, t)
    np.testing.assert_allclose(measure.pointwise_dt(x, t), slopes, rtol=1e-8, atol=1e-8)


@one_t
def test_normalised_and_concave(name, x64):
    measure = MEASURES[name]
    assert measure.g(0.0) == pytest.approx(0.0, abs=1e-15)
    assert measure.dg(1e-9) <= 1 + 1e-8 and measure.dg(-1e-9) >= 1 - 1e-8
    u = np.linspace(-1.49, 8, 4001)
    g, dg = np.asarray(measure.g(u)), np.asarray(measure.dg(u))
    assert np.all(np.diff(g, 2) <= 1e-12 * np.maximum(1.0, np.abs(g[1:-1]).max()))
    assert np.all(np.diff(dg) <= 1e-12)
    assert np.all(g <= u + 1e-12)
    if name != "quadratic":
        assert np.all(dg >= 0)
    assert np.all(g <= np.asarray(measure.g_sup) + 1e-12)


@one_t
def test_g_sup_is_the_least_upper_bound(name, x64):
    measure = MEASURES[name]
    top = float(np.max(measure.g(np.linspace(0.0, 1000.0, 40001))))
    if np.isinf(measure.g_sup):
        assert top > 5
    else:
        assert float(measure.g_sup) == pytest.approx(top, abs=1e-3)


@every
def test_steepness_is_at_least_one_and_rises_with_the_loss(name, x64):
    small, large = (float(MEASURES[name].steepness(loss)) for loss in (0.01, 1.2))
    assert 1.0 - 1e-9 <= small <= large + 1e-9
    if name in REFERENCE:
        assert large == pytest.approx(-REFERENCE[name](-1.2) / 1.2)


@every
def test_jit_changes_nothing(name):
    x, w = np.random.default_rng(1).normal(size=SIZE).astype(np.float32), np.arange(SIZE, dtype=np.float32)
    measure = MEASURES[name]
    with jax.disable_jit():
        found, t = measure.value(x, w), measure.t_star(x, w)
    assert found == pytest.approx(value(measure, x, w), rel=1e-5)
    np.testing.assert_allclose(t, t_star(measure, x, w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make, parameters",
    [
        (oce.cvar, [(0.05,), (0.3,), (1.0,)]),
        (oce.two_slope, [(0.0, 3.0), (0.5, 1.5), (1.0, 1.0)]),
        (oce.mean_cvar, [(0.0, 0.2), (0.5, 0.4), (1.0, 0.4)]),
        (oce.entropic, [(0.1,), (1.0,), (5.0,)]),
        (oce.quadratic, [(0.1,), (1.0,), (5.0,)]),
        (oce.monotone_quadratic, [(0.1,), (1.0,), (5.0,)]),
        (oce.polynomial, [(0.5, 1.5), (1.0, 2.0), (2.0, 6.0)]),
        (oce.log, [(0.5,), (1.0,), (20.0,)]),
        (oce.smoothed_cvar, [(0.1, 0.5), (0.5, 0.1), (1.0, 1.0)]),
        (oce.soft_cvar, [(0.1, 0.5), (0.5, 0.1), (1.0, 1.0)]),
        (oce.spectral, [((0.5, 0.5), (0.1, 0.4)), ((0.2, 0.8), (0.6, 1.0)), ((1.0, 0.0), (0.3, 0.3))]),
        (oce.evar, [(0.05,), (0.3,), (1.0,)]),
    ],
)
def test_vmap_over_parameters_is_a_loop(make, parameters):
    x, w = np.random.default_rng(2).normal(size=SIZE).astype(np.float32), np.ones(SIZE, np.float32)
    columns = [jnp.asarray(column) for column in zip(*parameters, strict=True)]
    measures = [make(*map(jnp.asarray, row)) for row in parameters]
    loop = [value(measure, x, w) for measure in measures]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *measures)
    built = jax.vmap(lambda *p: make(*p).value(x, w))
    passed = jax.vmap(lambda measure: measure.value(x, w))
    for values in jax.jit(lambda columns, stacked: (built(*columns), passed(stacked)))(columns, stacked):
        np.testing.assert_allclose(values, loop, rtol=1e-5, atol=1e-6)


def test_one_program_serves_every_parameter():
    traces = []
    run = jax.jit(lambda measure, x: (traces.append(None), measure.value(x))[1])
    for beta in (0.1, 0.2, 0.3):
        run(oce.cvar(beta), jnp.arange(5.0))
    assert len(traces) == 1


def test_tree_structures_tell_the_measures_apart():
    # Were two equal, jit could run the program of one measure for another.
    structures = [jax.tree.structure(measure) for measure in MEASURES.values()]
    assert all(a != b for a, b in itertools.combinations(structures, 2))


# Limits and special cases.


@pytest.fixture
def batch():
    return np.array([0.3, -1.1, 2.0, 0.9, -0.4, 5.0, 1.2]), np.array([1.0, 2.0, 1.5, 3.0, 0.5, 1.0, 2.25])


def test_special_cases(x64, batch):
    x, w = batch
    same = [
        (oce.cvar(1.0), oce.mean()),
        (oce.two_slope(0.0, 4.0), oce.cvar(0.25)),
        (oce.two_slope(1.0, 1.0), oce.mean()),
        (oce.two_slope(1.0, 5.0), oce.mean()),
        (oce.mean_cvar(0.0, 0.3), oce.cvar(0.3)),
        (oce.mean_cvar(1.0, 0.3), oce.mean()),
        (oce.polynomial(0.7, 2.0), oce.monotone_quadratic(0.7)),
        (oce.spectral([1.0], [0.3]), oce.cvar(0.3)),
        (oce.smoothed_cvar(1.0, 0.5), oce.mean()),
        (oce.soft_cvar(1.0, 0.5), oce.mean()),
        (oce.soft_cvar(1.0, 0.001), oce.mean()),
        (oce.evar(1.0), oce.mean()),
    ]
    for one, other in same:
        close = 1e-5 if one.name == "evar" else 1e-12
        np.testing.assert_allclose(value(one, x, w), value(other, x, w), rtol=0, atol=close, err_msg=str(one))


def test_mixtures(x64, batch):
    x, w = batch
    cvar = {beta: value(oce.cvar(beta), x, w) for beta in (0.1, 0.3)}
    both = value(oce.mean_cvar(0.4, 0.3), x, w)
    assert both == pytest.approx(0.4 * mean(x, w) + 0.6 * cvar[0.3], abs=1e-12)
    assert t_star(oce.mean_cvar(0.4, 0.3), x, w) == t_star(oce.cvar(0.3), x, w)
    mixed = value(oce.spectral([0.2, 0.3, 0.5], [0.1, 0.3, 1.0]), x, w)
    assert mixed == pytest.approx(0.2 * cvar[0.1] + 0.3 * cvar[0.3] + 0.5 * mean(x, w), abs=1e-12)
    median = value(oce.two_slope(0.3, 1.7), x, w)  # E[X] - k E|X - median|
    spread = np.abs(x - t_star(oce.two_slope(0.3, 1.7), x, w))
    assert median == pytest.approx(mean(x, w) - 0.7 * mean(spread, w), abs=1e-12)


@pytest.mark.parametrize("beta", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("width", [1.0, 0.1, 1e-4])
def test_smoothed_cvars_are_within_their_bounds(x64, batch, beta, width):
    x, w = batch
    cvar = value(oce.cvar(beta), x, w)
    moreau = value(oce.smoothed_cvar(beta, width), x, w) - cvar
    assert -beta * width / 2 - 1e-12 <= moreau <= width / (2 * beta) - beta * width / 2 + 1e-12
    entropy = -beta * np.log(beta) - (1 - beta) * np.log(1 - beta)
    soft = value(oce.soft_cvar(beta, width), x, w) - cvar
    assert -width / beta * (np.log(2) - entropy) - 1e-12 <= soft <= width * entropy / beta + 1e-12


def test_limits_of_the_smooth_families(x64, batch):
    x, w = batch
    centred = mean((x - mean(x, w)) ** 2, w)
    for measure in (oce.entropic(1e-6), oce.log(1e6), oce.monotone_quadratic(1e-6), oce.quadratic(1e-6)):
        curvature = 1e-6
        assert value(measure, x, w) == pytest.approx(mean(x, w) - curvature * centred / 2, abs=1e-10)
    assert value(oce.entropic(1e4), x, w) == pytest.approx(x[w > 0].min(), abs=1e-3)
    high_order = value(oce.polynomial(0.8 / 1e5, 1e5), x, w)
    assert high_order == pytest.approx(value(oce.entropic(0.8), x, w), abs=1e-4)
    assert value(oce.soft_cvar(1e-7, 2.0), x, w) == pytest.approx(value(oce.entropic(0.5), x, w), abs=1e-5)
    assert value(oce.evar(0.3), x, w) <= value(oce.cvar(0.3), x, w)


# Round trips.


@every
def test_config_and_pytree_round_trips(name):
    measure = MEASURES[name]
    config = measure.config()
    assert config["name"] == name
    assert all(isinstance(number, float | list) for key, number in config.items() if key != "name")
    again = oce.from_config(config)
    assert type(again) is type(measure) and again.config() == config
    leaves, structure = jax.tree.flatten(measure)
    assert jax.tree.unflatten(structure, leaves).config() == config
    moved = jax.jit(lambda u: jax.tree.map(lambda leaf: leaf, u))(measure)
    assert type(moved) is type(measure)
    x = np.arange(SIZE, dtype=np.float32)
    for one in (moved, again):
        assert value(one, x, ONES) == pytest.approx(value(measure, x, ONES), rel=1e-6)


def test_config_keeps_the_numbers_it_was_given():
    assert oce.cvar(0.3).config() == {"name": "cvar", "beta": 0.3}
    assert oce.polynomial(2, 3).config() == {"name": "polynomial", "c": 2.0, "k": 3.0}
    spectral = {"name": "spectral", "kappas": [0.7, 0.3], "betas": [0.1, 0.9]}
    assert oce.from_config(spectral).config() == spectral


# The kink.


def test_kinks_are_counted_strictly():
    assert oce.cvar(0.3).dg(0.0) == 0.0
    assert oce.cvar(0.3).dg(-1e-6) == pytest.approx(1 / 0.3)
    assert oce.two_slope(0.4, 2.0).dg(0.0) == pytest.approx(0.4)
    assert oce.mean_cvar(0.4, 0.5).dg(0.0) == pytest.approx(0.4)
    np.testing.assert_allclose(oce.spectral([0.5, 0.5], [0.5, 0.25]).dg(jnp.zeros(2)), 0.0)
    # A 0/1 cost with P(v = 1) < beta: t = 0 is a fixed point of the projected step, whose mean is positive.
    v, w = np.array([0, 1, 0, 0, 0, 0, 0], np.float32), np.array([8, 2, 0, 0, 0, 0, 0], np.float32)
    cvar = oce.cvar(0.3)
    assert w @ cvar.pointwise_dt(-v, 0.0) / 10 == pytest.approx(1 - 0.2 / 0.3)
    assert t_star(cvar, -v, w) == 0.0
    assert value(cvar, -v, w) == pytest.approx(-0.2 / 0.3)
    assert w @ cvar.pointwise_dt(-v, -1.0) / 10 == 1.0  # -t on the upper atom: nothing lies below t


# Gradients in the samples.


@every
@draws(max_examples=8)
@given(law=laws)
def test_the_gradient_in_the_samples_sums_to_one(name, law):
    x, w = law
    with jax.enable_x64(True):
        slopes = gradient(MEASURES[name], x, w)
    assert np.all(slopes[w == 0] == 0)
    assert slopes.sum() == pytest.approx(1.0, abs=1e-6)


@every
def test_the_gradient_in_the_samples_is_a_finite_difference(name, x64, batch):
    (x, w), measure = batch, MEASURES[name]
    bumps = 1e-6 * np.eye(SIZE)
    differences = [(value(measure, x + bump, w) - value(measure, x - bump, w)) / 2e-6 for bump in bumps]
    slopes = gradient(measure, x, w)
    np.testing.assert_allclose(slopes, differences, atol=1e-7)
    if name in ONE_T:
        t = t_star(measure, x, w)
        expected = w / w.sum() * np.asarray(measure.dg(x - t))
        away = x != t if name in PIECEWISE else ...
        np.testing.assert_allclose(slopes[away], expected[away], atol=1e-7)


def test_the_gradient_with_ties_is_a_supergradient(x64):
    # beta = 0.5 of a mass of 5: the zero, and half of what the three ones weigh.
    x, w = np.array([1.0, 1.0, 1.0, 0.0, 3.0, 9.0, 9.0]), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(gradient(oce.cvar(0.5), x, w), [0.2, 0.2, 0.2, 0.4, 0.0, 0.0, 0.0], atol=1e-12)


# Single precision.


def precisely(measure, x, w):
    with jax.enable_x64(True):
        x, w = x.astype(np.float64), w.astype(np.float64)
        return value(measure, x, w), t_star(measure, x, w)


@every
@pytest.mark.parametrize("constant", [2.5, -1e4])
def test_ties(name, constant):
    x = np.full(SIZE, constant, np.float32)
    found, slopes, t, _ = solve(MEASURES[name], x, ONES)
    assert found == pytest.approx(constant, rel=1e-6)
    np.testing.assert_allclose(t[0] if name == "evar" else t, constant, rtol=1e-6)
    np.testing.assert_allclose(slopes, 1 / SIZE, rtol=1e-5)


@every
def test_a_batch_of_one(name):
    x, w = np.array([2.5], np.float32), np.array([3.0], np.float32)
    found, slopes, t, attained = solve(MEASURES[name], x, w)
    np.testing.assert_allclose([found, attained], 2.5, rtol=1e-6)
    np.testing.assert_allclose(t[0] if name == "evar" else t, 2.5, rtol=1e-6)
    np.testing.assert_allclose(slopes, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    "measure",
    [
        oce.entropic(50.0),
        oce.soft_cvar(0.3, 0.001),
        oce.polynomial(2.0, 60.0),
        oce.smoothed_cvar(0.01, 1e-3),
        oce.monotone_quadratic(1e3),
    ],
    ids=lambda measure: measure.name,
)
def test_huge_exponents_stay_finite(measure):
    x = np.array([-100.0, -99.9, -3.0, 0.0, 0.1, 50.0, 100.0], np.float32)
    exact, t_exact = precisely(measure, x, ONES)
    found, slopes, t, _ = solve(measure, x, ONES)
    assert found == pytest.approx(exact, rel=2e-6)
    assert t == pytest.approx(float(t_exact), rel=1e-5, abs=1e-4)
    assert np.all(np.isfinite(slopes)) and slopes.sum() == pytest.approx(1.0, abs=1e-3)
    for t in (-100.0, 0.0, 100.0):
        for of in (measure.pointwise, measure.pointwise_dt):
            assert np.isfinite(np.mean(of(x, t)))


def test_huge_exponents_of_two_variables():
    x, t = np.linspace(-100, 100, 41, dtype=np.float32), np.array([0.0, 0.02], np.float32)
    assert np.all(np.isfinite(oce.evar(0.3).pointwise(x, t)))
    assert np.all(np.isfinite(oce.evar(0.3).pointwise_dt(x, t)))


@every
def test_a_million_samples_and_a_large_offset(name, batch):
    seven = batch[0].astype(np.float32)
    run = jax.jit(lambda measure, x: (measure.value(x), measure.t_star(x)))
    for offset, close in ((0.0, 2e-6), (1e4, 2e-3)):  # the spacing of float32 at 1e4 is 1e-3
        x = seven + np.float32(offset)
        exact, t_exact = precisely(MEASURES[name], x, ONES)
        found, t = run(MEASURES[name], np.tile(x, 150_000))
        assert float(found) == pytest.approx(exact, abs=close)
        np.testing.assert_allclose(levels(name, t), levels(name, t_exact), atol=5 * close, rtol=0)


@pytest.mark.parametrize("filler", [np.nan, np.inf, -np.inf, 1e30, -1e30])
@every
def test_samples_of_weight_zero_are_inert(name, filler, batch):
    w = np.array([1.0, 0.0, 2.0, 1.0, 0.0, 0.5, 1.0], np.float32)
    x = batch[0].astype(np.float32)
    expected = solve(MEASURES[name], x, w)
    found = solve(MEASURES[name], np.where(w > 0, x, np.float32(filler)), w)
    for one, other in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    assert np.all(found[1][w == 0] == 0)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
@every
def test_only_the_proportions_of_weights_matter(name, scale, batch):
    x, w = (part.astype(np.float32) for part in batch)
    found, expected = (solve(MEASURES[name], x, w * np.float32(factor)) for factor in (scale, 1.0))
    for one, other in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    "measure",
    [
        oce.entropic(1e-5),
        oce.log(1e5),
        oce.monotone_quadratic(1e-5),
        oce.polynomial(1e-5, 3.0),
        oce.soft_cvar(0.5, 1e5),
    ],
    ids=lambda measure: measure.name,
)
def test_a_nearly_linear_utility_keeps_its_digits(measure, batch):
    x, w = (part.astype(np.float32) for part in batch)
    assert value(measure, x, w) == pytest.approx(precisely(measure, x, w)[0], abs=1e-6)


def test_samples_of_any_shape_and_type():
    x, w = np.arange(12).reshape(3, 4), np.arange(1, 13).reshape(3, 4)
    average = jax.jit(oce.mean().value)
    assert average(x) == pytest.approx(5.5)
    assert average(x, w) == pytest.approx((x * w).sum() / w.sum())
    assert average(x, np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(4.0)  # broadcast as in NumPy
    assert average(x, np.array([[1.0], [0.0], [0.0]])) == pytest.approx(1.5)
    assert oce.mean().value([True, False]) == pytest.approx(0.5)
    half = jnp.arange(4096.0, dtype=jnp.bfloat16)
    assert average(half) == pytest.approx(float(np.asarray(half, np.float64).mean()), rel=1e-6)
