"""Re-reads the committed results and prints the claims with pass or miss; exit 0 only if all pass.

python experiments/check.py   # --write also leaves all lanes and claims in results.md, tables in README and docs
"""

import argparse
import json
from collections.abc import Iterator
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import tables
from run import HERE, ceiling, weight

from riskppo_jax.traps import STILL

T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776}  # two-sided quantiles of Student's t, by degrees of freedom
BENCHMARK = 0.025  # cost of a step that Safety-Gymnasium's own limit allows: 25 in an episode of 1000
UNCONSTRAINED_RISK = 0.5  # share of unconstrained PPO's cost that a constrained policy may keep, random layouts

Summary = dict[str, Any]
Claim = tuple[str, bool, str]  # what is claimed, whether it holds, the numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="leave tables and claims in results.md, README and docs")
    args = parser.parse_args()
    claims, text = judged()
    for name, what, holds, numbers in claims:
        print(f"{'pass' if holds else 'MISS'}  {name:<30} {what:<52} {numbers}")
    missed = sum(not holds for _, _, holds, _ in claims)
    print(f"check: claims={len(claims)} passed={len(claims) - missed} missed={missed}")
    if args.write:
        (HERE / "results.md").write_text(text)
        tables.write()
    return 1 if missed or not claims else 0


def judged() -> tuple[list[tuple[str, str, bool, str]], str]:
    """All claims, each with the result it is about, and results.md as the files have it now."""
    claims, text = [], ["# Results", "", "Written by `python experiments/check.py --write` from the JSON files here."]
    for part, judge in JUDGES.items():
        results = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / part).glob("*.json"))}
        if not results:
            print(f"none  {part:<30} no results yet")
            continue
        own = [(f"{part}/{name}", *claim) for name, *claim in judge(results)]
        claims += own
        text += ["", f"## {part}", "", *TABLES.get(part, table)(results), ""]
        text += ["| | of | claim | numbers |", "|---|---|---|---|"]
        text += [f"| {'pass' if holds else '**miss**'} | {name} | {what} | {numbers} |"
                 for name, what, holds, numbers in own]  # fmt: skip
    return claims, "\n".join(text) + "\n"


def table(results: dict[str, Summary]) -> Iterator[str]:
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


