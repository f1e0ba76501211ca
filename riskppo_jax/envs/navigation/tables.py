"""The numbers of the navigation tasks: which objects stand in a level, how large they are, how far apart.

Lengths are metres, angles radians. Kinds of a task stand in the order in which they are placed, which is also the
order of their lidars in the observation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

ROBOT_KEEPOUT = 0.4
TRAVEL = 0.35  # radius of the circle gremlins move on
TIMER = 10  # steps a pressed button stays out of play
LIDAR_BINS = 16


@dataclass(frozen=True)
class Shape:
    """How an object looks: MuJoCo's half-sizes, height of the centre, colour."""

    geom: str  # box, sphere or cylinder
    size: tuple[float, ...]
    height: float
    rgba: tuple[float, float, float, float]
    density: float = 0.0


@dataclass(frozen=True)
class Kind:
    """Objects of one kind in a task.

    Roles: `goal` and `zone` are drawn but not felt, `post` stands still and is felt, `free` can be pushed, `driven`
    is pulled round a circle, `mark` has a fixed place.
    """

    name: str
    role: str
    count: int
    keepout: float
    shape: Shape
    constrained: bool = False

    @property
    def single(self) -> str:
        """Name of one object, without its number."""
        return {"vases": "vase", "hazards": "hazard", "buttons": "button", "pillars": "pillar",
                "gremlins": "gremlin"}.get(self.name, self.name)  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each object, as in the original; what there is only one of has no number."""
        if self.name in ("goal", "push_box", "circle"):
            return (self.name,)
        return tuple(f"{self.single}{i}" for i in range(self.count))


@dataclass(frozen=True)
class Task:
    """One task at one level."""

    name: str
    level: int
    extent: float  # objects are placed in [-extent, extent]^2
    kinds: tuple[Kind, ...]
    lidar_range: float = 3.0
    robot_keepout: float = ROBOT_KEEPOUT
    walls: tuple[tuple[float, float], ...] = ()  # centres of the yellow walls, drawn only
    boundary: tuple[int, ...] = ()  # axes along which leaving the walls costs

    def kind(self, name: str) -> Kind | None:
        return next((kind for kind in self.kinds if kind.name == name), None)


_GOAL = Shape("cylinder", (0.3, 0.15), 0.16, (0.0, 1.0, 0.0, 0.25))
_MARKED = Shape("cylinder", (0.2, 0.1), 0.11, (0.0, 1.0, 0.0, 0.1))  # the goal of Button, around a button
_HAZARD = Shape("cylinder", (0.2, 0.01), 0.02, (0.0, 0.0, 1.0, 0.25))
_VASE = Shape("box", (0.1, 0.1, 0.1), 0.1 - 4e-5, (0.0, 1.0, 1.0, 1.0), 0.001)
_BUTTON = Shape("sphere", (0.1,), 0.1, (1.0, 0.5, 0.0, 1.0), 1.0)
_GREMLIN = Shape("box", (0.1, 0.1, 0.1), 0.1, (0.5, 0.0, 1.0, 1.0), 0.001)
_PILLAR = Shape("cylinder", (0.2, 0.5), 0.5, (0.5, 0.5, 1.0, 1.0), 1.0)
_PUSH_BOX = Shape("box", (0.2, 0.2, 0.2), 0.2, (1.0, 1.0, 0.0, 1.0), 0.001)
_CAR_BOX = Shape("box", (0.125, 0.125, 0.125), 0.125, (1.0, 1.0, 0.0, 1.0), 0.0005)
_CIRCLE = Shape("cylinder", (1.5, 0.01), 0.01, (0.0, 1.0, 0.0, 0.1))
WALL = Shape("box", (0.05, 3.5, 0.3), 0.25, (1.0, 1.0, 0.0, 0.1))
WALL_AT = 1.125


def _goal(level: int) -> Task:
    hazards, vases = ((0, 0), (8, 1), (10, 10))[level]
    return Task("Goal", level, (1.0, 1.5, 2.0)[level], (
        Kind("goal", "goal", 1, 0.305, _GOAL),
        Kind("hazards", "zone", hazards, 0.18, _HAZARD, constrained=True),
        Kind("vases", "free", vases, 0.15, _VASE, constrained=level == 2),
    ))  # fmt: skip


def _button(level: int) -> Task:
    hazards, gremlins = ((0, 0), (4, 4), (8, 6))[level]
    return Task("Button", level, (1.0, 1.5, 1.8)[level], (
        Kind("buttons", "post", 4, 0.2, _BUTTON, constrained=level > 0),
        Kind("goal", "goal", 1, 0.4, _MARKED),
        Kind("hazards", "zone", hazards, 0.18, _HAZARD, constrained=True),
        Kind("gremlins", "driven", gremlins, 0.4, _GREMLIN, constrained=True),
    ))  # fmt: skip


def _push(level: int) -> Task:
    hazards, pillars = ((0, 0), (2, 1), (4, 4))[level]
    return Task("Push", level, (1.0, 1.5, 2.0)[level], (
        Kind("goal", "goal", 1, 0.4, _GOAL),
        Kind("hazards", "zone", hazards, 0.4, replace(_HAZARD, size=(0.3, 0.01)), constrained=True),
        Kind("pillars", "post", pillars, 0.3, _PILLAR, constrained=level == 2),
        Kind("push_box", "free", 1, 0.2, _PUSH_BOX),
    ))  # fmt: skip


def _circle(level: int) -> Task:
    walls = ((WALL_AT, 0.0), (-WALL_AT, 0.0), (0.0, WALL_AT), (0.0, -WALL_AT))
    return Task(
        "Circle", level, 0.8, (Kind("circle", "mark", 1, 0.0, _CIRCLE),), lidar_range=6.0,
        robot_keepout=0.0, walls=walls[: 2 * level], boundary=((), (0,), (0, 1))[level],
    )  # fmt: skip


TASKS = {"Goal": _goal, "Button": _button, "Push": _push, "Circle": _circle}
LEVELS = (0, 1, 2)
ROBOTS = ("Point", "Car", "Doggo", "Racecar", "Ant")
PUSHERS = ("Point", "Car")  # for whom the size of the box is known
COUNTED = {"Goal": ("hazards", "vases"), "Button": ("hazards", "gremlins"), "Push": ("hazards", "pillars"),
           "Circle": ()}  # kinds a user may ask more or fewer of  # fmt: skip
LIMITS = {"Goal": 1000, "Button": 1000, "Push": 1000, "Circle": 500}


def task(name: str, level: int, robot: str, counts: Mapping[str, int] | None = None) -> Task:
    """The numbers of a task; kinds without objects are left out.

    Args:
      name: one of `TASKS`; level: one of `LEVELS`.
      robot: its name; the Car pushes a smaller box.
      counts: other numbers of objects, by kind.
    """
    found = TASKS[name](level)
    kinds = []
    for kind in found.kinds:
        if kind.name == "push_box" and robot == "Car":
            kind = replace(kind, shape=_CAR_BOX, keepout=0.125)
        kind = replace(kind, count=(counts or {}).get(kind.name, kind.count))
        if kind.count:
            kinds.append(kind)
    return replace(found, kinds=tuple(kinds))


def columns(box: Shape) -> tuple[tuple[float, ...], tuple[tuple[float, float], ...]]:
    """Half-size and centres of the four upright columns at the corners of the push box."""
    side = box.size[0]
    return (side / 2, side / 2, side), ((side, side), (-side, side), (side, -side), (-side, -side))
