"""Which figures a run or several allow, and their files: what `riskppo plot` and the report write."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from riskppo_jax import plotting
from riskppo_jax.report.data import grid, only, step_t
from riskppo_jax.runs import Lane, Run, best_t, by_name, groups, has_t, numbered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_CURVE = (np.zeros(0), np.zeros(0))


def write_figures(
    runs: Sequence[Run], folder: Path, formats: Sequence[str] = plotting.FORMATS, most: int | None = None
) -> list[Path]:
    """Every figure that these runs allow, each in every format; returns the files.

    Panels are written for each lane (for the first `most` of them), under `<run>/` where there are several runs and
    `lane<i>/` where it has several lanes; the frontier and learning curves where there is something to compare.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lanes = [(run, lane) for run in runs for lane in run.lanes]
    written = []
    for run, lane in lanes[:most]:
        target = folder if len(runs) == 1 else folder / run.name
        target = target if len(run.lanes) == 1 else target / f"lane{lane.index}"
        for name, figure in _lane_figures(lane):
            written += plotting.save(figure, target / name, formats)
    if len(lanes) > 1:
        for name, figure in comparisons(groups(runs)):
            written += plotting.save(figure, folder / name, formats)
    return written


def _lane_figures(lane: Lane) -> Iterator[tuple[str, "Figure"]]:
    steps, values, _ = lane.reward_curve()
    found = lane.found.get("eval", {})
    constraints = lane.found.get("constraints", [])
    if not constraints:
        reward = (found["reward_mean"], found["reward_std"]) if found else None
        yield "overview", plotting.reward_curve(steps, values, reward, lane.found.get("chosen", {}).get("env_steps"))
    files = numbered(c["name"] for c in constraints)
    for i, c in enumerate(constraints):
        t, best, risk, lam = (lane.curve(f"constraint{i}/{name}") for name in ("t", "t_batch", "risk", "lam"))
        tells = has_t(c["risk"])
        t, best = (t, best) if tells else (_NO_CURVE, _NO_CURVE)
        final = {
            "reward": found["reward_mean"], "reward_std": found["reward_std"], "risk": c["risk_value"],
            "quantile": only(c["quantile"]) if tells else None, "minus_t": step_t(c) if tells else None,
            "best_t": best_t(c["risk"]), "after": c.get("deployed_after"),
        }  # fmt: skip
        samples = lane.samples.get(c["name"], np.zeros(0))
        minus = lambda curve: (curve[0], -curve[1])  # noqa: E731
        yield (
            f"overview_{files[i]}",
            plotting.overview(
                (steps, values), minus(t), minus(best), risk, lam, samples, c["threshold"], final, c["name"],
                lane.eased_limit(i),
            ),
        )  # fmt: skip


def comparisons(found: Mapping[str, Sequence[Lane]]) -> Iterator[tuple[str, "Figure"]]:
    """Learning curves, frontier and distributions of groups of lanes under their labels, each by its file's name."""
    for name, ylabel, read in (
        ("learning_curves", "return", lambda lane: lane.reward_curve()[:2]),
        ("cost_curves", "cost a step", lambda lane: lane.curve("train/cost")),
    ):
        curves = {label: grid([read(lane) for lane in lanes]) for label, lanes in found.items()}
        curves = {label: curve for label, curve in curves.items() if len(curve[0])}
        if any(curve[1].any() for curve in curves.values()):
            yield name, plotting.learning_curves(curves, ylabel)
    for name in dict.fromkeys(name for lanes in found.values() for lane in lanes for name in by_name(lane)):
        rows = [
            (c, lane.found["eval"], label)
            for label, lanes in found.items() for lane in lanes if (c := by_name(lane).get(name))
        ]  # fmt: skip
        risk, reward = [c["risk_value"] for c, _, _ in rows], [e["reward_mean"] for _, e, _ in rows]
        yield f"frontier_{name}", plotting.frontier(
            np.array(risk), np.array(reward), [label for _, _, label in rows], [c["threshold"] for c, _, _ in rows],
            np.array([c["risk_value_ci"] for c, _, _ in rows]), np.array([e["reward_std"] for _, e, _ in rows]),
            f"risk of {name}",
        )  # fmt: skip
        held = {label: [lane.samples[name] for lane in lanes if name in lane.samples] for label, lanes in found.items()}
        laws = {label: np.concatenate(own) for label, own in held.items() if own}
        if len(laws) > 1:
            yield f"distributions_{name}", plotting.distributions(laws, [c["threshold"] for c, _, _ in rows], name)
