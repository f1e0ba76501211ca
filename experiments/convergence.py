"""Where descent-ascent goes on finite problems: (t, lambda) paths over the exact optimum, and stationarity.

    python experiments/convergence.py DIR [--out experiments/convergence]

DIR holds instances in the format of `riskppo truth`. One figure per instance with a single constraint's t (the
first, where there are several): left, the paper's rule (one start, wide T, constant steps) and our default (16
starts, tight T, shrinking steps); right, how far t is from stationary for the value of the problem at fixed t,
which a linear program gives exactly. Numbers behind the figures go to `convergence.json`.
"""

import argparse
import json
from pathlib import Path

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import linprog

from riskppo_jax import theory, truth
from riskppo_jax.envs import tabular
from riskppo_jax.envs.tabular import Instance
from riskppo_jax.risk import oce

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def value_at(instance: Instance, t: np.ndarray) -> float:
    """`P(t) = max_nu J_0(nu, t_0)` subject to `J_i(nu, t_i) >= b_i`, a linear program; minus infinity if infeasible."""
    mdp = instance.mdp
    states, actions = mdp.num_states, mdp.num_actions
    index = np.asarray(mdp.s) * actions + np.asarray(mdp.a)

    def per_pair(row: int) -> np.ndarray:
        utility = oce.from_config(instance.utilities[row])
        gain = np.asarray(utility.pointwise(np.asarray(mdp.rewards[row]), t[row]))
        return np.bincount(index, np.asarray(mdp.prob) * gain, states * actions)

    flow = np.zeros((states, states * actions))
    flow[np.repeat(np.arange(states), actions), np.arange(states * actions)] = 1.0
    np.add.at(flow, (np.asarray(mdp.s_next), index), -float(mdp.gamma) * np.asarray(mdp.prob))
    gains = np.array([per_pair(i + 1) for i in range(len(instance.thresholds))])
    answer = linprog(
        -per_pair(0), A_ub=-gains, b_ub=-np.asarray(instance.thresholds), A_eq=flow,
        b_eq=(1 - float(mdp.gamma)) * np.asarray(mdp.initial),
    )  # fmt: skip
    return -answer.fun if answer.status == 0 else -np.inf


def stationarity(instance: Instance, path: np.ndarray, grid: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The Moreau measure along a path of t, in units of objective range over quantity range."""
    width, height = np.ptp(grid), np.ptp(np.asarray(instance.mdp.rewards[0])) or 1.0
    ell = 10.0 * height / width**2

    def phi(u):
        inside = np.interp(u, grid, np.where(np.isfinite(values), values, 0.0))
        return np.where(np.interp(u, grid, np.isfinite(values) * 1.0) > 0.999, inside, -np.inf)

    interval = (grid[0], grid[-1])
    return np.array([theory.moreau_stationarity(phi, t, interval, ell) for t in path]) * width / height


def draw(instance: Instance, out: Path) -> dict:
    """One figure; returns what it shows in numbers."""
    runs = {}
    for label, name in (("paper", "paper"), ("default", "default")):
        outcome, trace = truth.solve(instance, truth.VARIANTS[name], snapshots=400)
        score = truth.score(instance, outcome)
        runs[label] = (outcome, trace, score)
    best = instance.solution
    low, high = np.asarray(instance.mdp.rewards[1]).min(), np.asarray(instance.mdp.rewards[1]).max()
    grid = np.unique(np.concatenate([np.linspace(low, high, 160), np.asarray(instance.mdp.rewards[1])]))
    at = np.array([0.0 if t is None else sum(t) / 2 for t in best.t_interval])
    with jax.enable_x64(True):
        values = np.array([value_at(instance, np.array([at[0], u, *at[2:]])) for u in grid])

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), constrained_layout=True)
    for label, colour in (("paper", ORANGE), ("default", BLUE)):
        outcome, trace, score = runs[label]
        t, lam = trace.t[1], trace.lam[:, :, 0]
        for other in range(len(t)):
            chosen = other == outcome.start
            left.plot(t[other], lam[other], color=colour, lw=1.2 if chosen else 0.3, alpha=1.0 if chosen else 0.3)
        verdict = "solved" if score.within(truth.TOLERANCE) else f"off by {100 * max(score[:2]):.1f}%"
        left.plot([], [], color=colour, label=f"{label}: average iterate {verdict}")
        measure = stationarity(instance, t[outcome.start], grid, values)
        right.semilogy(trace.iteration, np.maximum(measure, 1e-6), color=colour, lw=1.0, label=label)
    left.plot(at[1], best.lam[0], "*", color="black", ms=12, label="exact optimum", zorder=5)
    left.set(xlabel="t", ylabel="lambda", title=instance.name)
    left.legend(fontsize=7)
    right.set(xlabel="iteration", ylabel="stationarity of t (Moreau)", title="distance from stationary")
    right.legend(fontsize=7)
    figure.savefig(out / f"{instance.name}.png", dpi=110)
    plt.close(figure)
    return {
        label: {
            "solved": score.within(truth.TOLERANCE),
            **{key: round(float(value), 6) for key, value in score._asdict().items()},
        }
        for label, (_, _, score) in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "convergence")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for path in sorted(args.directory.glob("*.json")):
        with jax.enable_x64(True):
            instance = tabular.load(path)
        if instance is None:
            continue
        results[instance.name] = draw(instance, args.out)
        print(instance.name, results[instance.name], flush=True)
    (args.out / "convergence.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
