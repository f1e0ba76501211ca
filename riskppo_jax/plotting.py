"""Figures for print: functions of arrays that return matplotlib figures.

Colours are Okabe and Ito's, which people with any kind of colour vision tell apart; lines also differ in style.
One-column figures are 3.4 inches wide with type of 8 points, two-column ones 7 inches.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.risk.utility import Utility

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK)
STYLES = ("-", "--", "-.", ":")
COLUMN, PAGE = 3.4, 7.0  # inches
FORMATS = ("png", "pdf")
_GREY = "#666666"
_FEW = 3  # points that make no line yet
_COUNTED = 3  # values of a quantity that is counted, not measured
_INSIDE = 5  # entries of a legend that leave room for the curves ...
_SHORT = 30  # letters of the longest, likewise
_LINE = 54  # letters of a line below the curves

Curve = tuple[np.ndarray, np.ndarray]  # steps, values


def reward_curve(
    steps: np.ndarray, reward: np.ndarray, final: tuple[float, float] | None = None, after: int | None = None
) -> "Figure":
    """Return over environment steps; `final` is mean and standard deviation of the last evaluation.

    `after` says how many steps the policy evaluated there was trained for, where those are not all.
    """
    with _figure() as figure:
        _reward(figure.subplots(), steps, reward, final, after)
        return figure


def tracking(minus_t: Curve, quantile: Curve, risk: Curve, threshold: float, name: str = "v") -> "Figure":
    """`-t` over training against the quantile it estimates, and the risk against its limit."""
    with _figure() as figure:
        _tracking(figure.subplots(), minus_t, quantile, risk, threshold, name)
        return figure


def price(steps: np.ndarray, lam: np.ndarray) -> "Figure":
    """The multiplier of a constraint over training."""
    with _figure() as figure:
        _price(figure.subplots(), steps, lam)
        return figure


def histogram(
    samples: np.ndarray, threshold: float, quantile: float, minus_t: float, risk: float, name: str = "v"
) -> "Figure":
    """The law of a constrained quantity with its limit, its quantile, `-t` and its risk."""
    with _figure() as figure:
        _law(figure.subplots(), samples, threshold, quantile, minus_t, risk, name)
        return figure


def overview(
    reward: Curve,
    minus_t: Curve,
    quantile: Curve,
    risk: Curve,
    lam: Curve,
    samples: np.ndarray,
    threshold: float,
    final: Mapping[str, Any],
    name: str = "v",
    limit: Curve | None = None,
) -> "Figure":
    """The four panels that tell a constrained run.

    Args:
      reward, minus_t, quantile, risk, lam: steps and values over training; of a measure whose t does not enter, the
        mean, `minus_t` and `quantile` are empty.
      samples: the constrained quantity in every step of the final evaluation.
      threshold: its limit.
      final: `reward`, `reward_std`, `quantile`, `minus_t` (None where there are several) and `risk` of the final
        evaluation; `best_t`, what the measure's best -t is called, "quantile" where it does not say; and `after`,
        the steps its policy was trained for where those are not all.
      name: of the quantity.
      limit: on its way down to `threshold`, where it was eased.
    """
    with _figure(PAGE, 5.0) as figure:
        axes = figure.subplots(2, 2).ravel()
        _reward(axes[0], *reward, (final["reward"], final["reward_std"]), final.get("after"))
        best = final.get("best_t", "quantile")
        _tracking(axes[1], minus_t, quantile, risk, threshold, name, best, limit)
        _price(axes[2], *lam)
        _law(axes[3], samples, threshold, final["quantile"], final["minus_t"], final["risk"], name, best)
        return figure


def learning_curves(curves: Mapping[str, Curve], ylabel: str = "return") -> "Figure":
    """Mean over seeds with a band from the lowest to the highest.

    Args:
      curves: label -> steps `[p]` and values `[seed, p]`.
      ylabel: what the values are.
    """
    with _figure() as figure:
        axis = figure.subplots()
        for i, (label, (steps, values)) in enumerate(curves.items()):
            values = np.atleast_2d(values)
            color, style = PALETTE[i % len(PALETTE)], STYLES[i // len(PALETTE) % len(STYLES)]
            axis.plot(steps / 1e6, values.mean(0), style, color=color, label=f"{label} ({len(values)})")
            axis.fill_between(steps / 1e6, values.min(0), values.max(0), color=color, alpha=0.2, lw=0)
        axis.set(xlabel="million environment steps", ylabel=ylabel)
        _legend(figure, axis, "group (seeds)")
        return figure


def frontier(
    risk: np.ndarray,
    reward: np.ndarray,
    labels: Sequence[str],
    thresholds: Sequence[float] = (),
    risk_interval: np.ndarray | None = None,
    reward_spread: np.ndarray | None = None,
    xlabel: str = "risk",
) -> "Figure":
    """Reward against risk, a point for each lane, coloured by label.

    Args:
      risk, reward: `[lane]`.
      labels: a group for each lane.
      thresholds: limits to mark.
      risk_interval: `[lane, 2]`, ends of an interval.
      reward_spread: `[lane]`, standard deviations.
      xlabel: what `risk` is.
    """
    risk, reward = np.asarray(risk, float), np.asarray(reward, float)
    with _figure() as figure:
        axis = figure.subplots()
        for i, label in enumerate(dict.fromkeys(labels)):
            own = np.array([other == label for other in labels])
            across = None
            if risk_interval is not None:
                across = np.abs(np.asarray(risk_interval)[own].T - risk[own])
            spread = None if reward_spread is None else np.asarray(reward_spread)[own]
            axis.errorbar(
                risk[own], reward[own], spread, across, fmt="os^Dv"[i % 5], ms=4, color=PALETTE[i % len(PALETTE)],
                elinewidth=0.8, label=label,
            )  # fmt: skip
        _limits(axis, thresholds)
        axis.set(xlabel=xlabel, ylabel="return")
        _legend(figure, axis)
        return figure


def utility(measure: Utility, u: np.ndarray, title: str | None = None) -> "Figure":
    """A risk measure's picture: its `g` against the mean's, and the weight `g'` it gives to outcomes around `t`."""
    with _figure(PAGE * 0.75, 2.0) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(u, u, ":", color=_GREY, label="mean")
        left.plot(u, np.asarray(measure.g(u)), color=BLUE, label="$g(u)$")
        left.set(xlabel="$u = x - t$", ylabel="utility", ylim=(min(u) * 3, max(u) * 1.2), title=title or measure.name)
        left.legend()
        weight = np.asarray(measure.dg(u))
        right.plot(u, weight, color=ORANGE)
        right.axhline(1.0, color=_GREY, ls=":")
        right.set(xlabel="$u = x - t$", ylabel="weight $g'(u)$", ylim=(min(0.0, weight.min()), None))
        return figure


def pointwise(measure: Utility, samples: np.ndarray, title: str | None = None) -> "Figure":
    """A measure with several auxiliary variables, at those best for `samples`: worth and weight of outcomes."""
    x = np.linspace(samples.min(), samples.max(), 401).astype(np.float32)
    t = measure.t_star(samples)
    worth = np.asarray(measure.pointwise(x, t))
    with _figure(PAGE * 0.75, 2.0) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(x, x, ":", color=_GREY, label="mean")
        left.plot(x, worth, color=BLUE, label="$t + g(x - t)$")
        left.set(xlabel="$x$", ylabel="utility", ylim=(3 * x.min(), 1.2 * x.max()), title=title or measure.name)
        left.legend()
        right.plot(x, np.gradient(worth, x), color=ORANGE)
        right.axhline(1.0, color=_GREY, ls=":")
        right.set(xlabel="$x$", ylabel="weight", ylim=(0.0, None))
        return figure


def distributions(laws: Mapping[str, np.ndarray], thresholds: Sequence[float] = (), name: str = "v") -> "Figure":
    """How often a step exceeds each value, a line for each group: the tail is what risk measures look at.

    Args:
      laws: label -> samples of the quantity.
      thresholds: limits to mark.
    """
    with _figure() as figure:
        axis = figure.subplots()
        for i, (label, samples) in enumerate(laws.items()):
            shares = np.linspace(0.002, 0.998, 997)
            color, style = PALETTE[i % len(PALETTE)], STYLES[i // len(PALETTE) % len(STYLES)]
            axis.plot(np.nanquantile(samples, shares), 1.0 - shares, style, color=color, label=label)
        _limits(axis, thresholds)
        axis.set(xlabel=f"{name} of a step", ylabel="share of steps above")
        _legend(figure, axis)
        return figure


def save(figure: "Figure", stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes a figure as `stem.<format>`, whole or not at all."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for form in formats:
        path = stem.with_name(f"{stem.name}.{form}")
        draft = stem.with_name(f".{path.name}")
        with _style():
            figure.savefig(draft, format=form, dpi=300 if form == "png" and len(formats) > 1 else 150)
        draft.replace(path)
        written.append(path)
    return written


def _legend(figure: "Figure", axis, title: str | None = None) -> None:
    """Inside the axes, or below them where it would hide what is drawn; long labels in several lines."""
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) <= _INSIDE and max(map(len, labels), default=0) <= _SHORT:
        axis.legend(title=title)
        return
    labels = [textwrap.fill(label, _LINE) for label in labels]
    lines = sum(label.count("\n") + 1 for label in labels) + (title is not None)
    figure.set_figheight(figure.get_figheight() + 0.14 * lines)
    figure.legend(handles, labels, title=title, loc="outside lower left")


def _limits(axis, thresholds: Sequence[float]) -> None:
    for i, limit in enumerate(dict.fromkeys(thresholds)):
        axis.axvline(limit, color=_GREY, ls=("--", ":", "-.")[i % 3], lw=1, label=f"limit {limit:.4g}")


def _line(axis, steps: np.ndarray, values: np.ndarray, *style: str, **options: Any) -> None:
    """A curve over training; points where there are too few of them for a line."""
    few = {"marker": "o", "ms": 3} if len(steps) <= _FEW else {}
    axis.plot(np.asarray(steps) / 1e6, values, *style, **few, **options)
    axis.xaxis.get_major_locator().set_params(nbins=6)


def _reward(
    axis, steps: np.ndarray, values: np.ndarray, final: tuple[float, float] | None, after: int | None = None
) -> None:
    _line(axis, steps, values, color=BLUE, label="during training")
    if final is not None and len(steps):
        axis.errorbar((after or steps[-1]) / 1e6, *final, fmt="o", ms=4, color=ORANGE, label="final evaluation")
    axis.set(xlabel="million environment steps", ylabel="return", title="Reward")
    axis.legend()


def _tracking(
    axis, minus_t: Curve, quantile: Curve, risk: Curve, threshold: float, name: str, best: str = "quantile",
    limit: Curve | None = None,
) -> None:  # fmt: skip
    if tells := len(minus_t[0]) > 0:
        _line(axis, *quantile, "-", color=ORANGE, lw=1, label=f"{best} of the batch")
    _line(axis, *risk, "-." if tells else "-", color=GREEN, lw=1, label="risk of the batch")
    if tells:
        _line(axis, *minus_t, color=BLUE, label="$-t$")
    axis.axhline(threshold, color=_GREY, ls="--", label="limit $c$")
    if limit is not None:
        _line(axis, *limit, ":", color=_GREY, label="limit on its way")
    title = "$-t$ and the quantile it estimates" if best == "quantile" else "$-t$ and its best value"
    axis.set(xlabel="million environment steps", ylabel=name, title=title if tells else "Risk and its limit")
    if threshold > 0:
        late = [values[len(values) // 2 :].max(initial=0.0) for _, values in (quantile, risk)]
        way = 0.0 if limit is None else 1.05 * limit[1].max(initial=0.0)
        axis.set_ylim(0.0, max(2.5 * threshold, 1.2 * max(late), way))  # the early, wild part may leave the frame
    axis.legend()


def _price(axis, steps: np.ndarray, lam: np.ndarray) -> None:
    _line(axis, steps, lam, color=BLUE)
    axis.set(xlabel="million environment steps", ylabel=r"$\lambda$", title="Price of the constraint")
    axis.set_ylim(bottom=0.0)


def _shares(axis, values: np.ndarray, shares: np.ndarray) -> None:
    """Of a cost of 0 or 1: a bar for each value, on a scale that shows the rare one."""
    span = max(np.ptp(values), 1.0)  # of one value alone, too
    bars = axis.bar(values, shares, width=0.08 * span, color=SKY, alpha=0.6)
    axis.bar_label(bars, [f"{share:.3%}" for share in shares], padding=2)
    axis.set_xlim(values[0] - 0.2 * span, values[0] + 1.2 * span)
    axis.set_yscale("log")
    axis.set_ylim(min(1e-3, 0.3 * shares.min()), 4.0)


def _law(
    axis, samples: np.ndarray, threshold: float, quantile, minus_t, risk, name: str, best: str = "quantile"
) -> None:
    samples = np.asarray(samples)[np.isfinite(samples)]
    values, counts = np.unique(samples, return_counts=True)
    few = 0 < len(values) <= _COUNTED
    if few:
        _shares(axis, values, counts / len(samples))
    elif len(samples):
        axis.hist(samples, bins=80, density=True, color=SKY, alpha=0.6, lw=0)
    axis.axvline(threshold, color=_GREY, ls="--", label=f"limit $c$ = {threshold:.4g}")
    for label, value, color, style in (
        (best, quantile, ORANGE, "-"), ("$-t$", minus_t, BLUE, ":"), ("risk", risk, GREEN, "-."),
    ):  # fmt: skip
        if value is None:
            continue
        axis.axvline(value, color=color, ls=style, label=f"{label} = {value:.4g}")
    ylabel = "share of steps" if few else "density"
    axis.set(xlabel=f"{name} of a step", ylabel=ylabel, title="What is constrained")
    axis.legend()


@contextmanager
def _figure(width: float = COLUMN, height: float = 2.5) -> Iterator["Figure"]:
    from matplotlib.figure import Figure

    with _style():
        yield Figure(figsize=(width, height), layout="constrained")


@contextmanager
def _style() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError:
        raise UserError("plot: accepts an installed matplotlib") from None
    settings: dict[str, Any] = {
        "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "legend.frameon": False, "lines.linewidth": 1.4,
        "axes.spines.top": False, "axes.spines.right": False, "pdf.fonttype": 42, "axes.grid": True,
        "grid.color": "#dddddd", "grid.linewidth": 0.5, "axes.axisbelow": True, "xtick.labelsize": 7,
        "ytick.labelsize": 7,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield
