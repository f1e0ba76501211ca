"""Worlds of the navigation tasks, built in code: one compiled model for each robot, task and engine.

Nothing in a model depends on a layout. Things that can be pushed have free joints, things that stand still but are
felt (buttons, pillars) are mocap bodies, gremlins are tied to mocap bodies; goals and hazards are felt by nobody and
appear only in the scene, the model that is drawn.
"""

import math
from itertools import combinations, product
from typing import NamedTuple

import mujoco
import numpy as np

from riskppo_jax.envs.navigation.lean import slim, stand_in
from riskppo_jax.envs.navigation.robots import GEOM, Robot
from riskppo_jax.envs.navigation.tables import WALL, Kind, Shape, Task, columns

SUBSTEPS = 10
_FRICTION = (1.0, 0.005, 0.0001)
_WELD = (0.02, 1.5)  # softness of the tie between a gremlin and its target


class Felt(NamedTuple):
    """An object the robot can touch, with the names of its geoms."""

    kind: str
    index: int
    geoms: tuple[str, ...]


def build(robot: Robot, task: Task, engine: str = "native", scene: bool = False) -> mujoco.MjModel:
    """The compiled world.

    Args:
      robot, task: what stands in it.
      engine: `mjx` gets the substitutes that MJX needs; every other engine the original's geometry.
      scene: with everything that is only drawn, and cameras.
    """
    lean = engine in ("mjx", "warp") and not scene
    spec = _empty(robot)
    agent = robot.build(spec)
    for kind in task.kinds:
        if kind.role == "free":
            _add_free(spec, kind)
    for kind in task.kinds:
        if kind.role == "driven":
            _add_driven(spec, kind)
    for kind in task.kinds:
        if kind.role == "post":
            _add_posts(spec, kind, lean)
    if scene:
        _add_scenery(spec, task)
    if lean:
        slim(spec, agent, task, robot.floating)
    elif robot.floating:  # it rests on the floor at distance zero, without weight
        spec.add_exclude(bodyname1="world", bodyname2="agent")
    _add_pairs(spec, robot_geoms(agent), task, lean)
    _add_sensors(spec, robot, task, robot_geoms(agent))
    return spec.compile()


def felt(task: Task) -> list[Felt]:
    """Objects the robot can touch, in the order of their touch sensors."""
    return [Felt(kind.name, i, _geom_names(kind, name))
            for kind in task.kinds if kind.role in ("free", "driven", "post")
            for i, name in enumerate(kind.names)]  # fmt: skip


def robot_width(robot: Robot) -> tuple[int, int]:
    """How many numbers of qpos and of qvel are the robot's."""
    if robot.planar:
        return 3, 3
    return 7 + robot.joints, 6 + robot.joints - robot.balls


def robot_geoms(agent) -> list:
    """All geoms of the robot that collide."""
    return [geom for geom in agent.find_all(mujoco.mjtObj.mjOBJ_GEOM) if geom.contype]


