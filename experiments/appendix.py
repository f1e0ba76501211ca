"""The tables of results.md: every lane of every result, in Markdown, line by line."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from run import ceiling, weight

Summary = dict[str, Any]


def every_lane(results: dict[str, Summary]) -> Iterator[str]:
    """Every lane in a row of Markdown, evaluated with mean actions; none of what is not a training run."""
    runs = {name: summary for name, summary in results.items() if "lanes" in summary}
    if not runs:
        return
    heads = ["run", "lane", "steps", "return", "cost", "length", "risk / c", "the same, sampled", "-t",
             "quantile, sampled", "lambda"]  # fmt: skip
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name, summary in runs.items():
        for lane in summary["lanes"]:
            point = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in lane.get("point", {}).items())
            found, c = lane["eval"], (lane["constraints"] or [None])[0]
            row = [name, point or f"seed {lane['seed']}", f"{summary['env_steps']:,}", f"{found['reward_mean']:.4g}"]
            row += [f"{found['cost_mean']:.3g}", f"{found['length_mean']:.0f}"]
            if c:
                over = [risk / c["threshold"] if c["threshold"] else risk
                        for risk in (c["risk_value"], c["sampled"]["risk_value"])]  # fmt: skip
                row += [*(f"{x:.3f}" for x in over), f"{0.0 - c['t']:.4f}", f"{c['sampled']['quantile']:.4f}"]
                row += [f"{c['lam']:.3f}"]
            yield "| " + " | ".join(row + ["-"] * (len(heads) - len(row))) + " |"


def velocity(results: dict[str, Summary]) -> Iterator[str]:
    """Every lane, where its reward went, and what its run could have returned instead of the last average."""
    yield from every_lane(results)
    yield ""
    yield "What the return lacks of its ceiling, in per cent of it: steps lost to falls; speed below the limit (a law"
    yield "with its CVaR at the limit has its mean below it); the rest, which is the charge for effort and, of Swimmer,"
    yield "motion backwards, which the constraint counts and the reward does not:"
    yield ""
    yield "| run | seed | ceiling | falls | speed | effort |"
    yield "|---" * 6 + "|"
    for name, summary in results.items():
        for lane in summary["lanes"]:
            row = [name, str(lane["seed"]), f"{ceiling(summary):.0f}", *(f"{x:.1%}" for x in losses(summary, lane))]
            yield "| " + " | ".join(row) + " |"
    lanes = [(name, lane, lane["iterates"]) for name, summary in results.items()
             for lane in summary["lanes"] if lane.get("iterates")]  # fmt: skip
    if not lanes:
        return
    yield ""
    yield "The iterate returned, as return at risk / c, by the evaluation points on the way (two episodes each, or ten"
    yield "where the best of them is deployed);"
    yield "`best` is the highest return within 1% of the limit, chosen by the episodes it is reported with:"
    yield ""
    heads = ["run", "seed", "deployed", "last", "drawn uniformly", "of which feasible", "best", "best, steps"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name, lane, found in lanes:
        c = lane["constraints"][0]
        row = [name, str(lane["seed"]), at(lane["eval"]["reward_mean"], c["risk_value"], c["threshold"])]
        row += [at(found[which]["reward"], found[which]["risk"], c["threshold"]) for which in ("last", "uniform")]
        row += [f"{found['uniform']['feasible']:.0%}"]
        best = found["best"]
        row += [at(best["reward"], best["risk"], c["threshold"]), f"{best['steps']:,}"] if best else ["none", "-"]
        yield "| " + " | ".join(row) + " |"


def losses(summary: Summary, lane: Summary) -> tuple[float, float, float]:
    """Shares of the ceiling that falls, a mean speed below the limit, and effort have cost."""
    found, c = lane["eval"], lane["constraints"][0]
    highest, length = ceiling(summary), found["length_mean"]
    falls = (1000 - length) / 1000
    speed = weight(summary) * (c["threshold"] - c["mean"]) * length / highest
    return falls, speed, 1.0 - found["reward_mean"] / highest - falls - speed


def at(reward: float, risk: float, threshold: float) -> str:
    return f"{reward:.4g} at {risk / threshold:.3f}"


def tails(results: dict[str, Summary]) -> Iterator[str]:
    """The law of a step's quantity side by side, mean actions, all beside the limit of the first."""
    yield from every_lane(results)
    if any("steps" not in c for found in results.values() for lane in found["lanes"] for c in lane["constraints"]):
        return
    yield ""
    first = results.get("start") or next(iter(results.values()))
    limit = first["lanes"][0]["constraints"][0]["threshold"]
    yield f"As speeds, beside the limit {limit:g} (other measures have limits of another size):"
    yield ""
    heads = ["run", "lane", "return", "mean / c", "CVaR 0.3 / c", "CVaR 0.05 / c", "steps above c", "sd / c"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name, summary in results.items():
        for lane in summary["lanes"]:
            for c in lane["constraints"][:1]:
                point = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in lane["point"].items())
                steps = c["steps"]
                below = np.interp(limit, steps["percentiles"], np.arange(101))
                row = [name, point, f"{lane['eval']['reward_mean']:.0f}"]
                row += [f"{x / limit:.3f}" for x in (steps["cvar_1"], steps["cvar_0.3"], steps["cvar_0.05"])]
                row += [f"{100 - below:.1f}%", f"{steps['sd'] / limit:.3f}"]
                yield "| " + " | ".join(row) + " |"


def averse_objective(results: dict[str, Summary]) -> Iterator[str]:
    """Every lane, and what the objective says of it."""
    yield from every_lane(results)
    yield ""
    heads = ["run", "lane", "objective's value", "its t", "best t", "worst 30% of rewards", "worst 5%", "mean", "sd"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name, summary in results.items():
        for lane in summary["lanes"]:
            point = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in lane["point"].items())
            own = lane["objective"]
            row = [own["value"], own["t"], own["best_t"]]
            row += [-own["losses"][f"cvar_{beta:g}"] for beta in (0.3, 0.05, 1.0)] + [own["losses"]["sd"]]
            yield "| " + " | ".join([name, point, *(f"{x:.4f}" for x in row)]) + " |"


def study(results: dict[str, Summary]) -> Iterator[str]:
    """Every lane of the study, tuning first."""
    yield "`miss`: distance of the risk from c plus that of the return from its ceiling, last fifth of training."
    yield ""
    heads = ["run", "lam_step", "seed", "miss", "reached", "overshoot of lambda", "stood still", "risk / c", "return"]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name in sorted(results, key=lambda name: (not name.startswith("tune"), name)):
        for lane in results[name]["lanes"]:
            path, c = lane["path"], lane["constraints"][0]
            step = lane.get("point", {}).get("dual.lam_step", lane.get("lam_step"))
            row = [name, "-" if step is None else f"{step:g}", str(lane["seed"]), f"{path['miss']:.3f}"]
            row += ["never" if path["reached"] is None else f"{path['reached']:,}"]
            row += ["-" if path["overshoot"] is None else f"{path['overshoot']:.2f}"]
            row += ["yes" if path["stood_still"] else "no"]
            row += [f"{c['sampled']['risk_value'] / c['threshold']:.3f}", f"{lane['eval_sampled']['reward_mean']:.0f}"]
            yield "| " + " | ".join(row) + " |"


TABLES = {
    "study": study,
    "velocity": velocity,
    "velocity_v1": velocity,
    "averse_objective": averse_objective,
    **dict.fromkeys(("frontier", "per_step_or_return", "utilities"), tails),
}
