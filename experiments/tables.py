"""The tables of results that README and docs show, made from the JSON files here.

`python experiments/check.py --write` puts each between its marks, `<!-- table NAME -->` and `<!-- end -->`, on the
pages that have them; a test holds the pages against the files. Published numbers stand below, ours do not.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from run import HERE, PARTS, ROBOTS, TASKS, ceiling

PAGES = [HERE.parent / name for name in ("README.md", "docs/results.md", "experiments/README.md")]
MARKED = re.compile(r"<!-- table ([\w-]+) -->.*?<!-- end -->", re.S)

PAPER = {"goal1": 13.56, "button1": 2.58, "push1": 2.42, "circle1": 39.19}  # return at no cost, 500 steps
# OmniSafe after ten million steps. Velocity: return of PPO-Lagrangian, and of the best method within the limit
OMNISAFE = {"hopper": (962, 1716), "halfcheetah": (2946, 2965), "walker2d": (2982, 3207), "swimmer": (65, 91),
            "ant": (3262, 3262), "humanoid": (6624, 6624)}  # fmt: skip
# navigation: return at cost of PPO-Lagrangian, CPO, CPPO-PID and the best within 25
OMNISAFE_NAVIGATION = {"goal1": ("13.0 at 26", "20.5 at 29", "8.4 at 26", "19.2 at 21"),
                       "button1": ("4.6 at 21", "4.0 at 40", "1.2 at 29", "4.6 at 21")}  # fmt: skip

Summary = dict[str, Any]
Rows = Iterator[Sequence[str]]  # the first one is the heads


def velocity_short() -> Rows:
    yield ("robot", "c", "return", "median / ceiling", "CVaR / c", "-t off the quantile, at most")
    for name, found in _runs("velocity", ("hopper", "walker2d", "halfcheetah", "swimmer")):
        row = _velocity(found)
        shown = ("c", "return", "share", "risk", "off")
        yield (_robot(name), *(row[key] for key in shown))


def velocity() -> Rows:
    yield ("robot", "c", "return", "ceiling", "median / ceiling", "CVaR / c", "the same, sampled actions",
           "-t off the quantile of sampled actions, at most", "shortest mean episode", "lambda", "steps",
           "minutes")  # fmt: skip
    for name, found in _runs("velocity", ("hopper", "walker2d", "halfcheetah", "swimmer")):
        row = _velocity(found)
        shown = ("c", "return", "ceiling", "share", "risk", "sampled", "off", "length", "lam", "steps", "minutes")
        yield (_robot(name), *(row[key] for key in shown))


def velocity_v1() -> Rows:
    yield ("robot", "c", "return, three seeds", "ceiling", "CVaR / c", "shortest mean episode", "steps",
           "PPO-Lagrangian", "best published")  # fmt: skip
    for name, found in _runs("velocity_v1", ("hopper", "halfcheetah", "walker2d", "swimmer", "ant", "humanoid")):
        row = _velocity(found)
        shown = ("c", "return", "ceiling", "risk", "length", "steps")
        yield (_robot(name), *(row[key] for key in shown), *map(str, OMNISAFE[name]))


def navigation_fixed() -> Rows:
    yield ("task", "the paper prints, 500 steps", "ours, 500 steps", "ours, the registered 1000 steps",
           "unconstrained PPO, ours, 1000 steps")  # fmt: skip
    fixed, short = dict(_runs("navigation_fixed")), dict(_runs("navigation_500"))
    for task in map(str.lower, TASKS):
        ours, free = fixed[f"{task}-riskppo"], fixed.get(f"{task}-ppo")
        cells = [f"{PAPER[task]} at none"]
        if task == "circle1":
            cells += [_earned(ours), "registered with 500", f"{_earned(free)}, 500 steps"]
        else:
            cells += [_earned(short[f"{task}-riskppo"]), _earned(ours), _earned(free)]
        yield (_task(task), *cells)


def navigation_random() -> Rows:
    yield ("task", "limit", "steps", "ours", "unconstrained PPO, ours", "OmniSafe: PPO-Lagrangian", "CPO", "CPPO-PID",
           "best within 25")  # fmt: skip
    runs = dict(_runs("navigation_random"))
    for task in map(str.lower, TASKS):
        ours = runs[f"{task}-riskppo"]
        c = ours["lanes"][0]["constraints"][0]
        measure = c["risk"]["name"] + (f" {c['risk']['beta']:g}" if "beta" in c["risk"] else "")
        published = OMNISAFE_NAVIGATION.get(task, ("-",) * 4)
        limit = f"{measure.replace('cvar', 'CVaR')} <= {c['threshold']:g}"
        own = _earned(runs[f"{task}-ppo"], minutes=False)
        yield (_task(task), limit, _millions(ours), _costs(ours), own, *published)


def frontier() -> Rows:
    yield ("beta", "return", "mean speed / c", "risk / c", "mean of the worst 5% of steps / c", "steps above c")
    lanes: dict[float, list[Summary]] = {}
    for lane in dict(_runs("frontier"))["hopper"]["lanes"]:
        lanes.setdefault(lane["point"]["risk.beta"], []).append(lane)
    for beta, own in sorted(lanes.items()):
        c = own[0]["constraints"][0]["threshold"]
        tail = [_law(lane, c) for lane in own]
        risk = [lane["constraints"][0]["risk_value"] / c for lane in own]
        yield (f"{beta:g}", _whole(_returns(own)), _thousandths(t["mean"] for t in tail), _thousandths(risk),
               _thousandths(t["worst"] for t in tail), _percents(t["above"] for t in tail))  # fmt: skip


def per_step_or_return() -> Rows:
    yield ("`algo`", "return", "length", "mean speed / c", "mean of the worst 30% of steps / c", "steps above c")
    runs = dict(_runs("per_step_or_return"))
    c = runs["riskppo"]["lanes"][0]["constraints"][0]["threshold"]
    for name in ("riskppo", "cvar_return", "ppo_lagrangian"):
        own = runs[name]["lanes"]
        tail = [_law(lane, c) for lane in own]
        yield (f"`{name}`", _whole(_returns(own)), _whole(lane["eval"]["length_mean"] for lane in own),
               _thousandths(t["mean"] for t in tail), _thousandths(t["tail"] for t in tail),
               _percents(t["above"] for t in tail))  # fmt: skip


def utilities() -> Rows:
    yield ("measure", "its limit", "return", "mean speed / 0.373", "mean of the worst 5% of steps / 0.373",
           "steps above 0.373")  # fmt: skip
    runs = dict(_runs("utilities"))
    c = runs["start"]["lanes"][0]["constraints"][0]["threshold"]
    for name in ("cvar", "soft_cvar", "monotone_quadratic", "entropic", "mean"):
        own = runs[name]["lanes"]
        tail = [_law(lane, c) for lane in own]
        found = own[0]["constraints"][0]
        numbers = [f"{key} {value:g}" for key, value in found["risk"].items() if key != "name"]
        measure = ", ".join([name.replace("_", " ").replace("cvar", "CVaR"), *numbers])
        yield (measure, f"{found['threshold']:.3f}", _whole(_returns(own)), _thousandths(t["mean"] for t in tail),
               _thousandths(t["worst"] for t in tail), _percents(t["above"] for t in tail))  # fmt: skip


def averse_objective() -> Rows:
    yield (
        "objective",
        "return",
        "mean reward of a step",
        "its worst 30%",
        "its worst 5%",
        "mean speed / c",
        "CVaR / c",
    )
    lanes: dict[float, list[Summary]] = {}
    for lane in dict(_runs("averse_objective"))["hopper"]["lanes"]:
        lanes.setdefault(lane["point"]["objective.beta"], []).append(lane)
    for beta, own in sorted(lanes.items()):
        cs = [lane["constraints"][0] for lane in own]
        worst = [[-lane["objective"]["losses"][f"cvar_{share:g}"] for lane in own] for share in (1.0, 0.3, 0.05)]
        speed = [[c[key] / c["threshold"] for c in cs] for key in ("mean", "risk_value")]
        name = f"CVaR {beta:g}" if beta < 1 else "the mean"
        yield (name, _whole(_returns(own)), *map(_thousandths, worst), *map(_thousandths, speed))


def times() -> Rows:
    yield ("part", "minutes on two cores for all seeds of a run, in brackets steps of each")
    for part in (*PARTS, "study"):
        took = [f"{name} {_minutes(found)} ({_millions(found)})" for name, found in _runs(part)]
        yield (part, ", ".join(took))


TABLES: dict[str, Callable[[], Rows]] = {
    "velocity-short": velocity_short,
    "velocity": velocity,
    "velocity-v1": velocity_v1,
    "navigation-fixed": navigation_fixed,
    "navigation-random": navigation_random,
    "frontier": frontier,
    "per-step-or-return": per_step_or_return,
    "utilities": utilities,
    "averse-objective": averse_objective,
    "times": times,
}


def fill(text: str) -> str:
    """A page with every marked table as the files have it now."""

    def made(found: re.Match[str]) -> str:
        table = "\n".join(_markdown(TABLES[found[1]]()))
        return f"<!-- table {found[1]} -->\n\n{table}\n\n<!-- end -->"

    return MARKED.sub(made, text)


def write() -> None:
    for page in PAGES:
        page.write_text(fill(page.read_text()))


def _markdown(rows: Rows) -> Iterator[str]:
    for i, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if i == 0:
            yield "|---" * len(row) + "|"


def _runs(part: str, names: Sequence[str] = ()) -> Iterator[tuple[str, Summary]]:
    paths = [HERE / part / f"{name}.json" for name in names] or sorted((HERE / part).glob("*.json"))
    return ((path.stem, json.loads(path.read_text())) for path in paths)


def _velocity(found: Summary) -> dict[str, str]:
    lanes, highest = found["lanes"], ceiling(found)
    cs = [lane["constraints"][0] for lane in lanes]
    limit = cs[0]["threshold"]
    off = max(abs(-c["t"] / c["sampled"]["quantile"] - 1.0) for c in cs)
    return {
        "c": f"{limit:g}",
        "return": ", ".join(f"{x:.0f}" for x in _three(_returns(lanes))),
        "ceiling": f"{highest:.0f}",
        "share": f"{median(_returns(lanes)) / highest:.1%}",
        "risk": _thousandths(_three([c["risk_value"] / limit for c in cs])),
        "sampled": _thousandths(_three([c["sampled"]["risk_value"] / limit for c in cs])),
        "off": f"{off:.1%}",
        "length": f"{min(lane['eval']['length_mean'] for lane in lanes):.0f}",
        "lam": ", ".join(f"{x:.2f}" for x in _three([c["lam"] for c in cs])),
        "steps": _millions(found),
        "minutes": _minutes(found),
    }


def _law(lane: Summary, c: float) -> dict[str, float]:
    """Of the constrained quantity over all steps: its mean and tails in units of `c`, and the share of steps above."""
    steps = lane["constraints"][0]["steps"]
    above = 1.0 - float(np.interp(c, steps["percentiles"], np.arange(101))) / 100.0
    return {"mean": steps["cvar_1"] / c, "tail": steps["cvar_0.3"] / c, "worst": steps["cvar_0.05"] / c, "above": above}


def _earned(found: Summary | None, minutes: bool = True) -> str:
    if found is None:
        return "-"
    took = f", {_minutes(found)} min" if minutes else ""
    took += " after those of 500" if "start_from=" in found["command"] else ""
    return f"{_costs(found)} ({_millions(found)}{took})"


def _costs(found: Summary) -> str:
    """Returns at costs of an episode, seed by seed."""
    costs = [lane["eval"]["cost_mean"] for lane in found["lanes"]]
    at = ", ".join(f"{x:.3g}" for x in costs) if any(costs) else "none"
    return f"{', '.join(f'{x:.3g}' for x in _returns(found['lanes']))} at {at}"


def _returns(lanes: Iterable[Summary]) -> list[float]:
    return [lane["eval"]["reward_mean"] for lane in lanes]


def _three(values: list[float]) -> tuple[float, float, float]:
    """Lowest, median and highest."""
    return min(values), median(values), max(values)


def _robot(name: str) -> str:
    return next(robot for robot in ROBOTS if robot.lower() == name)


def _task(name: str) -> str:
    return f"Point{name.capitalize()}"


def _millions(found: Summary) -> str:
    return f"{found['env_steps'] / 1e6:.2g}M"


def _minutes(found: Summary) -> str:
    return f"{max(found['wall_seconds'] / 60, 1):.0f}"


def _whole(values: Iterable[float]) -> str:
    return ", ".join(f"{x:.0f}" for x in values)


def _thousandths(values: Iterable[float]) -> str:
    return ", ".join(f"{x:.3f}" for x in values)


def _percents(values: Iterable[float]) -> str:
    return ", ".join(f"{x:.0%}" for x in values)
