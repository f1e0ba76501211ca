"""A problem and its outcome in plain words and in maths, as HTML fragments."""

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

import numpy as np

from riskppo_jax.evaluation import TOLERANCE
from riskppo_jax.runs import LAWS, best_t, has_t

# risk measure -> symbol and a phrase that completes "... of what happens in a step"; parameters in braces
_MEASURES = {
    "mean": ("E", "the mean"),
    "cvar": ("CVaR<sub>{beta}</sub>", "the mean of the worst {beta:%} of steps"),
    "two_slope": ("OCE<sub>{gamma1}, {gamma2}</sub>", "the two-slope certainty equivalent ({gamma1} above t, {gamma2} "
                  "below)"),
    "mean_cvar": ("{kappa} E + (1 - {kappa}) CVaR<sub>{beta}</sub>",
                  "a mix of the mean (share {kappa}) and the mean of the worst {beta:%} of steps"),
    "entropic": ("Ent<sub>{gamma}</sub>", "the entropic risk at aversion {gamma}"),
    "quadratic": ("MV<sub>{c}</sub>", "the mean and {c}/2 times the variance"),
    "monotone_quadratic": ("MMV<sub>{c}</sub>", "the monotone mean-variance risk at aversion {c}"),
    "polynomial": ("Poly<sub>{c}, {k}</sub>", "the polynomial risk of order {k} at aversion {c}"),
    "log": ("Log<sub>{a}</sub>", "the logarithmic risk of scale {a}"),
    "smoothed_cvar": ("sCVaR<sub>{beta}</sub>", "the smoothed mean of the worst {beta:%} of steps"),
    "soft_cvar": ("softCVaR<sub>{beta}</sub>", "the softened mean of the worst {beta:%} of steps"),
    "spectral": ("Spectral", "a weighted sum of tail means at {betas}"),
    "evar": ("EVaR<sub>{alpha}</sub>", "the entropic value at risk at level {alpha:%}"),
}  # fmt: skip
_SETTLED = 0.05  # of the threshold: how near -t must be to the quantile, and risk to the limit


class Verdict(NamedTuple):
    """How a constraint fared: a mark for colour and sorting, a headline, and reasons."""

    mark: str  # kept, edge or broken
    head: str
    reasons: list[str]


def symbol(risk: Mapping[str, Any]) -> str:
    """`CVaR<sub>0.3</sub>`; a measure nobody told us of by its own name."""
    return _fill(_MEASURES.get(risk["name"], (escape(risk["name"]), ""))[0], risk)


def phrase(risk: Mapping[str, Any]) -> str:
    """ "the mean of the worst 30% of steps"."""
    return _fill(_MEASURES.get(risk["name"], ("", f"the risk measure {escape(risk['name'])}"))[1], risk)


def plain_symbol(risk: Mapping[str, Any]) -> str:
    """The symbol without markup, for axes and tables."""
    return symbol(risk).replace("<sub>", " ").replace("</sub>", "")


def asked(
    env: str, objective: Mapping[str, Any], constraints: list[dict[str, Any]] | None, whole: bool = False
) -> tuple[str, str]:
    """The problem as a sentence and as a formula; `whole` where the risk is that of an episode's sum.

    `constraints` are those of `summary.json`; None while a run goes on.
    """
    goal = f"Make {phrase(objective)} of the reward of a step in <b>{escape(env)}</b> as large as possible"
    if not constraints:
        known = "There is no constraint" if constraints is not None else "Its limits stand here once it is evaluated"
        return f"{goal}. {known}.", f"maximise<sub>&pi;</sub> &nbsp; {symbol(objective)}[r]"
    limits = [
        f"{phrase(c['risk'])} of <b>{escape(c['name'])}</b> at or below <b>{c['threshold']:g}</b>" for c in constraints
    ]
    maths = ", &nbsp; ".join(f"{symbol(c['risk'])}[{escape(c['name'])}] &le; {c['threshold']:g}" for c in constraints)
    words = f"{goal}, while keeping {' and '.join(limits)}."
    if whole:
        words = words.replace("of steps", "of episodes") + (
            " In training the quantity of an episode is its sum over the time limit; the verdict below is on single "
            "steps, as for every other run."
        )
    return words, f"maximise<sub>&pi;</sub> &nbsp; {symbol(objective)}[r] &nbsp;&nbsp; subject to &nbsp;&nbsp; {maths}"


