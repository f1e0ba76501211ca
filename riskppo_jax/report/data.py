"""What the page draws, as plain JSON: curves, histograms, groups over seeds, the frontier's points."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from riskppo_jax import stats
from riskppo_jax.errors import UserError
from riskppo_jax.report.words import plain_symbol, verdict
from riskppo_jax.runs import LAWS, Lane, Run, best_t, describe_point, groups, has_t
from riskppo_jax.settings import OPEN, differences, read_settings, to_dict

_POINTS = 300  # of a curve
_BINS = 60
# where a run was written says nothing about it; `log.every` does, the run is cut into chunks of that size
_SKIPPED = ("output", "resume", "report", "log.tensorboard", "log.wandb", "log.project", "checkpoint.")


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything the page's script needs."""
    lanes = [_lane(k, run, lane, len(runs) > 1) for k, run in enumerate(runs) for lane in run.lanes]
    return {"lanes": lanes, "groups": _groups(runs)}


def lane_label(run: Run, lane: Lane, several: bool) -> str:
    """`run: beta 0.1, seed 2`; the run is named where there is more than one."""
    point = describe_point(lane.point) or f"lane {lane.index}"
    return f"{run.name}: {point}" if several else point


def preset_differences(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings in which a run departs from the preset of its task, algorithm and risk: name, preset, run."""
    words = [f"env={config['env'].get('id')}", f"algo={config['algo']}"]
    words += [f"{area}={config[area]['name']}" for area in ("risk", "objective") if config.get(area, {}).get("name")]
    try:
        preset = to_dict(read_settings(words))
    except UserError:  # a task that only the run's own script knows
        preset = to_dict(read_settings([word for word in words if not word.startswith("env=")]))
        preset["env"] = dict(config["env"])
    found = differences(_asked_for(preset, config), config)
    return [(name, old, new) for name, (old, new) in found.items() if not name.startswith(_SKIPPED)]


def _asked_for(preset: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The preset without settings that came after the run; mappings that depend on a choice stay whole."""
    kept = {}
    for key, value in preset.items():
        if key in config:
            inside = isinstance(value, Mapping) and isinstance(config[key], Mapping) and key not in OPEN
            kept[key] = _asked_for(value, config[key]) if inside else value
    return kept


def command(config: Mapping[str, Any]) -> str:
    """A command that asks for the same run again."""
    words = [f"env={config['env'].get('id')}", f"algo={config['algo']}"]
    words += [f"{area}={config[area]['name']}" for area in ("risk", "objective") if config.get(area, {}).get("name")]
    words = [word for word in words if word != "objective=mean"]  # which is the default
    for name, _, value in preset_differences(config):
        name = name.replace("sweep.grid.", "sweep.")  # as people write it
        if isinstance(value, Mapping):
            words += [f"{name}.{key}={_value(item)}" for key, item in value.items()]
        else:
            words.append(f"{name}={_value(value)}")
    return shlex.join(["riskppo", "train", *dict.fromkeys(words)])


def grid(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Curves over seeds on one grid of steps: `steps [p]`, `values [seed, p]`, over the range all of them cover."""
    curves = [(steps, values) for steps, values in curves if len(steps) > 1]
    if not curves:
        return np.zeros(0), np.zeros((0, 0))
    low, high = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    longest = max((steps for steps, _ in curves), key=len)
    steps = longest[(longest >= low) & (longest <= high)]
    return steps, np.array([np.interp(steps, *curve) for curve in curves])


def only(values: float | Sequence[float], sign: float = 1.0) -> float | None:
    """The one value there is; None of a measure with several t, which have no place on the axis of its quantity."""
    found = np.ravel(values)
    return sign * float(found[0]) + 0.0 if len(found) == 1 else None


def step_t(constraint: Mapping[str, Any]) -> float | None:
    """`-t` on the axis of a step's quantity; None where it has no place there, or is not about these steps."""
    return None if {*LAWS, "deployed_after"} & constraint.keys() else only(constraint["t"], -1.0)


def over_limit(constraint: Mapping[str, Any]) -> float | None:
    """Risk over its limit, above 1 where that is broken: `1 + (risk - c)/|c|`, for a limit below 0 as well."""
    c = constraint["threshold"]
    return 1 + (constraint["risk_value"] - c) / abs(c) if c else None


def over_seeds(lanes: Sequence[Lane]) -> dict[str, Any] | None:
    """What a group of seeds achieved: return with interval, constraints kept, and the largest risk over its limit."""
    found = list({lane.found["seed"]: lane.found for lane in lanes if lane.found}.values())  # each seed once
    if not found:
        return None
    returns = np.array([[lane["eval"]["reward_mean"]] for lane in found], float)
    interval = None
    if len(returns) >= 3 and np.isfinite(returns).all():
        interval = [float(x) for x in stats.bootstrap_interval(stats.interquartile_mean, returns, resamples=500)]
    constraints = [c for lane in found for c in lane["constraints"]]
    ratios = [ratio for c in constraints if (ratio := over_limit(c)) is not None]
    return {
        "seeds": len(found),
        "iqm": stats.interquartile_mean(returns) if np.isfinite(returns).all() else float("nan"),
        "interval": interval,
        "constraints": len(constraints),
        "kept": sum(verdict(c).mark != "broken" for c in constraints),
        "ratio": max(ratios) if ratios else None,
    }


def _lane(k: int, run: Run, lane: Lane, several: bool) -> dict[str, Any]:
    steps, values, kind = lane.reward_curve()
    evaluated = lane.found.get("eval", {})
    return {
        "run": k,
        "lane": lane.index,
        "label": lane_label(run, lane, several),
        "env": run.env,
        "algo": run.algo,
        "point": lane.point,
        "reward": evaluated.get("reward_mean"),
        "reward_std": evaluated.get("reward_std"),
        "reward_after": lane.found.get("chosen", {}).get("env_steps"),  # where the policy was taken from
        "reward_curve": {**_thin(steps, value=values), "kind": kind},
        "constraints": _constraints(lane),
    }


def _constraints(lane: Lane) -> list[dict[str, Any]]:
    """Of the final evaluation; while a run goes on, of its newest log point."""
    if lane.found:
        return [_constraint(i, lane, c) for i, c in enumerate(lane.found["constraints"])]
    last = lane.points[-1] if lane.points else {}
    found = []
    for i in range(sum(name.startswith("constraint") and name.endswith("/lam") for name in last)):
        now = {name.split("/")[1]: value for name, value in last.items() if name.startswith(f"constraint{i}/")}
        nan = float("nan")
        known = {key: nan if now.get(key) is None else now[key] for key in ("threshold", "risk", "t", "t_batch", "lam")}
        quantile = (-np.atleast_1d(known["t_batch"])).tolist()
        c = {"name": f"constraint {i + 1}", "threshold": known["threshold"], "risk": {"name": "risk"},
             "risk_value": known["risk"], "risk_value_ci": [nan, nan], "quantile": quantile, "t": known["t"],
             "lam": known["lam"]}  # fmt: skip
        found.append(_constraint(i, lane, c))
    return found


def _constraint(i: int, lane: Lane, c: Mapping[str, Any]) -> dict[str, Any]:
    curves = {name: lane.curve(f"constraint{i}/{name}") for name in ("t", "t_batch", "risk", "lam")}
    tells = has_t(c["risk"])
    if not tells:
        curves |= dict.fromkeys(("t", "t_batch"), (np.zeros(0), np.zeros(0)))
    eased = lane.eased_limit(i)
    if eased:
        curves["limit"] = eased
    drawn = {name: _thin(steps, value=values) for name, (steps, values) in curves.items()}
    return {
        "name": c["name"],
        "symbol": plain_symbol(c["risk"]),
        "threshold": c["threshold"],
        "risk": c["risk_value"],
        "ci": c["risk_value_ci"],
        "best_t": best_t(c["risk"]),
        "quantile": only(c["quantile"]) if tells else None,
        "minus_t": step_t(c) if tells else None,
        "lam": c["lam"],
        "mark": verdict(c).mark,
        "curves": drawn,
        "histogram": _histogram(lane.samples.get(c["name"]), c["threshold"]),
    }


def _groups(runs: Sequence[Run]) -> list[dict[str, Any]]:
    found = []
    for label, lanes in groups(runs).items():
        steps, values = grid([lane.reward_curve()[:2] for lane in lanes])
        if not len(steps):
            continue
        found.append(
            {
                "label": label,
                "seeds": len(values),
                **_thin(steps, mean=values.mean(0), low=values.min(0), high=values.max(0)),
            }
        )
    return found


def _thin(steps: np.ndarray, **columns: np.ndarray) -> dict[str, list[float]]:
    """At most `_POINTS` of a curve, evenly chosen, the last one among them; five digits are enough to draw."""
    keep = np.unique(np.linspace(0, max(len(steps) - 1, 0), min(len(steps), _POINTS)).round().astype(int))
    return {name: _digits(column[keep]) for name, column in {"steps": steps, **columns}.items()}


def _histogram(samples: np.ndarray | None, threshold: float) -> dict[str, list[float]] | None:
    samples = np.zeros(0) if samples is None else samples[np.isfinite(samples)]
    if not len(samples):
        return None
    low, high = np.quantile(samples, [0.0005, 0.9995])
    low, high = min(low, threshold), max(high, threshold)
    pad = 0.02 * (high - low) or 0.5
    density, edges = np.histogram(samples, bins=_BINS, range=(low - pad, high + pad), density=True)
    return {"density": _digits(density), "edges": _digits(edges)}


def _digits(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_value(item)}" for key, item in value.items()) + "}"
    return str(value)
