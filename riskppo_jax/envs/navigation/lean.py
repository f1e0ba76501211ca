"""A world as MJX can have it: its substitutes, and no contact that cannot occur.

MJX evaluates every pair of geoms that may touch, ten constraint rows for each point, whether they are near or not.
What is changed, and what it costs:

- A pillar is a sphere of its radius, at the height of the robot. Robots are felt near that height and hardly tilt, so
  distances in the plane are the cylinder's.
- Cylinder wheels feel the floor only; a box of the wheel's width and height, fixed to the car, feels everything else.
- Only robot and object, object and floor, push box and pillar touch. Vases pass through one another, gremlins through
  everything but the robot: layouts keep them apart, so that this matters only once the robot has thrown one at another.
"""

import mujoco

from riskppo_jax.envs.navigation.robots import GEOM
from riskppo_jax.envs.navigation.tables import Kind, Shape, Task

_ROBOT, _WHEELS, _GROUND, _PILLARS = 1, 2, 4, 8  # who is felt: (contype of the one) & (conaffinity of the other)


def stand_in(shape: Shape) -> tuple[Shape, float]:
    """The shape of a post, and how far below its body's origin it sits."""
    if shape.geom != "cylinder":
        return shape, 0.0
    return Shape("sphere", shape.size[:1], shape.height, shape.rgba, shape.density), shape.height - 0.1


def slim(spec: mujoco.MjSpec, agent, task: Task, floating: bool) -> None:
    """Leaves only contacts that can occur, and gives wheels their stand-ins."""
    spec.option.disableflags = 0
    _bits(spec.geom("floor"), _WHEELS | _GROUND, 0)
    for geom in agent.find_all(mujoco.mjtObj.mjOBJ_GEOM):
        if geom.type == GEOM["cylinder"]:
            _add_box(agent, geom)
            _bits(geom, 0, _WHEELS)
        else:
            _bits(geom, _ROBOT, _WHEELS if geom.type == GEOM["sphere"] and not floating else 0)
    for kind in task.kinds:
        for geom in _geoms(spec, kind):
            if kind.role == "free":
                _bits(geom, 0, _ROBOT | _GROUND | _PILLARS)
            elif kind.role == "driven":
                _bits(geom, 0, _ROBOT)
            elif kind.role == "post":
                _bits(geom, _PILLARS if kind.name == "pillars" else 0, _ROBOT)


def _add_box(agent, wheel) -> None:
    body = wheel.parent
    pos = [a + b for a, b in zip(body.pos, wheel.pos, strict=True)]
    radius, width = wheel.size[:2]
    agent.add_geom(
        name=f"{wheel.name}_side", type=GEOM["box"], size=(width, radius, radius), pos=pos, mass=0.0,
        contype=_ROBOT, conaffinity=0, rgba=(0.0, 0.0, 0.0, 0.0),
    )  # fmt: skip


def _geoms(spec: mujoco.MjSpec, kind: Kind) -> list:
    if kind.role not in ("free", "driven", "post"):
        return []
    return [geom for name in kind.names for geom in spec.body(name).geoms]


def _bits(geom, contype: int, conaffinity: int) -> None:
    geom.contype, geom.conaffinity = contype, conaffinity