def verdict(c: Mapping[str, Any]) -> Verdict:
    """What the final evaluation says of one constraint of `summary.json`."""
    limit, risk, (low, high) = c["threshold"], c["risk_value"], c["risk_value_ci"]
    scale = abs(limit) or 1.0
    name = plain_symbol(c["risk"])
    interval = f"{name} is {risk:.4g}, 95% interval {low + 0.0:.4g} to {high + 0.0:.4g}, limit {limit:g}"
    if not np.all(np.isfinite([risk, low, high])):
        return Verdict("broken", "Not known: the evaluation gave no finite number", [interval, _slackness(c, scale)])
    if high <= limit:
        mark, head = "kept", "Kept: the whole interval lies at or below the limit"
    elif risk <= limit:
        mark, head = "kept", "Kept, but the interval reaches beyond the limit"
    elif risk <= limit + TOLERANCE * abs(limit):
        mark, head = "edge", f"At the limit: beyond it by less than {TOLERANCE:.0%}"
    else:
        over = f"{(risk - limit) / scale:.1%}" if limit else f"{risk:.4g}"  # of nothing there is no share
        mark, head = "broken", f"Not kept: beyond the limit by {over}"
    law = next((law for law in LAWS if law in c), None)  # what t and lambda are about
    told = {**c, **c[law]} if law else c
    words = [_follows(told, scale), _slackness(told, scale)]
    if "deployed_after" in c:
        words = [f"this is the policy after {c['deployed_after']:,} steps, the best of the evaluation points; "
                 f"lambda = {c['lam']:.4g} and t are of the last one"]  # fmt: skip
    if law:
        words = [f"of {LAWS[law]}: {name} is {told['risk_value']:.4g}", *words]
    return Verdict(mark, head, [interval, *words])


def gained(objective: Mapping[str, Any]) -> str:
    """What came of an objective that is not the mean, as `summary.json` has it."""
    low, high = objective["value_ci"]
    told = f"{symbol(objective['risk'])}[r], which was to be large, is <b>{objective['value']:.4g}</b> a step"
    interval = f"95% interval {low:.4g} to {high:.4g}"
    if isinstance(objective["t"], list) or isinstance(objective["best_t"], list):
        return f"{told} ({interval})."
    return f"{told} ({interval}); its t is {objective['t']:.4g}, the best for these rewards {objective['best_t']:.4g}."


def _follows(c: Mapping[str, Any], scale: float) -> str:
    if c["risk"]["name"] == "evar":
        (t, spread), (best, minus_spread) = c["t"], c["quantile"]
        return f"-t = {-t:.4g} at a scale of {spread:.4g}; best here are {best:.4g} and {-minus_spread:.4g}"
    if isinstance(c["t"], list):
        pairs = ", ".join(f"{-t:.4g} / {q:.4g}" for t, q in zip(c["t"], c["quantile"], strict=False))
        return f"-t against its optimum for these samples, level by level: {pairs}"
    risk = c["risk"]
    if not has_t(risk):
        return "t does not enter: this is the mean"
    minus_t, quantile = 0.0 - c["t"], c["quantile"]
    what = "the quantile" if best_t(risk) == "quantile" else "its optimum for these samples"
    gap = abs(minus_t - quantile) / scale
    word = "agrees with" if gap <= _SETTLED else "is still away from"
    return f"-t = {minus_t:.4g} {word} {what}, {quantile:.4g} (they differ by {gap:.1%} of the limit)"


def _slackness(c: Mapping[str, Any], scale: float) -> str:
    slack, lam = c["threshold"] - c["risk_value"], c["lam"]
    product = f"lambda = {lam:.4g}, slack = {slack:.4g}, product {lam * slack + 0.0:.3g}"
    if not np.isfinite(lam * slack):
        return f"complementary slackness cannot be judged ({product})"
    if lam < 1e-3:
        met = "complementary slackness holds: the constraint costs nothing" if slack >= 0 else (
            "lambda has not answered to the violation yet")  # fmt: skip
    elif abs(slack) <= _SETTLED * scale:
        met = "complementary slackness holds: the constraint is priced and met with equality"
    elif slack > 0:
        met = "the price is higher than needed: there is slack left, lambda has not settled"
    else:
        met = "the limit is exceeded although it is priced: lambda has not settled, or the limit is out of reach"
    return f"{met} ({product})"


def _fill(text: str, risk: Mapping[str, Any]) -> str:
    for name, value in risk.items():
        if name == "name":
            continue
        values = value if isinstance(value, list) else [value]
        shares = " and ".join(f"{v:.4g}" for v in values)
        percent = " and ".join(f"{100 * v:.4g}%" for v in values if isinstance(v, int | float))
        text = text.replace(f"{{{name}:%}}", percent).replace(f"{{{name}}}", shares)
    return text
