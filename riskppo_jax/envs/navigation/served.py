"""Which engine serves which navigation task."""

import re

from riskppo_jax.engines.base import ENGINES, resolve
from riskppo_jax.envs.navigation.tables import LEVELS, PUSHERS, ROBOTS, TASKS
from riskppo_jax.errors import UserError

MJX_ROBOTS = ("Point", "Car")  # the others' meshes, cylinders and many contacts are the C engine's


def ids() -> list[str]:
    """Ids of all navigation tasks."""
    return [f"Safety{robot}{task}{level}-v0" for robot in ROBOTS for task in TASKS for level in LEVELS
            if task != "Push" or robot in PUSHERS]  # fmt: skip


def parse(id: str) -> tuple[str, str, int]:
    """Robot, task and level of an id; complains about the part that does not exist."""
    found = re.fullmatch(r"Safety([A-Z][a-z]*)([A-Z][a-z]*)(\d+)-v0", id)
    if not found:
        raise UserError(f"env={id} is not known; navigation tasks are called Safety<robot><task><level>-v0")
    robot, task, level = found.groups()
    for what, value, accepted in (
        ("robot", robot, ROBOTS),
        ("task", task, tuple(TASKS)),
        ("level", int(level), LEVELS),
    ):
        if value not in accepted:
            raise UserError(f"env={id}: there is no {what} {value}; accepts {', '.join(map(str, accepted))}")
    if id not in ids():
        raise UserError(f"env={id}: there is no {task} for {robot}; accepts {', '.join(PUSHERS)}")
    return robot, task, int(level)


def engines(robot: str, task: str, level: int) -> tuple[str, ...]:
    """Engines that serve a task, wherever they are available."""
    served = {
        "native": True,
        "mjx": robot in MJX_ROBOTS,
        "warp": robot in MJX_ROBOTS,
        "analytic": robot == "Point" and (task == "Circle" or (task, level) == ("Goal", 0)),
    }
    return tuple(name for name in ENGINES if served[name])


def choose(engine: str, robot: str, task: str, level: int) -> str:
    """The engine behind a name, if it serves the task; `auto` falls back on `native`."""
    served = engines(robot, task, level)
    chosen = resolve(engine)
    if chosen not in served and engine == "auto":
        chosen = resolve("native")
    if chosen not in served:
        raise UserError(
            f"engine={engine} does not serve Safety{robot}{task}{level}-v0; engine accepts auto, {', '.join(served)}"
        )
    return chosen
