"""What is claimed of the results, whether it holds, and the numbers: a function for each part."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Any

import tables
from run import ceiling

from riskppo_jax.traps import STILL

T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776}  # two-sided quantiles of Student's t, by degrees of freedom
BENCHMARK = 0.025  # cost of a step that Safety-Gymnasium's own limit allows: 25 in an episode of 1000
UNCONSTRAINED_RISK = 0.5  # share of unconstrained PPO's cost that a constrained policy may keep, random layouts

Summary = dict[str, Any]
Claims = Iterator[tuple[str, str, bool, str]]  # of which result, what is claimed, whether it holds, the numbers


def velocity(results: dict[str, Summary]) -> Claims:
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


def navigation_fixed(results: dict[str, Summary]) -> Claims:
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


def navigation_random(results: dict[str, Summary]) -> Claims:
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


def frontier(results: dict[str, Summary]) -> Claims:
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


def two_constraints(results: dict[str, Summary]) -> Claims:
    """Both limits at once."""
    for name, summary in results.items():
        for i, constraint in enumerate(summary["lanes"][0]["constraints"]):
            own = [lane["constraints"][i] for lane in summary["lanes"]]
            upper = [c["risk_value_ci"][1] / c["threshold"] for c in own]
            yield name, f"upper bound of {constraint['name']}'s CVaR <= 1.01 c", max(upper) <= 1.01, shares(upper)


def per_step_or_return(results: dict[str, Summary]) -> Claims:
    """Which way of constraining keeps the worst 30% of steps below c; the others bound something else."""
    limits = {name: [c for lane in found["lanes"] for c in lane["constraints"][:1]] for name, found in results.items()}
    worst = {name: [c["steps"]["cvar_0.3"] / c["threshold"] for c in own] for name, own in limits.items() if own}
    own = worst.pop("riskppo", None)
    if own:
        yield "riskppo", "CVaR of a step within 1.01 c", max(own) <= 1.01, shares(own)
    for name, values in worst.items():
        yield name, "CVaR of a step beyond c, as nothing bounds it", min(values) > 1.0, shares(values)


def averse_objective(results: dict[str, Summary]) -> Claims:
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


def utilities(results: dict[str, Summary]) -> Claims:
    """Limits that bind at the same speeds: each measure keeps its own, and the means are alike."""
    results = {name: found for name, found in results.items() if name != "start"}
    means = {name: mean(lane["constraints"][0]["mean"] for lane in found["lanes"]) for name, found in results.items()}
    for name, summary in results.items():
        over = [lane["constraints"][0]["risk_value"] / lane["constraints"][0]["threshold"] for lane in summary["lanes"]]
        yield name, "risk within [0.93 c, 1.01 c]", all(0.93 <= x <= 1.01 for x in over), shares(over)
        if name != "cvar" and "cvar" in means:
            ratio = means[name] / means["cvar"]
            yield name, "mean speed within 5% of CVaR's", abs(ratio - 1.0) <= 0.05, f"{ratio:.3f}"


def study(results: dict[str, Summary]) -> Claims:
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


def transfer(results: dict[str, Summary]) -> Claims:
    """The other engine and plain NumPy say the same of a policy."""
    for name, found in results.items():
        native, mjx = found["engines"]["native"], found["engines"]["mjx"]
        off = [abs(mjx[key] / native[key] - 1.0) for key in ("reward", "risk_value")]
        yield name, "reward and risk within 2% on the other engine", max(off) <= 0.02, shares(off)
        error = found["numpy_action_error"]
        yield name, "exported actions within 1e-5", error <= 1e-5, f"{error:.1e}"


def signed(values: list[float]) -> str:
    return " ".join(f"{value:+.3f}" for value in values)


def shares(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


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
