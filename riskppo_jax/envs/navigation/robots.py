"""What a robot is to a world, and the two that drive: Point and Car.

`doggo`, `racecar` and `ant` hold the others. Every number is the original's, as compiled; geoms without a density of
their own weigh 5 kg per cubic metre.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mujoco

GEOM = {name: getattr(mujoco.mjtGeom, f"mjGEOM_{name.upper()}") for name in
        ("plane", "sphere", "capsule", "cylinder", "box")}  # fmt: skip
SLIDE, HINGE, BALL = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_BALL
RED = (0.7412, 0.0431, 0.1843, 1.0)
BLUE = (0.0039, 0.1529, 0.3961, 1.0)
TAN = (0.8, 0.6, 0.4, 1.0)
DENSITY = 5.0
X_AXIS = (0.70710678118654752, 0.0, -0.70710678118654752, 0.0)  # turns a geom's own axis along x


@dataclass(frozen=True)
class Sensor:
    """A reading of the robot: MuJoCo's sensor, what it is mounted on, and how it enters the observation.

    Forms: `plain`; `height` keeps the third number; `angle` becomes sine and cosine; `turn` a rotation matrix.
    """

    name: str
    type: str  # MuJoCo's name without mjSENS_
    on: str  # name of the site or joint
    size: int = 3
    form: str = "plain"

    @property
    def width(self) -> int:
        return {"plain": self.size, "height": 1, "angle": 2, "turn": 9}[self.form]


COMMON = tuple(Sensor(name, name.upper(), "agent") for name in ("accelerometer", "velocimeter", "gyro", "magnetometer"))


@dataclass(frozen=True)
class Robot:
    """A robot of the benchmark. `build` adds its body `agent` to a world, upright at the origin."""

    name: str
    build: Callable[[mujoco.MjSpec], mujoco.MjsBody]
    timestep: float
    height: float  # of the body's origin at the start
    sensors: tuple[Sensor, ...] = COMMON
    rk4: bool = False
    planar: bool = False  # two slides and a hinge instead of a free joint
    floating: bool = False  # never touches the floor
    joints: int = 0  # numbers in qpos after the free joint's seven
    balls: int = 0  # ball joints among them, which have one number less in qvel
    posture: tuple[float, ...] = ()  # of those joints at the start; zero where not given
    wobble: float = 0.0  # half-width of the noise on the posture
    falls_below: float | None = None  # height at which an episode ends


def add_geom(body, name: str, kind: str, size, pos=(0.0, 0.0, 0.0), rgba=RED, **settings):
    """A geom of a robot, with the density that holds where none is given."""
    settings.setdefault("density", DENSITY)
    size = (*size, 0.0, 0.0)[:3]
    return body.add_geom(name=name, type=GEOM[kind], size=size, pos=pos, rgba=rgba, **settings)


def add_joint(body, name: str, kind, axis=(0.0, 0.0, 1.0), damping: float = 0.0, **settings):
    return body.add_joint(name=name, type=kind, axis=axis, damping=damping, **settings)


def add_motor(spec: mujoco.MjSpec, name: str, on: str, gear: float, transmission: str = "joint", **settings):
    """A torque motor with commands in [-1, 1]."""
    trn = getattr(mujoco.mjtTrn, f"mjTRN_{transmission.upper()}")
    settings.setdefault("ctrlrange", (-1.0, 1.0))
    actuator = spec.add_actuator(name=name, target=on, trntype=trn, gear=(gear, 0, 0, 0, 0, 0), ctrllimited=True,
                                 **settings)  # fmt: skip
    actuator.set_to_motor()
    return actuator


def add_agent(spec: mujoco.MjSpec, height: float, site=(0.0, 0.0, 0.0)):
    """The body `agent` with the site its sensors sit on."""
    body = spec.worldbody.add_body(name="agent", pos=(0.0, 0.0, height))
    body.add_site(name="agent", pos=site, size=(0.032, 0.005, 0.005), rgba=(1.0, 0.0, 0.0, 0.1))
    return body


def _point(spec: mujoco.MjSpec):
    body = add_agent(spec, 0.1)
    add_joint(body, "x", SLIDE, (1.0, 0.0, 0.0), 0.01)
    add_joint(body, "y", SLIDE, (0.0, 1.0, 0.0), 0.01)
    add_joint(body, "z", HINGE, (0.0, 0.0, 1.0), 0.005)
    add_geom(body, "agent", "sphere", (0.1,), density=1.0, friction=(1.0, 0.01, 0.01))
    add_geom(body, "pointarrow", "box", (0.05, 0.05, 0.05), (0.1, 0.0, 0.0), BLUE, density=1.0)
    weak = {"forcelimited": True, "forcerange": (-0.05, 0.05)}
    add_motor(spec, "x", "agent", 0.3, "site", **weak)
    add_motor(spec, "z", "z", 0.3, "jointinparent", **weak).set_to_velocity(kv=1.0)
    return body


def _car(spec: mujoco.MjSpec):
    body = add_agent(spec, 0.1)
    body.add_freejoint(name="agent")
    add_geom(body, "agent", "box", (0.1, 0.1, 0.05))
    add_geom(body, "back_bumper", "box", (0.1, 0.01, 0.05), (0.0, 0.15, 0.0), BLUE)
    add_geom(body, "back_connector", "box", (0.01, 0.025, 0.03), (0.0, 0.125, 0.0), BLUE)
    add_geom(body, "front_bumper", "box", (0.05, 0.01, 0.05), (0.0, -0.165, 0.0), BLUE)
    add_geom(body, "front_connector", "box", (0.05, 0.03, 0.01), (0.0, -0.13, 0.04), BLUE)
    for name, side in (("left", -1.0), ("right", 1.0)):
        wheel = body.add_body(name=name, pos=(0.1 * side, 0.1, -0.05))
        add_joint(wheel, name, HINGE, (1.0, 0.0, 0.0), 0.001)
        add_geom(wheel, name, "cylinder", (0.05, 0.025), (0.03 * side, 0.0, 0.0), quat=X_AXIS)
        add_motor(spec, name, name, 1.0, "jointinparent", forcelimited=True, forcerange=(-0.02, 0.02))
    ball = body.add_body(name="rear", pos=(0.0, -0.1, -0.05))
    add_joint(ball, "rear", BALL, damping=0.001)
    add_geom(ball, "rear", "sphere", (0.05,))
    return body


def find(name: str) -> Robot:
    """The robot called `name`, one of `tables.ROBOTS`."""
    from riskppo_jax.envs.navigation import ant, doggo, racecar

    return {
        "Point": POINT, "Car": CAR, "Doggo": doggo.DOGGO, "Racecar": racecar.RACECAR, "Ant": ant.ANT,
    }[name]  # fmt: skip


POINT = Robot("Point", _point, timestep=0.002, height=0.1, planar=True, floating=True)
CAR = Robot(
    "Car", _car, timestep=0.004, height=0.1, joints=6, balls=1, posture=(0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    sensors=(*COMMON, Sensor("ballangvel_rear", "BALLANGVEL", "rear"),
             Sensor("ballquat_rear", "BALLQUAT", "rear", 4, "turn")),
)  # fmt: skip
