"""Environments found by name."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from riskppo_jax.engines.base import ENGINES
from riskppo_jax.envs.base import Env
from riskppo_jax.envs.navigation import served
from riskppo_jax.envs.navigation.tables import COUNTED, LIMITS
from riskppo_jax.envs.options import VELOCITY, Option, navigation, read_options
from riskppo_jax.errors import UserError


@dataclass(frozen=True)
class Entry:
    """How an id becomes an environment: `make(engine=..., **options)` with every option it knows."""

    make: Callable[..., Env]
    options: Mapping[str, Option]
    engines: tuple[str, ...] = ("native", "mjx", "warp")


def make_env(id: str, engine: str = "auto", **options: Any) -> Env:
    """The environment called `id`, for one world; `jax.vmap` its `reset` and `step` for many.

    Args:
      id: one of `list_envs()`.
      engine: `native`, `mjx`, `warp`, `analytic`, or `auto` for `native` on a CPU and `mjx` on an accelerator.
      **options: the task's own, for velocity tasks: `time_limit` (1000; None for no limit), `noise` (0),
        `clip_actions` (False), `reset` (random), `thresholds` (v1), `speed` (the benchmark's), `auto_reset`
        (True). Navigation tasks have `layout_seed` (0, for `reset="fixed"`), `button_timer` (0) and numbers of
        objects (`hazards`, `vases`, `gremlins`, `pillars`) instead of `speed`.
    """
    entry = _find(id)
    if engine in ENGINES and engine not in entry.engines:
        accepted = ", ".join(("auto", *entry.engines))
        raise UserError(f"engine={engine} does not serve {id}; engine accepts {accepted}")
    return entry.make(engine=engine, **read_options(id, entry.options, options))


def list_envs(pattern: str | None = None) -> list[str]:
    """Ids of all registered environments, or of those that match a shell pattern."""
    return sorted(id for id in _entries() if pattern is None or fnmatchcase(id, pattern))


def engines_of(id: str) -> tuple[str, ...]:
    """Engines that serve a task, wherever they are available."""
    return _find(id).engines


def options_of(id: str) -> tuple[str, ...]:
    """Names of a task's own options."""
    return tuple(_find(id).options)


def register(id: str, make: Callable[..., Env], options: Mapping[str, Option] | None = None) -> None:
    """Makes `make(engine=..., **options)` known as `id`, in place of what had that name before."""
    _entries()[id] = Entry(make, dict(options or {}))


_table: dict[str, Entry] = {}


def _find(id: str) -> Entry:
    entries = _entries()
    if id not in entries:
        if re.fullmatch(r"Safety\w*\d-v0", str(id)):
            served.parse(str(id))  # says which part of it does not exist
        close = get_close_matches(str(id), entries, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"env={id} is not known{hint} (`riskppo envs` lists what env accepts)")
    return entries[id]


def _entries() -> dict[str, Entry]:
    if not _table:
        for robot in ("HalfCheetah", "Hopper", "Swimmer", "Walker2d", "Ant", "Humanoid"):
            _table[f"Safety{robot}Velocity-v1"] = Entry(partial(_make_velocity, robot), VELOCITY)
        for id in served.ids():
            robot, task, level = served.parse(id)
            options = navigation(LIMITS[task], COUNTED[task])
            make = partial(_make_navigation, robot, task, level)
            _table[id] = Entry(make, options, served.engines(robot, task, level))
    return _table


def _make_velocity(robot: str, **options: Any) -> Env:
    from riskppo_jax.envs import velocity  # loads MuJoCo

    return velocity.make(robot, **options)


def _make_navigation(robot: str, task: str, level: int, **options: Any) -> Env:
    from riskppo_jax.envs.navigation import env  # loads MuJoCo

    return env.make(robot, task, level, **options)
