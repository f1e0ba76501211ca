"""From `sweep.*` settings to the points of a grid: which settings can be swept, by what names, over which values."""

import dataclasses
import difflib
import itertools
import math
from collections.abc import Mapping
from typing import Any

from riskppo_jax import sgda
from riskppo_jax.config import PPOHypers
from riskppo_jax.errors import UserError
from riskppo_jax.settings import Settings, known_settings

Point = dict[str, Any]  # swept setting -> its value at one lane

_STARTS = ("lam_max", "lam_init", "t_init")
_PRECEDENCE = ("", "risk.", "ppo.", "dual.", "objective.")  # where a bare name is looked for


def traced_settings(settings: Settings) -> list[str]:
    """Every setting of this run that can be swept without compiling again."""
    names = ["seed", "threshold", "noise"]
    names += [f"{area}.{name}" for area in ("risk", "objective") for name in getattr(settings, area) if name != "name"]
    names += [f"ppo.{field.name}" for field in dataclasses.fields(PPOHypers)]
    return names + [f"dual.{name}" for name in (*(f.name for f in dataclasses.fields(sgda.DualHypers)), *_STARTS)]


def read_grid(settings: Settings) -> dict[str, list[Any]]:
    """`sweep.grid` under full names, each with the list of its values; `seed: N` becomes N seeds in a row."""
    grid: dict[str, list[Any]] = {}
    for given, values in _flat(settings.sweep.grid).items():
        name = _full_name(given, settings)
        if name in grid:
            raise UserError(f"sweep.{given}: {name} is swept already; accepts one list for each setting")
        grid[name] = _values(name, values, settings)
    return grid


def points(grid: Mapping[str, list[Any]]) -> list[Point]:
    """The product of all lists, the last one turning fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())] if grid else []


def at_point(settings: Settings, point: Point) -> Settings:
    """The settings of the single run that is this lane."""
    own = dataclasses.replace(
        settings,
        risk=dict(settings.risk),
        objective=dict(settings.objective),
        ppo=dataclasses.replace(settings.ppo),
        dual=dataclasses.replace(settings.dual),
        sweep=dataclasses.replace(settings.sweep, grid={}),
    )
    for name, value in point.items():
        area, _, key = name.rpartition(".")
        target = getattr(own, area) if area else own
        if isinstance(target, dict):
            target[key] = value
        else:
            setattr(target, key, value)
    return own


def describe(point: Point) -> str:
    """`risk.beta=0.1 seed=2`."""
    return " ".join(f"{name}={value}" for name, value in point.items())


def _full_name(given: str, settings: Settings) -> str:
    traced = traced_settings(settings)
    found = [given] if given in traced else [f"{area}{given}" for area in _PRECEDENCE if f"{area}{given}" in traced]
    if len(found) > 1 and found != [f"risk.{given}", f"objective.{given}"]:  # a risk's own, unless there is none
        raise UserError(f"sweep.{given} could be {' or '.join(found)}; accepts the full name")
    if found:
        return found[0]
    accepted = f"sweep accepts the traced ones: {', '.join(traced)}"
    if any(given == name or name.startswith(f"{given}.") for name in known_settings()):
        raise UserError(f"sweep.{given}: {given} is static, a new value means a new program (use -m); {accepted}")
    close = difflib.get_close_matches(given, [*traced, *(name.rpartition(".")[2] for name in traced)], n=1)
    raise UserError(f"sweep.{given}: {given} is no setting{f'; did you mean {close[0]}?' if close else ''}; {accepted}")


def _values(name: str, values: Any, settings: Settings) -> list[Any]:
    if name == "seed" and isinstance(values, int | float) and not isinstance(values, bool) and values == values // 1:
        if values < 1:
            raise UserError(f"sweep.seed={values}: accepts how many seeds, 1 or more, or a list of them")
        values = list(range(settings.seed, settings.seed + int(values)))
    values = list(values) if isinstance(values, list | tuple) else [values]
    if not values:
        raise UserError(f"sweep.{name}=[]: the grid is empty; accepts a list of values")
    area, _, key = name.rpartition(".")
    held = getattr(getattr(settings, area), key) if area in ("ppo", "dual") else None
    whole = name == "seed" or (isinstance(held, int) and not isinstance(held, bool))
    kept = [_value(name, value, whole) for value in values]
    repeated = next((value for i, value in enumerate(kept) if value in kept[:i]), None)
    if repeated is not None:
        raise UserError(f"sweep.{name}: {repeated} is there twice; accepts each value once")
    return kept


def _value(name: str, value: Any, whole: bool) -> Any:
    if isinstance(value, list | tuple) and name.startswith(("risk.", "objective.")):  # levels of a spectral risk
        return [_value(name, item, whole) for item in value]
    number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if not number or (whole and (math.isinf(value) or value != int(value))):
        raise UserError(f"sweep.{name}: {value!r} is not {'a whole number' if whole else 'a number'}; "
                        "accepts a list of them")  # fmt: skip
    if name == "seed" and not 0 <= value < 2**32:
        raise UserError(f"sweep.seed: {value} is out of range; accepts whole numbers from 0 to {2**32 - 1}")
    return int(value) if whole else float(value)


def _flat(grid: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in grid.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
