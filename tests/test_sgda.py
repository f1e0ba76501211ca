from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

from riskppo_jax import sgda
from riskppo_jax.errors import UserError
from riskppo_jax.risk import lagrangian, oce
from riskppo_jax.risk.lagrangian import Constraint, Estimates, Problem

PAPER = sgda.Rule("plain", "scaled", "wide")
steps = partial(sgda.DualHypers, lam_gain=6.0, slack_clip=jnp.inf, gain_clip=jnp.inf, gain_warmup=1.0)
RANGE = {"v": (0.0, 5.0)}


def cvar_problem(c=1.0, beta=0.3):
    return Problem(constraints=(Constraint("v", c, oce.cvar(beta)),))


def one_step(v, lam=0.5, t=-1.0, c=1.0, beta=0.3, rule=PAPER, step=0.01, reward=0.0):
    problem = cvar_problem(c, beta)
    sets = sgda.sets(problem, (-10.0, 10.0), RANGE, lam_max=10.0, box=rule.box)
    state = sgda.init(sets, lam, (jnp.array(0.0), jnp.array(t)))
    oracle = lambda lam, t: lagrangian.estimates(problem, t, jnp.zeros_like(v) + reward, {"v": v})  # noqa: E731
    moved = sgda.dual_step(rule, sets, state, oracle, steps(lam_step=step, t_step=step))
    return float(moved.lam[0] - state.lam[0]), float(moved.t[1] - state.t[1])


SPEEDS = jnp.abs(0.9 + 0.3 * jax.random.normal(jax.random.key(1), (4000,)))


class TestSigns:
    """The four checks every implementation must pass, on a large batch."""

    def test_violated_raises_the_price_and_satisfied_lowers_it(self):
        t = float(oce.cvar(0.3).t_star(-SPEEDS))
        risk = -float(oce.cvar(0.3).value(-SPEEDS))
        assert one_step(SPEEDS, t=t, c=risk - 0.05)[0] > 0
        assert one_step(SPEEDS, t=t, c=risk + 0.05)[0] < 0

    def test_raising_the_threshold_flips_the_price_step(self):
        steps = [one_step(SPEEDS, c=c)[0] for c in (0.5, 3.0)]
        assert steps[0] > 0 > steps[1]

    def test_t_moves_towards_the_quantile(self):
        quantile = -float(oce.cvar(0.3).t_star(-SPEEDS))
        assert one_step(SPEEDS, t=-(quantile - 0.2))[1] < 0
        assert one_step(SPEEDS, t=-(quantile + 0.2))[1] > 0
        assert abs(one_step(SPEEDS, t=-quantile)[1]) < 1e-4

    def test_a_constant_reward_changes_nothing(self):
        assert one_step(SPEEDS, reward=0.0) == one_step(SPEEDS, reward=7.0)


def test_the_paper_rule_by_hand():
    """Two samples v = 0 and 2, t = -1, lam 0.5, beta 0.5, c 1: slack = 1 - 1 - mean(0, 1)/0.5 = -1, P(v>1)=1/2."""
    lam, t = one_step(jnp.array([0.0, 2.0]), beta=0.5, step=0.1)
    assert lam == pytest.approx(0.1)
    assert t == pytest.approx(0.0)
    lam, t = one_step(jnp.array([2.0, 2.0]), beta=0.5, step=0.1)  # slack -2, dt = 1 - 2 = -1, times lam 0.5
    assert lam == pytest.approx(0.2)
    assert t == pytest.approx(-0.05)


def test_with_price_zero_only_the_unscaled_step_moves_t():
    v = jnp.full((10,), 3.0)
    assert one_step(v, lam=0.0)[1] == 0.0
    assert one_step(v, lam=0.0, rule=sgda.Rule("plain", "plain", "wide"))[1] < 0


