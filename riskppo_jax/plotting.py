"""Figures for print: functions of arrays that return matplotlib figures.

Colours are Okabe and Ito's, which people with any kind of colour vision tell apart; lines also differ in style.
One-column figures are 3.4 inches wide with type of 8 points, two-column ones 7 inches.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from riskppo_jax.errors import UserError
from riskppo_jax.risk.utility import Utility

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from riskppo_jax.runs import Lane, Run

BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
)  # fmt: skip
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK)
STYLES = ("-", "--", "-.", ":")
COLUMN, PAGE = 3.4, 7.0  # inches
FORMATS = ("png", "pdf")
_GREY = "#666666"

Curve = tuple[np.ndarray, np.ndarray]  # steps, values


def reward_curve(steps: np.ndarray, reward: np.ndarray, final: tuple[float, float] | None = None) -> "Figure":
    """Return over environment steps; `final` is mean and standard deviation of the last evaluation."""
    with _figure() as figure:
        _reward(figure.subplots(), steps, reward, final)
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
    final: Mapping[str, float],
    name: str = "v",
) -> "Figure":
    """The four panels that tell a constrained run.

    Args:
      reward, minus_t, quantile, risk, lam: steps and values over training.
      samples: the constrained quantity in every step of the final evaluation.
      threshold: its limit.
      final: `reward`, `reward_std`, `quantile`, `minus_t` and `risk` of the final evaluation.
      name: of the quantity.
    """
    with _figure(PAGE, 5.0) as figure:
        axes = figure.subplots(2, 2).ravel()
        _reward(axes[0], *reward, (final["reward"], final["reward_std"]))
        _tracking(axes[1], minus_t, quantile, risk, threshold, name)
        _price(axes[2], *lam)
        _law(axes[3], samples, threshold, final["quantile"], final["minus_t"], final["risk"], name)
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
        axis.legend(title="group (seeds)")
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
        for limit in dict.fromkeys(thresholds):
            axis.axvline(limit, color=_GREY, ls="--", lw=1)
        axis.set(xlabel=xlabel, ylabel="return")
        axis.legend()
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
        for limit in dict.fromkeys(thresholds):
            axis.axvline(limit, color=_GREY, ls="--", lw=1)
        axis.set(xlabel=f"{name} of a step", ylabel="share of steps above")
        axis.legend()
        return figure


def write_figures(
    runs: Sequence["Run"], folder: Path, formats: Sequence[str] = FORMATS, most: int | None = None
) -> list[Path]:
    """Every figure that these runs allow, each in every format; returns the files.

    Panels are written for each lane (for the first `most` of them), under `lane<i>/` where there are several; the
    frontier and learning curves where there is something to compare.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lanes = [(run, lane) for run in runs for lane in run.lanes]
    written = []
    for i, (_, lane) in enumerate(lanes[:most]):
        for name, figure in _lane_figures(lane):
            target = folder if len(lanes) == 1 else folder / f"lane{i}"
            written += save(figure, target / name, formats)
    if len(lanes) > 1:
        for name, figure in _comparisons(runs):
            written += save(figure, folder / name, formats)
    return written


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


def _lane_figures(lane: "Lane") -> Iterator[tuple[str, "Figure"]]:
    steps, values, _ = lane.reward_curve()
    found = lane.found.get("eval", {})
    constraints = lane.found.get("constraints", [])
    if not constraints:
        reward = (found["reward_mean"], found["reward_std"]) if found else None
        yield "overview", reward_curve(steps, values, reward)
    for i, c in enumerate(constraints):
        t, best, risk, lam = (lane.curve(f"constraint{i}/{name}") for name in ("t", "t_batch", "risk", "lam"))
        final = {
            "reward": found["reward_mean"], "reward_std": found["reward_std"], "risk": c["risk_value"],
            "quantile": float(np.mean(c["quantile"])), "minus_t": 0.0 - float(np.mean(c["t"])),
        }  # fmt: skip
        samples = lane.samples.get(c["name"], np.zeros(0))
        minus = lambda curve: (curve[0], -curve[1])  # noqa: E731
        yield (
            f"overview_{c['name']}",
            overview((steps, values), minus(t), minus(best), risk, lam, samples, c["threshold"], final, c["name"]),
        )


