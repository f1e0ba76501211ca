"""Four panels that tell a run: reward, t against minus the quantile, lambda, and the law of what is constrained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from riskppo_jax.evaluation import Evaluation

_BLUE, _ORANGE, _GREEN, _GREY = "#1f5fa8", "#d9731a", "#2b8a3e", "#777777"


def write_figures(
    folder: Path, points: Sequence[dict[str, Any]], lane: dict[str, Any], found: Evaluation
) -> list[Path]:
    """One `overview_<constraint>.png` per constraint, or one without the last three panels if there is none."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    steps = np.array([point["train/env_steps"] for point in points]) / 1e6
    written = []
    for i, constraint in enumerate(lane["constraints"] or [None]):
        figure = Figure(figsize=(10, 7) if constraint else (6, 4), layout="constrained")
        axes = figure.subplots(2, 2).ravel() if constraint else [figure.subplots()]
        _reward(axes[0], steps, points, lane)
        if constraint:
            _t(axes[1], steps, points, i, constraint)
            _lam(axes[2], steps, points, i)
            _law(axes[3], found.samples(constraint["name"]), constraint)
        path = folder / (f"overview_{constraint['name']}.png" if constraint else "overview.png")
        draft = path.with_name(f".{path.name}")
        figure.savefig(draft, dpi=120, format="png")
        draft.replace(path)
        written.append(path)
    return written


def _column(points: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """A metric over the run; the mean of its entries where it is a vector, NaN where there was none."""
    values = [point.get(name) for point in points]
    return np.array([np.nan if value is None else np.mean(value) for value in values], float)


def _reward(axis, steps: np.ndarray, points: Sequence[dict[str, Any]], lane: dict[str, Any]) -> None:
    axis.plot(steps, _column(points, "train/return"), color=_BLUE, label="episodes in training")
    evaluated = lane["eval"]
    axis.errorbar(
        steps[-1], evaluated["reward_mean"], evaluated["reward_std"], fmt="o", color=_ORANGE, label="final evaluation"
    )
    axis.set(xlabel="million environment steps", ylabel="return", title="Reward")
    axis.legend(frameon=False)


def _t(axis, steps: np.ndarray, points: Sequence[dict[str, Any]], i: int, constraint: dict[str, Any]) -> None:
    axis.plot(steps, -_column(points, f"constraint{i}/t_batch"), color=_ORANGE, label="quantile of the batch")
    axis.plot(steps, -_column(points, f"constraint{i}/t"), color=_BLUE, label="$-t$")
    axis.plot(steps, _column(points, f"constraint{i}/risk"), color=_GREEN, lw=1, label="risk of the batch")
    axis.axhline(constraint["threshold"], color=_GREY, ls="--", label="limit $c$")
    axis.set(xlabel="million environment steps", ylabel=constraint["name"], title="$-t$ follows the quantile")
    axis.set_ylim(0.0, max(2.5 * constraint["threshold"], 1e-3)) if constraint["threshold"] > 0 else None
    axis.legend(frameon=False)


def _lam(axis, steps: np.ndarray, points: Sequence[dict[str, Any]], i: int) -> None:
    axis.plot(steps, _column(points, f"constraint{i}/lam"), color=_BLUE)
    axis.set(xlabel="million environment steps", ylabel=r"$\lambda$", title="Price of the constraint")
    axis.set_ylim(bottom=0.0)


def _law(axis, samples: np.ndarray, constraint: dict[str, Any]) -> None:
    axis.hist(samples, bins=80, density=True, color=_BLUE, alpha=0.35)
    axis.axvline(constraint["threshold"], color=_GREY, ls="--", label=f"limit $c$ = {constraint['threshold']:.4g}")
    for name, value, color, style in (
        ("quantile", np.mean(constraint["quantile"]), _ORANGE, "-"),
        ("$-t$", -np.mean(constraint["t"]), _BLUE, ":"),
        ("risk", constraint["risk_value"], _GREEN, "-"),
    ):
        axis.axvline(value, color=color, ls=style, label=f"{name} = {value:.4g}")
    axis.set(xlabel=f"{constraint['name']} of a step, final evaluation", ylabel="density", title="What is constrained")
    axis.legend(frameon=False)