def velocity(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """The paper's claims about each robot, over all seeds that were run."""
    for name, summary in results.items():
        lanes = summary["lanes"]
        limits = [lane["constraints"][0] for lane in lanes]
        off = [abs(-c["t"] - c["sampled"]["quantile"]) / c["sampled"]["quantile"] for c in limits]
        near = median(off) <= 0.01 and max(off) <= 0.03
        yield name, "-t within 1% of the quantile (median), none beyond 3%", near, shares(off)
        upper = [c["risk_value_ci"][1] / c["threshold"] for c in limits]
        yield name, "upper bound of CVaR <= 1.01 c, mean action", max(upper) <= 1.01, shares(upper)
        reward = [lane["eval"]["reward_mean"] / ceiling(summary) for lane in lanes]
        high = min(reward) >= 0.95 and median(reward) >= 0.97
        yield name, "reward >= 95% of its ceiling (97% median)", high, shares(reward)
        drifts = [lane["lam_last_fifth"]["drift"] for lane in lanes]
        within = abs(mean(drifts)) <= T_95[len(drifts) - 1] * stdev(drifts) / len(drifts) ** 0.5
        yield name, "lambda's slope over the last fifth: 0 over seeds (95%)", within, signed(drifts)
        steady = [abs(lane["lam_last_fifth"]["drift"]) / max(lane["lam_last_fifth"]["mean"], 1e-9) for lane in lanes]
        yield name, "lambda drifts by < 10% of itself there, in every seed", max(steady) < 0.1, shares(steady)
        length = [lane["eval"]["length_mean"] for lane in lanes]
        yield name, "episodes of full length (> 950)", min(length) > 950, " ".join(f"{x:.0f}" for x in length)


def velocity_table(results: dict[str, Summary]) -> Iterator[str]:
    """Every lane, where its reward went, and what its run could have returned instead of the last average."""
    yield from table(results)
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
    yield "The iterate returned, as return at risk / c, by the evaluation points on the way (two episodes each);"
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


def navigation_fixed(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """The paper's table: no cost at all, and at least its reward, in every seed; and the limits we added to that."""
    for name, summary in results.items():
        task, _, algo = name.partition("-")
        if algo != "riskppo":
            continue
        cost = [lane["eval"]["cost_mean"] for lane in summary["lanes"]]
        yield name, "no cost in 100 episodes", max(cost) == 0.0, shares(cost)
        reward = [lane["eval"]["reward_mean"] for lane in summary["lanes"]]
        floor = tables.PAPER[task]
        yield name, f"reward at least the paper's {floor}", min(reward) >= floor, shares(reward)
        for own in zip(*(lane["constraints"][1:] for lane in summary["lanes"]), strict=True):
            limit = f"{own[0]['risk']['name']} of {own[0]['name']} <= {own[0]['threshold']:g} (1%), mean action"
            yield name, limit, all(c["satisfied"] for c in own), signed([c["risk_value"] for c in own])


def navigation_random(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """With a new layout in every episode: the limit, and what is left of unconstrained PPO's cost."""
    for name, summary in results.items():
        task, _, algo = name.partition("-")
        if algo != "riskppo":
            continue
        upper = [lane["constraints"][0]["risk_value_ci"][1] / BENCHMARK for lane in summary["lanes"]]
        measure = summary["lanes"][0]["constraints"][0]["risk"]["name"]
        yield name, f"upper bound of its {measure} <= 1.01 x 25 in 1000, mean action", max(upper) <= 1.01, shares(upper)
        free = results.get(f"{task}-ppo")
        if free:
            cost = mean(lane["eval"]["cost_mean"] for lane in summary["lanes"])
            unconstrained = mean(lane["eval"]["cost_mean"] for lane in free["lanes"])
            holds = cost <= UNCONSTRAINED_RISK * unconstrained
            yield name, "at most half of unconstrained PPO's cost", holds, f"{cost:.1f} of {unconstrained:.1f}"


def frontier(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """At the same limit a more averse measure leaves less mean, while the risk itself stays at the limit."""
    for name, summary in results.items():
        by_beta: dict[float, list[dict[str, Any]]] = {}
        for lane in summary["lanes"]:
            by_beta.setdefault(lane["point"]["risk.beta"], []).append(lane["constraints"][0])
        betas = sorted(by_beta)
        means = [mean(c["mean"] / c["threshold"] for c in by_beta[beta]) for beta in betas]
        rising = all(low <= high + 0.01 for low, high in pairwise(means))
        yield name, f"mean over c rises with beta {betas}", rising, shares(means)
        risks = [mean(c["risk_value"] / c["threshold"] for c in by_beta[beta]) for beta in betas]
        kept = all(0.93 <= risk <= 1.01 for risk in risks)
        yield name, "risk within [0.93 c, 1.01 c] at every beta", kept, shares(risks)


def two_constraints(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """Both limits at once."""
    for name, summary in results.items():
        for i, constraint in enumerate(summary["lanes"][0]["constraints"]):
            own = [lane["constraints"][i] for lane in summary["lanes"]]
            upper = [c["risk_value_ci"][1] / c["threshold"] for c in own]
            yield name, f"upper bound of {constraint['name']}'s CVaR <= 1.01 c", max(upper) <= 1.01, shares(upper)


def per_step_or_return(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """Which way of constraining keeps the worst 30% of steps below c; the others bound something else."""
    limits = {name: [c for lane in found["lanes"] for c in lane["constraints"][:1]] for name, found in results.items()}
    worst = {name: [c["steps"]["cvar_0.3"] / c["threshold"] for c in own] for name, own in limits.items() if own}
    own = worst.pop("riskppo", None)
    if own:
        yield "riskppo", "CVaR of a step within 1.01 c", max(own) <= 1.01, shares(own)
    for name, values in worst.items():
        yield name, "CVaR of a step beyond c, as nothing bounds it", min(values) > 1.0, shares(values)


def tails_table(results: dict[str, Summary]) -> Iterator[str]:
    """The law of a step's quantity side by side, mean actions; the first run's limit serves all."""
    yield from table(results)
    if any("steps" not in c for found in results.values() for lane in found["lanes"] for c in lane["constraints"]):
        return
    yield ""
    limit = next(iter(results.values()))["lanes"][0]["constraints"][0]["threshold"]
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


def averse_objective(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """A risk-averse objective gives up mean reward for its worst steps, under the same constraint."""
    for name, summary in results.items():
        upper = [lane["constraints"][0]["risk_value_ci"][1] / lane["constraints"][0]["threshold"]
                 for lane in summary["lanes"]]  # fmt: skip
        yield name, "upper bound of CVaR <= 1.01 c, mean action", max(upper) <= 1.01, shares(upper)
        speed = [lane["constraints"][0]["mean"] / lane["constraints"][0]["threshold"] for lane in summary["lanes"]]
        yield name, "moves: mean above half of c in every lane", min(speed) > 0.5, shares(speed)
        worst = worst_rewards(summary)
        better = [averse > neutral for averse, neutral in zip(worst[0.3], worst[1.0], strict=True)]
        words = "; ".join(shares(values) for values in worst.values())
        yield name, "worst 30% of rewards higher than under the mean, each seed", all(better), words


def worst_rewards(summary: Summary) -> dict[float, list[float]]:
    """Mean of the worst 30% of step rewards, seed by seed, by the beta that was the objective's."""
    by_beta: dict[float, list[float]] = {}
    for lane in summary["lanes"]:
        by_beta.setdefault(lane["point"]["objective.beta"], []).append(-lane["objective"]["losses"]["cvar_0.3"])
    return by_beta


def averse_table(results: dict[str, Summary]) -> Iterator[str]:
    """Every lane, and what the objective says of it."""
    yield from table(results)
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


def utilities(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """Limits that bind at the same speeds: each measure keeps its own, and the means are alike."""
    means = {name: mean(lane["constraints"][0]["mean"] for lane in found["lanes"]) for name, found in results.items()}
    for name, summary in results.items():
        over = [lane["constraints"][0]["risk_value"] / lane["constraints"][0]["threshold"] for lane in summary["lanes"]]
        yield name, "risk within [0.93 c, 1.01 c]", all(0.93 <= x <= 1.01 for x in over), shares(over)
        if name != "cvar" and "cvar" in means:
            ratio = means[name] / means["cvar"]
            yield name, "mean speed within 5% of CVaR's", abs(ratio - 1.0) <= 0.05, f"{ratio:.3f}"


def study(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """The rule that is the default, against the others at their best setting, on seeds nobody tuned on."""
    paths = {name: [lane["path"] for lane in summary["lanes"]] for name, summary in results.items()}
    for name in sorted(name for name in paths if name.endswith("-pi") and not name.startswith(("tune", "trap"))):
        robot = name.removesuffix("-pi")
        reached = [path["reached"] for path in paths[name]]
        words = " ".join("never" if steps is None else f"{steps:,}" for steps in reached)
        yield name, "within 2% of both targets for good, every seed", None not in reached, words
        own = mean(path["miss"] for path in paths[name])
        others = {
            rule.removeprefix(f"{robot}-"): mean(path["miss"] for path in found)
            for rule, found in paths.items()
            if rule.startswith(f"{robot}-") and rule != name
        }
        words = f"{own:.3f}; " + " ".join(f"{rule} {value:.3f}" for rule, value in others.items())
        yield name, "misses less than every other rule", own <= min(others.values(), default=own), words
    for name in sorted(name for name in results if name.startswith("trap-")):
        rests: dict[float, list[bool]] = {}
        for lane in results[name]["lanes"]:
            c = lane["constraints"][0]
            rests.setdefault(lane["point"]["dual.lam_step"], []).append(c["mean"] < STILL * c["threshold"])
        words = " ".join(f"{step:g}: {sum(lanes)} of {len(lanes)}" for step, lanes in rests.items())
        yield name, "at the end no seed rests, whatever the step", not any(map(any, rests.values())), words


def study_table(results: dict[str, Summary]) -> Iterator[str]:
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


def transfer(results: dict[str, Summary]) -> Iterator[tuple[str, str, bool, str]]:
    """The other engine and plain NumPy say the same of a policy."""
    for name, found in results.items():
        native, mjx = found["engines"]["native"], found["engines"]["mjx"]
        off = [abs(mjx[key] / native[key] - 1.0) for key in ("reward", "risk_value")]
        yield name, "reward and risk within 2% on the other engine", max(off) <= 0.02, shares(off)
        error = found["numpy_action_error"]
        yield name, "exported actions within 1e-5", error <= 1e-5, f"{error:.1e}"


JUDGES = {
    "velocity": velocity,
    "velocity_v1": velocity,
    "navigation_fixed": navigation_fixed,
    "navigation_random": navigation_random,
    "navigation_500": navigation_fixed,
    "frontier": frontier,
    "two_constraints": two_constraints,
    "per_step_or_return": per_step_or_return,
    "averse_objective": averse_objective,
    "utilities": utilities,
    "study": study,
    "transfer": transfer,
}
TABLES = {
    "study": study_table,
    "velocity": velocity_table,
    "velocity_v1": velocity_table,
    "averse_objective": averse_table,
    **dict.fromkeys(("frontier", "per_step_or_return", "utilities"), tails_table),
}


def signed(values: list[float]) -> str:
    return " ".join(f"{value:+.3f}" for value in values)


def shares(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    raise SystemExit(main())