def test_box_of_t():
    problem = cvar_problem(c=0.4)
    wide = sgda.sets(problem, (-1, 1), RANGE, 10.0, "wide")
    tight = sgda.sets(problem, (-1, 1), RANGE, 10.0, "tight")
    np.testing.assert_allclose([wide.t_low[1], wide.t_high[1]], [-5.0, 0.0])
    np.testing.assert_allclose([tight.t_low[1], tight.t_high[1]], [-0.4, 0.0])
    soft = Problem(constraints=(Constraint("v", 0.4, oce.entropic(2.0)),))
    assert sgda.sets(soft, (-1, 1), RANGE, 10.0, "tight").t_low[1] == pytest.approx(-0.4)
    mean_cvar = Problem(constraints=(Constraint("v", 0.4, oce.mean_cvar(0.5, 0.3)),))
    assert sgda.sets(mean_cvar, (-1, 1), RANGE, 10.0, "tight").t_low[1] == -5.0  # unbounded g: nothing to cut


@pytest.mark.parametrize("utility", [oce.cvar(0.2), oce.soft_cvar(0.2, 0.05), oce.monotone_quadratic(2.0)])
def test_tight_box_keeps_every_feasible_law(utility):
    """Whatever the law, if its risk is at most c then its best t lies in the tight box."""
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(200):
        v = rng.uniform(0, 2, 8) * rng.integers(0, 2, 8)
        p = rng.dirichlet(np.ones(8))
        if -utility.value(-v, p) <= 0.8:
            kept += 1
            assert utility.t_star(-v, p) >= utility.t_floor(-0.8) - 1e-5
    assert kept > 20


def gaussian_bandit(rule, start, hypers, count=6000):
    """v ~ N(m, 0.2^2), reward m, CVaR_0.3(v) <= 1, with exact expectations; policy steps of 0.05."""
    s, beta, c = 0.2, 0.3, 1.0
    problem = cvar_problem(c, beta)
    sets = sgda.sets(problem, (-5, 5), {"v": (-5.0, 5.0)}, 10.0, rule.box)

    def tail(m, t):  # P(v > -t) and E[(v + t)_+]
        z = (-t - m) / s
        p = norm.sf(z)
        return p, (m + t) * p + s * norm.pdf(z)

    def step(carry, _):
        m, dual = carry
        m = m + 0.05 * (1.0 - dual.lam[0] / beta * tail(m, dual.t[1])[0])

        def oracle(lam, t):
            p, excess = tail(m, t[1])
            return Estimates(m, (c + t[1] - excess / beta)[None], (jnp.zeros(()), 1 - p / beta))

        dual = sgda.dual_step(rule, sets, dual, oracle, hypers, (jnp.zeros(()), -(m + s * norm.ppf(1 - beta))))
        return (m, dual), None

    dual = sgda.init(sets, 0.0, (jnp.zeros(()), jnp.array(start)))
    (m, dual), _ = jax.jit(lambda c: jax.lax.scan(step, c, None, count))((jnp.array(0.0), dual))
    return float(m), float(dual.lam[0]), float(dual.t[1])


@pytest.mark.parametrize("start", [0.0, -2.0])
@pytest.mark.parametrize(
    "rule, hypers",
    [
        (PAPER, steps(lam_step=0.02, t_step=0.02)),
        (sgda.Rule("plain", "plain", "wide"), steps(lam_step=0.02, t_step=0.02)),
        (sgda.Rule("pi", "plain", "tight"), steps(lam_step=0.02, lam_gain=0.2, t_step=0.02)),
        (sgda.Rule("pi", "quantile", "wide"), steps(lam_step=0.02, lam_gain=0.2)),
        (sgda.Rule("optimistic", "plain", "wide"), steps(lam_step=0.02, t_step=0.02)),
        (sgda.Rule("extragradient", "plain", "wide"), steps(lam_step=0.02, t_step=0.02)),
    ],
    ids=["paper", "plain", "pi", "quantile", "optimistic", "extragradient"],
)
def test_gaussian_bandit_reaches_its_saddle_point(rule, hypers, start):
    found = gaussian_bandit(rule, start, hypers)
    np.testing.assert_allclose(found, [0.76820492, 1.0, -0.87308503], atol=5e-3)


