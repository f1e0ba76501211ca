"""The Ant robot of the navigation tasks: a small one, whose legs gravity hardly moves."""

import mujoco

from riskppo_jax.envs.navigation.robots import (
    BLUE,
    COMMON,
    HINGE,
    RED,
    TAN,
    Robot,
    Sensor,
    add_agent,
    add_geom,
    add_joint,
    add_motor,
)

# leg: names of its bodies and geoms, direction in the plane, range of the ankle, colours of leg and foot
_ORANGE = (0.8, 0.5, 0.3, 1.0)
_BENT, _BACK = (0.52, 1.74), (-1.74, -0.52)
_LEGS = (
    ("front_left", "left", (1, 1), _BENT, BLUE, _ORANGE),
    ("front_right", "right", (-1, 1), _BACK, BLUE, TAN),
    ("left_back", "back", (-1, -1), _BACK, RED, TAN),
    ("right_back", "rightback", (1, -1), _BENT, RED, _ORANGE),
)
_ANKLES = ("left_ankle_geom", "right_ankle_geom", "third_ankle_geom", "fourth_ankle_geom")
_THICK = 0.02
_JOINTS = tuple(f"{part}_{i}" for i in (1, 2, 3, 4) for part in ("hip", "ankle"))
_RIGHT_ANGLE = 1.5707963267948966


def _ant(spec: mujoco.MjSpec):
    body = add_agent(spec, 0.18, site=(0.0, 0.0, -0.02))
    body.add_freejoint(name="root")
    add_geom(body, "torso_geom", "sphere", (0.0625,), rgba=TAN)
    for i, (name, side, (x, y), bend, leg_colour, foot_colour) in enumerate(_LEGS, start=1):
        half, whole = (0.05 * x, 0.05 * y, 0.0), (0.1 * x, 0.1 * y, 0.0)
        leg = body.add_body(name=f"{name}_leg")
        _segment(leg, f"aux_{i}_geom", half, leg_colour)
        thigh = leg.add_body(name=f"aux_{i}", pos=half)
        _joint(thigh, f"hip_{i}", (0.0, 0.0, 1.0), (-0.7, 0.7))
        _segment(thigh, f"{side}_leg_geom", half, leg_colour)
        foot = thigh.add_body(name=f"{name}_foot", pos=half)
        axis = (-1.0, 1.0, 0.0) if x * y > 0 else (1.0, 1.0, 0.0)
        _joint(foot, f"ankle_{i}", axis, bend)
        _segment(foot, _ANKLES[i - 1], whole, foot_colour)
    for joint in _JOINTS:
        add_motor(spec, joint, joint, 150.0)
    return body


def _segment(body, name: str, end, rgba):
    return add_geom(body, name, "capsule", (_THICK,), rgba=rgba, fromto=(0.0, 0.0, 0.0, *end))


def _joint(body, name: str, axis, limits):
    return add_joint(body, name, HINGE, axis, 1.0, armature=1.0, limited=True, range=limits)


ANT = Robot(
    "Ant", _ant, timestep=0.01, height=0.18, rk4=True, joints=8, wobble=0.1, falls_below=0.08,
    # hips straight, ankles bent by a right angle, those of the second and third leg the other way
    posture=tuple(0.0 if i % 2 == 0 else _RIGHT_ANGLE * (-1 if i in (3, 5) else 1) for i in range(8)),
    sensors=(
        *COMMON,
        *(Sensor(f"{name}_vel", "JOINTVEL", name, 1) for name in _JOINTS),
        Sensor("agent_pos", "FRAMEPOS", "agent", 3, "height"),
        Sensor("agent_qvel", "FRAMEANGVEL", "agent"),
        *(Sensor(name, "JOINTPOS", name, 1, "angle") for name in _JOINTS),
    ),
)  # fmt: skip