def girth(model: mujoco.MjModel) -> float:
    """How far the robot reaches around its centre, by the spheres round its geoms, all joints at zero."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    agent = model.body("agent").id
    own = (model.body_rootid[model.geom_bodyid] == model.body_rootid[agent]) & (model.geom_contype > 0)
    away = np.linalg.norm(data.geom_xpos[own, :2] - data.xpos[agent, :2], axis=1)
    return float(np.max(away + model.geom_rbound[own]))


def _empty(robot: Robot) -> mujoco.MjSpec:
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    spec.option.timestep = robot.timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_RK4 if robot.rk4 else mujoco.mjtIntegrator.mjINT_EULER
    # cylinders against boxes as the original's MuJoCo found their contacts
    spec.option.disableflags = int(mujoco.mjtDisableBit.mjDSBL_NATIVECCD) | int(mujoco.mjtDisableBit.mjDSBL_MULTICCD)
    spec.default.geom.condim = 6
    spec.default.geom.friction = _FRICTION
    spec.add_texture(
        name="floor", type=mujoco.mjtTexture.mjTEXTURE_2D, builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER, width=100,
        height=100, rgb1=(0.7, 0.7, 0.7), rgb2=(0.8, 0.8, 0.8),
    )  # fmt: skip
    spec.add_material(name="floor", texrepeat=(10.0, 10.0), reflectance=0.1, shininess=0.1, specular=0.1).textures[
        mujoco.mjtTextureRole.mjTEXROLE_RGB
    ] = "floor"
    spec.worldbody.add_geom(name="floor", type=GEOM["plane"], size=(3.5, 3.5, 0.1), material="floor")
    spec.worldbody.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=(0.0, 0.0, 0.5), dir=(0.0, 0.0, -1.0),
        diffuse=(1.0, 1.0, 1.0), specular=(0.0, 0.0, 0.0), castshadow=False,
    )  # fmt: skip
    return spec


def _geom(body, name: str, shape: Shape, felt: bool = True, **settings):
    size = (*shape.size, 0.0, 0.0)[:3]
    bits = {} if felt else {"contype": 0, "conaffinity": 0}
    body.add_geom(
        name=name, type=GEOM[shape.geom], size=size, rgba=shape.rgba, density=shape.density, **bits, **settings
    )


def _geom_names(kind: Kind, name: str) -> tuple[str, ...]:
    return (name, "col1", "col2", "col3", "col4") if kind.name == "push_box" else (name,)


def _add_free(spec: mujoco.MjSpec, kind: Kind) -> None:
    shape = kind.shape
    for name in kind.names:
        body = spec.worldbody.add_body(name=name, pos=(0.0, 0.0, shape.height))
        body.add_freejoint(name=name)
        _geom(body, name, shape)
        if kind.name == "push_box":
            size, centres = columns(shape)
            column = Shape("box", size, 0.0, shape.rgba, shape.density)
            for geom, (x, y) in zip(_geom_names(kind, name)[1:], centres, strict=True):
                _geom(body, geom, column, pos=(x, y, 0.0))


def _add_driven(spec: mujoco.MjSpec, kind: Kind) -> None:
    """Cubes with a free joint, each tied to a target that the environment moves."""
    for name in kind.names:
        body = spec.worldbody.add_body(name=name, pos=(0.0, 0.0, kind.shape.height))
        body.add_freejoint(name=name)
        _geom(body, name, kind.shape)
    for name in kind.names:
        spec.worldbody.add_body(name=f"{name}_target", mocap=True, pos=(0.0, 0.0, kind.shape.height))
        tie = spec.add_equality(
            name=name, type=mujoco.mjtEq.mjEQ_WELD, objtype=mujoco.mjtObj.mjOBJ_BODY, name1=f"{name}_target",
            name2=name, solref=_WELD,
        )  # fmt: skip
        tie.data[:] = 0.0
        tie.data[6], tie.data[10] = 1.0, _turning(kind.shape)  # no offset, no rotation


def _turning(cube: Shape) -> float:
    """What a weld's rotation counts for beside its translation, as MuJoCo 2.3.3 weighed it.

    It weighed both by the cube's resistance to being moved, `1/m`; today rotations are weighed by that to being turned,
    `m/I = 1.5 / s^2` times as much for half-edges `s`, and a touched gremlin would tip over. Rows enter squared.
    """
    return math.sqrt(1.5) / float(cube.size[0])


def _add_posts(spec: mujoco.MjSpec, kind: Kind, lean: bool) -> None:
    shape, drop = stand_in(kind.shape) if lean else (kind.shape, 0.0)
    for name in kind.names:
        body = spec.worldbody.add_body(name=name, mocap=True, pos=(0.0, 0.0, shape.height))
        _geom(body, name, shape, pos=(0.0, 0.0, -drop))


def _add_scenery(spec: mujoco.MjSpec, task: Task) -> None:
    for kind in task.kinds:
        if kind.role in ("goal", "zone"):
            for name in kind.names:
                body = spec.worldbody.add_body(name=name, mocap=True, pos=(0.0, 0.0, kind.shape.height))
                _geom(body, name, kind.shape, felt=False)
        elif kind.role == "mark":
            _geom(spec.worldbody, kind.name, kind.shape, felt=False, pos=(0.0, 0.0, kind.shape.height))
    for i, (x, y) in enumerate(task.walls):
        quat = (1.0, 0.0, 0.0, 0.0) if y == 0 else (0.7071067811865476, 0.0, 0.0, 0.7071067811865476)
        _geom(spec.worldbody, f"sigwall{i}", WALL, felt=False, pos=(x, y, WALL.height), quat=quat)
    tilt = (0.9238795325112867, 0.3826834323650898, 0.0, 0.0)
    spec.worldbody.add_camera(name="fixednear", pos=(0.0, -2.0, 2.0), quat=tilt)
    spec.worldbody.add_camera(name="fixedfar", pos=(0.0, -5.0, 5.0), quat=tilt)
    spec.worldbody.add_camera(name="top", pos=(0.0, 0.0, 2.6 * max(task.extent, 1.5)), quat=(1.0, 0.0, 0.0, 0.0))
    track = mujoco.mjtCamLight.mjCAMLIGHT_TRACK
    spec.body("agent").add_camera(name="track", mode=track, pos=(0.0, -2.0, 2.0), quat=tilt)


def _add_pairs(spec: mujoco.MjSpec, robot: list, task: Task, lean: bool) -> None:
    """Box against box as soft as in the original, whose MuJoCo reported half the depth of such contacts.

    Half the depth `d` enters the constraint as a reference `k d / 2` and an impedance at `d / 2`. The same comes out
    of the full depth with half the stiffness and twice the width of the impedance.
    """
    things = [(thing, [spec.geom(name) for name in thing.geoms]) for thing in felt(task)]
    boxes = [(thing, [g for g in geoms if g.type == GEOM["box"]]) for thing, geoms in things]
    boxes = [(thing, geoms) for thing, geoms in boxes if geoms]
    pairs = [pair for _, geoms in boxes for pair in product([g for g in robot if g.type == GEOM["box"]], geoms)]
    for (_, first), (_, second) in combinations(boxes, 2):
        pairs += [] if lean else product(first, second)
    time = 0.02
    for a, b in pairs:
        spec.add_pair(
            geomname1=a.name, geomname2=b.name, condim=6, friction=(1.0, 1.0, 0.005, 0.0001, 0.0001),
            solref=(-0.5 / time**2, -2.0 / time), solimp=(0.9, 0.95, 0.002, 0.5, 2.0),
        )  # fmt: skip


def _add_sensors(spec: mujoco.MjSpec, robot: Robot, task: Task, geoms: list) -> None:
    joints = {"JOINTPOS", "JOINTVEL", "BALLQUAT", "BALLANGVEL"}
    for sensor in robot.sensors:
        on = mujoco.mjtObj.mjOBJ_JOINT if sensor.type in joints else mujoco.mjtObj.mjOBJ_SITE
        kind = getattr(mujoco.mjtSensor, f"mjSENS_{sensor.type}")
        spec.add_sensor(name=sensor.name, type=kind, objtype=on, objname=sensor.on)
    for thing in felt(task):
        for ours, theirs in product([geom.name for geom in geoms], thing.geoms):
            spec.add_sensor(
                name=f"touch {ours} {theirs}", type=mujoco.mjtSensor.mjSENS_CONTACT,
                objtype=mujoco.mjtObj.mjOBJ_GEOM, objname=ours, reftype=mujoco.mjtObj.mjOBJ_GEOM, refname=theirs,
                intprm=(1, 0, 1),  # how many contacts, no reduction, one slot
            )  # fmt: skip