def bernoulli_bandit(kappa, rule, count=20000):
    """P(v=1) = p, reward p - kappa p^2/2, CVaR_0.3(v) <= 0.5; projected steps of 0.01 on p, lam and t in [-1, 0]."""
    problem = cvar_problem(0.5, 0.3)
    sets = sgda.sets(problem, (-1, 1), {"v": (0.0, 1.0)}, 10.0, rule.box)
    rows = jnp.array([0.0, 1.0])

    def step(carry, k):
        p, dual, total = carry
        priced = lagrangian.priced_reward(problem, dual.lam, dual.t, jnp.zeros(2), {"v": rows})
        p = jnp.clip(p + 0.01 * (1 - kappa * p + priced[1] - priced[0]), 0.0, 1.0)

        def oracle(lam, t):
            return lagrangian.estimates(problem, t, jnp.zeros(2), {"v": rows}, jnp.stack([1 - p, p]))

        dual = sgda.dual_step(rule, sets, dual, oracle, steps(lam_step=0.01, t_step=0.01))
        late = k >= count // 2
        return (p, dual, total + late * jnp.stack([p, dual.lam[0], dual.t[1]])), None

    dual = sgda.init(sets, 0.0, (jnp.zeros(()), jnp.array(-0.5)))
    start = (jnp.array(0.5), dual, jnp.zeros(3))
    (p, dual, total), _ = jax.jit(lambda c: jax.lax.scan(step, c, jnp.arange(count)))(start)
    return np.array([p, dual.lam[0], dual.t[1]]), np.asarray(total) / (count - count // 2)


def test_bernoulli_bandit_reaches_its_saddle_point():
    last, _ = bernoulli_bandit(kappa=1.0, rule=PAPER)
    np.testing.assert_allclose(last, [0.15, 0.255, 0.0], atol=1e-3)


def test_bilinear_bandit_circles_but_averages_converge():
    """With kappa = 0 the last iterate circles for ever; a moving lambda is not by itself a fault."""
    last, average = bernoulli_bandit(kappa=0.0, rule=PAPER, count=40000)
    np.testing.assert_allclose(average[:2], [0.15, 0.30], atol=5e-3)
    damped, _ = bernoulli_bandit(kappa=0.0, rule=sgda.Rule("optimistic", "scaled", "wide"), count=40000)
    np.testing.assert_allclose(damped, [0.15, 0.30, 0.0], atol=5e-3)
    assert np.abs(last[:2] - [0.15, 0.30]).max() > 0.02


def test_lambda_grows_when_a_price_sits_at_its_bound():
    problem = cvar_problem(c=0.0)
    sets = sgda.sets(problem, (-1, 1), {"v": (0.0, 1.0)}, lam_max=0.05)
    state = sgda.init(sets, 0.0)
    v = jnp.ones((8,))
    hypers = steps(lam_step=0.05, lam_patience=3)
    rule = sgda.Rule("plain")

    def oracle(lam, t):
        return lagrangian.estimates(problem, t, v, {"v": v})

    bounds = []
    for _ in range(5):
        state = sgda.dual_step(rule, sets, state, oracle, hypers)
        bounds.append(float(state.lam_max[0]))
    np.testing.assert_allclose(bounds, [0.05, 0.05, 0.1, 0.1, 0.1], rtol=1e-6)
    fixed = sgda.init(sets, 0.0)
    for _ in range(5):
        fixed = sgda.dual_step(rule, sets, fixed, oracle, hypers.replace(lam_growth=1.0))
    assert fixed.lam[0] == pytest.approx(0.05)


def test_a_batch_that_looks_well_does_not_keep_lambda_from_growing():
    problem = cvar_problem(c=0.5)
    sets = sgda.sets(problem, (-1, 1), {"v": (0.0, 1.0)}, lam_max=0.05)
    state = sgda.init(sets, 0.0)
    hypers = steps(lam_step=0.05, lam_patience=4)
    for k in range(12):
        v = jnp.full((8,), 0.0 if k % 4 == 3 else 1.0)  # every fourth is well
        state = sgda.dual_step(
            sgda.Rule("plain"), sets, state, lambda lam, t, v=v: lagrangian.estimates(problem, t, v, {"v": v}), hypers
        )
    assert state.lam_max[0] > 0.05


def test_smoothed_gradient_is_the_average_over_the_ball():
    """Two mirrored calls; over many keys the smoothed kink has the slope of its average, here zero by symmetry."""
    problem = cvar_problem(c=1.0, beta=0.5)
    sets = sgda.sets(problem, (-1, 1), RANGE, 10.0, "wide")
    state = sgda.init(sets, 1.0, (jnp.zeros(()), jnp.array(-1.0)))
    calls = []

    def oracle(lam, t):
        calls.append(t)
        return lagrangian.estimates(problem, t, jnp.zeros(1), {"v": jnp.array([1.0])})

    rule = sgda.Rule("plain", "plain", "wide", smoothed=True)
    hypers = steps(lam_step=0.0, t_step=1.0, radius=0.1)
    moved = sgda.dual_step(rule, sets, state, oracle, hypers, key=jax.random.key(0))
    assert len(calls) == 2
    np.testing.assert_allclose(calls[0][1] + calls[1][1], -2.0, rtol=1e-6)
    assert 0 < abs(float(calls[0][1]) + 1.0) <= 0.1
    # one side counts the sample (slope 1 - 1/0.5 = -1), the other does not (slope 1): their mean is 0
    np.testing.assert_allclose(moved.t[1], -1.0, atol=1e-6)


def test_smoothing_does_not_leave_the_set_of_t():
    """EVaR's second t is a scale: below its bound, and below 0, it would be another measure."""
    problem = lagrangian.Problem(constraints=(lagrangian.Constraint("v", 1.0, oce.evar(0.1)),))
    sets = sgda.sets(problem, (-1, 1), RANGE, 10.0, "wide")
    low = sets.t_low[1]
    state = sgda.init(sets, 1.0, (jnp.zeros(()), low))
    calls = []

    def oracle(lam, t):
        calls.append(t[1])
        return lagrangian.estimates(problem, t, jnp.zeros(1), {"v": jnp.array([1.0])})

    rule = sgda.Rule("plain", "plain", "wide", smoothed=True)
    sgda.dual_step(rule, sets, state, oracle, steps(radius=0.1), key=jax.random.key(0))
    assert len(calls) == 2 and all(np.all(t >= low) for t in calls) and any(np.any(t > low) for t in calls)


@pytest.mark.parametrize("lam", sgda.LAM_RULES)
def test_every_rule_is_one_program_for_all_step_sizes(lam):
    rule = sgda.Rule(lam, "plain", "tight")
    problem = cvar_problem()
    sets = sgda.sets(problem, (-1, 1), RANGE, 10.0)

    def run(hypers):
        state = sgda.init(sets, 0.1)
        oracle = lambda lam, t: lagrangian.estimates(problem, t, SPEEDS, {"v": SPEEDS})  # noqa: E731
        for _ in range(3):
            state = sgda.dual_step(rule, sets, state, oracle, hypers)
        return state.lam, state.t[1]

    sizes = jnp.array([0.01, 0.1])
    swept = jax.jit(jax.vmap(lambda s: run(steps(lam_step=s, t_step=s))))(sizes)
    for i, s in enumerate(sizes):
        alone = run(steps(lam_step=s, t_step=s))
        np.testing.assert_allclose(swept[0][i], alone[0], rtol=1e-5)
        np.testing.assert_allclose(swept[1][i], alone[1], rtol=1e-5)


def test_a_clipped_slack_winds_the_price_up_no_faster():
    wild = jnp.full((10,), 4.0)  # ten times the threshold
    problem = cvar_problem(c=0.4)
    sets = sgda.sets(problem, (-1, 1), RANGE, 10.0).replace(slack_unit=0.4)
    oracle = lambda lam, t: lagrangian.estimates(problem, t, wild, {"v": wild})  # noqa: E731
    rule = sgda.Rule("plain", "plain")
    moved = [
        float(sgda.dual_step(rule, sets, sgda.init(sets), oracle, steps(lam_step=0.05, slack_clip=clip)).lam[0])
        for clip in (0.1, jnp.inf)
    ]
    assert moved[0] == pytest.approx(0.05 * 0.1)
    assert moved[1] > 10 * moved[0]


def test_units_make_a_rescaled_problem_take_the_same_path():
    def path(scale):
        problem = cvar_problem(c=1.0 * scale)
        sets = sgda.sets(problem, (-1, 1), {"v": (0.0, 5.0 * scale)}, 10.0 / scale)
        sets = sets.replace(slack_unit=scale, lam_unit=1 / scale, t_unit=scale)
        state = sgda.init(sets, 0.0)
        for _ in range(4):
            state = sgda.dual_step(
                sgda.Rule("pi"), sets, state,
                lambda lam, t: lagrangian.estimates(problem, t, SPEEDS, {"v": 1.5 * scale * SPEEDS}),
                sgda.DualHypers(),
            )  # fmt: skip
        return np.array([state.lam[0] * scale, state.t[1] / scale])

    np.testing.assert_allclose(path(1.0), path(100.0), rtol=1e-4)


@pytest.mark.parametrize("utility", [oce.evar(0.3), oce.entropic(3.0), oce.cvar(0.3)], ids=lambda u: u.name)
def test_t_comes_to_its_maximiser_from_a_start_where_exponentials_explode(utility):
    """A scale of almost nothing makes the first slope of EVaR astronomical; a step may not throw t out of sight."""
    problem = Problem(constraints=(Constraint("v", 1.0, utility),))
    sets = sgda.sets(problem, (-1, 1), {"v": (0.0, 10.0)}, 10.0)
    speeds = jnp.linspace(0.2, 1.4, 500)

    def oracle(lam, t):
        return lagrangian.estimates(problem, t, speeds, {"v": speeds})

    start = (jnp.zeros(()), jnp.zeros(utility.t_shape))
    step = jax.jit(lambda state: sgda.dual_step(sgda.Rule(), sets, state, oracle, sgda.DualHypers(t_step=0.05)))
    state = sgda.init(sets, 0.0, start)
    for _ in range(1500):
        state = step(state)
    slack = oracle(state.lam, state.t).slack[0]
    assert float(slack) == pytest.approx(1.0 + float(utility.value(-speeds)), abs=0.02)


@pytest.mark.parametrize(
    "wrong", [{"lam": "sgd"}, {"t": "exact"}, {"box": "none"}, {"smoothed": True, "t": "quantile"}]
)
def test_unknown_rules_are_named(wrong):
    with pytest.raises(UserError, match="accepts"):
        sgda.Rule(**wrong)


def priced_after(count, v, lam=0.0, reward=0.0, rule=None, **given):
    """Lambda after each of `count` steps on the same batch."""
    problem = cvar_problem()
    sets = sgda.sets(problem, (-10.0, 10.0), RANGE, lam_max=10.0)
    state, hypers = sgda.init(sets, lam), steps(lam_step=0.1, t_step=0.0, **given)
    oracle = lambda lam, t: lagrangian.estimates(problem, t, jnp.zeros_like(v) + reward, {"v": v})  # noqa: E731
    seen = []
    for _ in range(count):
        state = sgda.dual_step(rule or sgda.Rule("plain"), sets, state, oracle, hypers)
        seen.append(float(state.lam[0]))
    return seen


@pytest.mark.parametrize("lam", ["plain", "pi"])
def test_a_delayed_price_waits_and_then_moves_as_ever(lam):
    rule, v = sgda.Rule(lam), SPEEDS + 1.0
    at_once = priced_after(5, v, rule=rule)
    delayed = priced_after(8, v, rule=rule, lam_delay=3)
    assert delayed[:3] == [0.0, 0.0, 0.0] and at_once[0] > 0
    np.testing.assert_allclose(delayed[3:], at_once, rtol=1e-6)


def test_optimism_does_not_answer_explosive_slopes_by_going_to_and_fro():
    """From t = 0 the slope of an exponential utility is huge, and beyond its maximiser it is 1."""
    problem = Problem(constraints=(Constraint("v", 1.0, oce.entropic(20.0)),))
    sets = sgda.sets(problem, (-10.0, 10.0), {"v": (0.0, 1.0)}, lam_max=10.0, box="wide")
    state = sgda.init(sets, 0.5, (jnp.array(0.0), jnp.array(0.0)))
    v = jnp.full(100, 0.6)
    rule, hypers = sgda.Rule("optimistic", "plain", "wide"), steps(lam_step=0.01, t_step=0.02, t_clip=50.0)
    path = []
    for _ in range(60):
        oracle = lambda lam, t: lagrangian.estimates(problem, t, jnp.zeros_like(v), {"v": v})  # noqa: E731
        state = sgda.dual_step(rule, sets, state, oracle, hypers)
        path.append(float(state.t[1]))
    assert max(np.abs(np.diff(path))) < 0.1 and abs(path[-1] + 0.6) < 0.02, path