def _comparisons(runs: Sequence["Run"]) -> Iterator[tuple[str, "Figure"]]:
    from riskppo_jax.report.data import grid
    from riskppo_jax.runs import groups

    found = groups(runs)
    for name, ylabel, read in (
        ("learning_curves", "return", lambda lane: lane.reward_curve()[:2]),
        ("cost_curves", "cost a step", lambda lane: lane.curve("train/cost")),
    ):
        curves = {label: grid([read(lane) for lane in lanes]) for label, lanes in found.items()}
        curves = {label: curve for label, curve in curves.items() if len(curve[0])}
        if any(curve[1].any() for curve in curves.values()):
            yield name, learning_curves(curves, ylabel)
    names = dict.fromkeys(c["name"] for lanes in found.values() for lane in lanes for c in lane.found["constraints"])
    for name in names:
        rows = [
            (c, lane.found["eval"], label)
            for label, lanes in found.items() for lane in lanes for c in lane.found["constraints"] if c["name"] == name
        ]  # fmt: skip
        risk, reward = [c["risk_value"] for c, _, _ in rows], [e["reward_mean"] for _, e, _ in rows]
        yield f"frontier_{name}", frontier(
            np.array(risk), np.array(reward), [label for _, _, label in rows], [c["threshold"] for c, _, _ in rows],
            np.array([c["risk_value_ci"] for c, _, _ in rows]), np.array([e["reward_std"] for _, e, _ in rows]),
            f"risk of {name}",
        )  # fmt: skip
        held = {label: [lane.samples[name] for lane in lanes if name in lane.samples] for label, lanes in found.items()}
        laws = {label: np.concatenate(own) for label, own in held.items() if own}
        if len(laws) > 1:
            yield f"distributions_{name}", distributions(laws, [c["threshold"] for c, _, _ in rows], name)


def _reward(axis, steps: np.ndarray, values: np.ndarray, final: tuple[float, float] | None) -> None:
    axis.plot(np.asarray(steps) / 1e6, values, color=BLUE, label="during training")
    if final is not None and len(steps):
        axis.errorbar(steps[-1] / 1e6, *final, fmt="o", ms=4, color=ORANGE, label="final evaluation")
    axis.set(xlabel="million environment steps", ylabel="return", title="Reward")
    axis.legend()


def _tracking(axis, minus_t: Curve, quantile: Curve, risk: Curve, threshold: float, name: str) -> None:
    axis.plot(quantile[0] / 1e6, quantile[1], "-", color=ORANGE, lw=1, label="quantile of the batch")
    axis.plot(risk[0] / 1e6, risk[1], "-.", color=GREEN, lw=1, label="risk of the batch")
    axis.plot(minus_t[0] / 1e6, minus_t[1], color=BLUE, label="$-t$")
    axis.axhline(threshold, color=_GREY, ls="--", label="limit $c$")
    axis.set(xlabel="million environment steps", ylabel=name, title="$-t$ and the quantile it estimates")
    if threshold > 0:
        late = [values[len(values) // 2 :].max(initial=0.0) for _, values in (quantile, risk)]
        axis.set_ylim(0.0, max(2.5 * threshold, 1.2 * max(late)))  # the early, wild part may leave the frame
    axis.legend()


def _price(axis, steps: np.ndarray, lam: np.ndarray) -> None:
    axis.plot(np.asarray(steps) / 1e6, lam, color=BLUE)
    axis.set(xlabel="million environment steps", ylabel=r"$\lambda$", title="Price of the constraint")
    axis.set_ylim(bottom=0.0)


def _law(axis, samples: np.ndarray, threshold: float, quantile, minus_t, risk, name: str) -> None:
    samples = np.asarray(samples)[np.isfinite(samples)]
    if len(samples):
        axis.hist(samples, bins=80, density=True, color=SKY, alpha=0.6, lw=0)
    axis.axvline(threshold, color=_GREY, ls="--", label=f"limit $c$ = {threshold:.4g}")
    for label, value, color, style in (
        ("quantile", quantile, ORANGE, "-"), ("$-t$", minus_t, BLUE, ":"), ("risk", risk, GREEN, "-."),
    ):  # fmt: skip
        axis.axvline(value, color=color, ls=style, label=f"{label} = {value:.4g}")
    axis.set(xlabel=f"{name} of a step", ylabel="density", title="What is constrained")
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
