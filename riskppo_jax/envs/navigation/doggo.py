"""The Doggo robot: two trunk halves joined at the waist, four legs of three segments."""

import mujoco

from riskppo_jax.envs.navigation.robots import (
    BLUE,
    COMMON,
    HINGE,
    RED,
    TAN,
    X_AXIS,
    Robot,
    Sensor,
    add_agent,
    add_geom,
    add_joint,
    add_motor,
)

_LEG_DENSITY = 20.0
_TRUNK_DENSITY = 2.0
_THICK = 0.016
_JOINTS = tuple(f"hip_{i}_{axis}" for axis in "zy" for i in (1, 2, 3, 4)) + tuple(f"ankle_{i}" for i in (1, 2, 3, 4))
_FEET = tuple(f"ankle_{i}{end}" for end in "ab" for i in (1, 2, 3, 4))
# degrees in the original's own rounding
_D10, _D15, _D20, _D30, _D75, _D135 = 0.174533, 0.2618, 0.349066, 0.523599, 1.308998, 2.356196


def _doggo(spec: mujoco.MjSpec):
    front = add_agent(spec, 0.22)
    front.add_freejoint(name="agent")
    _trunk(front, "agent", 0.05)
    for i, side in ((1, 1.0), (4, -1.0)):
        _leg(front, i, 1.0, side, BLUE, (-_D75, _D15), -_D10)
    rear = front.add_body(name="rear")
    _joint(rear, "waist_x", (1.0, 0.0, 0.0), (-_D30, _D30))
    _trunk(rear, "agent2", -0.05)
    for i, side in ((2, 1.0), (3, -1.0)):
        _leg(rear, i, -1.0, side, RED, (0.0, _D135), 0.0)
    for joint in _JOINTS:
        add_motor(spec, joint, joint, 0.00625)
    return front


def _trunk(body, name: str, x: float):
    add_geom(body, name, "cylinder", (0.0375, 0.05), (x, 0.0, 0.0), TAN, quat=X_AXIS, density=_TRUNK_DENSITY)


def _leg(trunk, i: int, ahead: float, side: float, rgba, swing, rest: float):
    """Leg `i`, `ahead` of the waist or behind it, on the left side (+1) or the right (-1)."""
    shoulder = trunk.add_body(name=f"leg_{i}")
    _segment(shoulder, f"aux_{i}", (0.05 * ahead, 0.0, 0.0), (0.1 * ahead, 0.05 * side, 0.0), rgba)
    thigh = shoulder.add_body(name=f"aux_{i}", pos=(0.1 * ahead, 0.05 * side, 0.0))
    _joint(thigh, f"hip_{i}_z", (0.0, 0.0, side), (-_D10, _D30))
    _joint(thigh, f"hip_{i}_y", (0.0, 1.0, 0.0), swing, rest)
    knee = (0.049, 0.0283 * side, -0.025)
    _segment(thigh, f"hip_{i}", (0.0, 0.0, 0.0), knee, rgba)
    shin = thigh.add_body(name=f"shin_{i}", pos=knee)
    _joint(shin, f"ankle_{i}", (-1.0 * side, 1.732, 0.0), (-_D75, 0.0), -_D20)
    foot = (-0.0588, -0.0339 * side, -0.05)
    _segment(shin, f"ankle_{i}", (0.0, 0.0, 0.0), foot, TAN)
    for end, pos in (("a", (0.0, 0.0, 0.0)), ("b", foot)):
        shin.add_site(name=f"ankle_{i}{end}", pos=pos, size=(0.018, 0.005, 0.005), rgba=(1.0, 0.0, 0.0, 0.0))


def _segment(body, name: str, start, end, rgba):
    add_geom(body, name, "capsule", (_THICK,), rgba=rgba, fromto=(*start, *end), density=_LEG_DENSITY)


def _joint(body, name: str, axis, limits, rest: float = 0.0):
    add_joint(body, name, HINGE, axis, limited=True, range=limits, springref=rest, stiffness=1e-4, armature=5e-5)


DOGGO = Robot(
    "Doggo", _doggo, timestep=0.01, height=0.22, joints=13,
    sensors=(
        *COMMON,
        *(Sensor(f"touch_{foot}", "TOUCH", foot, 1) for foot in _FEET),
        *(Sensor(f"jointvel_{name}", "JOINTVEL", name, 1) for name in _JOINTS),
        *(Sensor(f"jointpos_{name}", "JOINTPOS", name, 1, "angle") for name in _JOINTS),
    ),
)  # fmt: skip
