"""Options of environments: which names a task knows, and which values they accept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from numbers import Integral, Real
from typing import Any

from riskppo_jax.errors import UserError


@dataclass(frozen=True)
class Option:
    """A setting with its default, a test for values, and a word on what it accepts."""

    default: Any
    accepts: str
    test: Callable[[Any], bool]


def read_options(id: str, known: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every known option, as given or by default; complains about unknown names and values."""
    for name, value in given.items():
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            names = ", ".join(known) or "no options"
            raise UserError(f"{name}={value} is not an option of {id}, which accepts {names}{hint}")
        if not known[name].test(value):
            raise UserError(f"{name}={value!r}: {name} accepts {known[name].accepts}")
    return {name: given.get(name, option.default) for name, option in known.items()}


def choice(default: str, *others: str) -> Option:
    """An option that takes one of a few words."""
    values = (default, *others)
    return Option(default, " or ".join(values), lambda value: isinstance(value, str) and value in values)


def flag(default: bool) -> Option:
    """An option that is on or off."""
    return Option(default, "true or false", lambda value: isinstance(value, bool))


def _count_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, Integral) and not isinstance(value, bool) and value > 0)


def _non_negative(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value) and value >= 0


VELOCITY = {
    "time_limit": Option(1000, "a positive number of steps, or null", _count_or_none),
    "noise": Option(0.0, "a standard deviation >= 0", _non_negative),
    "clip_actions": flag(False),
    "reset": choice("random", "fixed"),
    "thresholds": choice("v1", "paper"),
    "speed": Option(
        None,
        "signed, abs or planar, or null for what the benchmark charges for",
        lambda value: value is None or (isinstance(value, str) and value in ("signed", "abs", "planar")),
    ),
    "auto_reset": flag(True),
}


def navigation(limit: int, kinds: tuple[str, ...]) -> dict[str, Option]:
    """Options of a navigation task.

    Args:
      limit: its registered number of steps.
      kinds: objects of which there may be more or fewer.
    """
    options = {
        "time_limit": Option(limit, "a positive number of steps, or null", _count_or_none),
        "noise": VELOCITY["noise"],
        "clip_actions": flag(True),
        "reset": choice("random", "fixed"),
        "layout_seed": Option(0, "a whole number from 0 to 2^32 - 1", lambda seed: _whole(seed) and seed < 2**32),
        "thresholds": choice("v1", "paper"),
        "auto_reset": flag(True),
    }
    if "gremlins" in kinds:
        options["button_timer"] = Option(0, "a whole number of steps >= 0", _whole)
    few = f"a whole number from 0 to {_MANY}, or null for the task's own"
    return options | {kind: Option(None, few, lambda n: n is None or (_whole(n) and n <= _MANY)) for kind in kinds}


_MANY = 100


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 0
