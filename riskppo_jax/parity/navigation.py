"""Records of the navigation tasks.

Samples in which the robot touches a box or a cylinder are not smooth: there the original's MuJoCo found other contact
points than today's, and no two implementations agree on how a featherweight flies off. In them only the flags are
held to the record, and the reward in the median. The Racecar is never smooth.

The servo that turns the Point multiplies an error of its speed by four in each of ten physics steps, and 1 rad/s is
65 m/s^2 to the accelerometer. In float32 every one of those steps rounds, where the record's own deviations come from
one rounding at the start; so engines that compute in float32 are held to the record's tolerance in everything but the
accelerometer, and in that to `_SHAKEN` more.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from riskppo_jax.envs.navigation.env import Navigation
from riskppo_jax.envs.navigation.served import choose, parse
from riskppo_jax.envs.navigation.tables import TIMER
from riskppo_jax.envs.navigation.world import SUBSTEPS, build, robot_width
from riskppo_jax.errors import UserError
from riskppo_jax.parity.record import Record, Result, check_shapes, errors, precision, read_record, tolerance

_NEEDED = ("qpos0", "qvel0", "obs0", "act", "obs", "rew", "cost", "term", "goal_met", "base", "time0", "obj_pos0",
           "obj_pos", "layout_seed", "ncon_vase0", "ncon_gremlin0", "ncon_pillar0", "ncon_push_box0", "ncon_vase",
           "ncon_gremlin", "ncon_pillar", "ncon_push_box")  # fmt: skip
_DEVIATIONS = ("dev_obs", "dev_rew", "dev_cost", "dev_agent_pose")
_MEMORY = {
    "Goal": {"last": "last_dist_goal0"},
    "Button": {"last": "last_dist_goal0", "target": "goal_button0", "timer": "timer0"},
    "Push": {"last_box": "last_dist_box0", "last_goal": "last_box_goal0"},
    "Circle": {},
}
_ROUGH_MEDIAN = 2e-3  # of the reward in samples that are not smooth
_ROUGH_ROBOTS = ("Racecar",)  # stands on cylinders and collides with a mesh, for which ours has a box
_LEGGED = ("Doggo", "Ant")
_CAPSULES = 1e-3  # allowed them on top: contacts of capsules part ways at the fifth digit
_SHAKEN = 0.05  # m/s^2, more than the tolerance, for the accelerometer in float32
_ACCELEROMETER = slice(0, 3)  # of the observation
_ON_PATH = 1e-6  # speed up to which a gremlin moves as one that nobody has touched


def replay(path: Path, engine: str) -> Result:
    """Steps every sample of a record once on `engine` and compares."""
    robot, name, level = parse(path.stem)
    memory = _MEMORY[name]
    needed = (*_NEEDED, *_DEVIATIONS, *memory.values(), *(("goal_button",) if name == "Button" else ()))
    record = read_record(path, needed)
    with precision(engine):
        env = Navigation(robot, name, level, choose(engine, robot, name, level))
        _check(path, record, env, needed)
        start = _starts(env, record)
        before, after, met = _step_all(env, record, start)
    return _compare(path.stem, env, record, before, after, met)


def _check(path: Path, record: Record, env: Navigation, needed) -> None:
    model, objects = env.model, len(record["obj_names"])
    seen, spots = (env.observation_size,), (objects, 3)
    wide = {"qpos0": (model.nq,), "qvel0": (model.nv,), "act": (model.nu,), "obs": seen, "obs0": seen, "base": (4,),
            "obj_pos0": spots, "obj_pos": spots}  # fmt: skip
    check_shapes(path, record, wide, needed)
    known = {str(name) for name in record["obj_names"]}
    missing = [name for kind in env.task.kinds if kind.role != "driven" for name in kind.names if name not in known]
    if missing:
        raise UserError(f"{path}: obj_names has no {', '.join(missing)}")
    if np.any(record["time0"] < 0):
        raise UserError(f"{path}: one_time0 has entries below 0")


def _starts(env: Navigation, record: Record) -> dict[str, np.ndarray]:
    """Arguments of `Navigation.place`, one row for each sample."""
    qpos, qvel = record["qpos0"].copy(), record["qvel0"].copy()
    if env.robot.planar:  # the original's joints are relative to the start pose
        x, y, _, yaw = record["base"].T
        qpos[:, :2] = _turned(qpos[:, :2], yaw) + np.stack([x, y], axis=1)
        qpos[:, 2] += yaw
        qvel[:, :2] = _turned(qvel[:, :2], yaw)
    ticks = np.rint(record["time0"] / env.model.opt.timestep).astype(np.int32)
    layout, yaws = _layouts(env, record, qpos, qvel, ticks)
    return {"qpos": qpos, "qvel": qvel, "layout": layout, "yaws": yaws, "ticks": ticks}


def _turned(xy: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    c, s = np.cos(yaw), np.sin(yaw)
    return np.stack([c * xy[:, 0] - s * xy[:, 1], s * xy[:, 0] + c * xy[:, 1]], axis=1)


def _layouts(env: Navigation, record: Record, qpos, qvel, ticks) -> tuple[np.ndarray, np.ndarray]:
    names, spots = [str(name) for name in record["obj_names"]], record["obj_pos0"]
    rows, yaws = [], np.zeros((len(qpos), 0))
    for kind in env.task.kinds:
        if kind.role == "driven":
            centres, yaws = _centres(env, record, qpos, qvel, ticks)
            rows.append(centres)
        else:
            rows.append(spots[:, [names.index(name) for name in kind.names], :2])
    return np.concatenate(rows, axis=1), yaws


def _centres(env: Navigation, record: Record, qpos, qvel, ticks) -> tuple[np.ndarray, np.ndarray]:
    """Centres and yaws of the gremlins, which records do not hold.

    A gremlin nobody has touched moves as any other that started at the same time, so its centre is where it is less
    how far such a one has come. One that was touched has the centre it has in another sample of the same layout.
    """
    count = env.task.kind("gremlins").count
    nq, nv = robot_width(env.robot)
    poses = qpos[:, nq : nq + 7 * count].reshape(-1, count, 7)
    speeds = qvel[:, nv : nv + 6 * count].reshape(-1, count, 6)
    moved, velocity = _undisturbed(env, int(ticks.max()))
    centres = poses[..., :2] - moved[ticks][:, None, :2]
    yaws = 2 * np.arctan2(poses[..., 6], poses[..., 3])
    off = np.abs(speeds - velocity[ticks][:, None]).max(axis=-1)
    for seed in np.unique(record["layout_seed"]):
        rows = np.flatnonzero(record["layout_seed"] == seed)
        best = rows[off[rows].argmin(axis=0)]
        for i in range(count):
            touched = rows[off[rows, i] > _ON_PATH]
            centres[touched, i], yaws[touched, i] = centres[best[i], i], yaws[best[i], i]
    return centres, yaws


def _undisturbed(env: Navigation, ticks: int) -> tuple[np.ndarray, np.ndarray]:
    """How far a gremlin has come and how fast it is, after each physics step from a reset."""
    model = build(env.robot, env.task)
    data = mujoco.MjData(model)
    nq, nv = robot_width(env.robot)
    start = np.array(data.qpos[nq : nq + 3])
    count = env.task.kind("gremlins").count
    for i in range(model.nmocap):  # out of each other's way
        data.mocap_pos[i, 0] = 2.0 * (i + 1)
    for i in range(count):
        data.qpos[nq + 7 * i] = 2.0 * (i + 1)
    home, start[0] = data.mocap_pos[0].copy(), 2.0
    moved, velocity = np.zeros((ticks + 1, 3)), np.zeros((ticks + 1, 6))
    for tick in range(ticks):
        time = tick * model.opt.timestep
        data.mocap_pos[0] = home + np.array([0.35 * np.sin(time), 0.35 * np.cos(time), 0.1])
        mujoco.mj_step(model, data)
        if (tick + 1) % SUBSTEPS == 0:  # an environment step ends with a forward pass
            mujoco.mj_forward(model, data)
        moved[tick + 1], velocity[tick + 1] = data.qpos[nq : nq + 3] - start, data.qvel[nv : nv + 6]
    return moved, velocity


def _step_all(env: Navigation, record: Record, start: dict[str, np.ndarray]):
    """States before and after, and whether the goal was reached; a new goal is the recorded one."""
    name = env.task.name
    remembered = {key: record[value] for key, value in _MEMORY[name].items()}
    goal = [str(x) for x in record["obj_names"]].index("goal") if name != "Circle" else 0
    drawn = record["obj_pos"][:, goal, :2]
    target = record["goal_button"].astype(np.int32) if name == "Button" else np.zeros(len(drawn), np.int32)

    def place(key, start, memory):
        state = env.place(key, **start, memory=memory)
        kept = {name: jnp.asarray(value, state.sim.memory[name].dtype) for name, value in memory.items()}
        return state.replace(sim=state.sim.replace(memory={**state.sim.memory, **kept}))

    def step(state, action, drawn, target):
        new, view, met = env.advance(state, action)
        layout, memory = new.sim.layout, new.sim.memory
        if name in ("Goal", "Push"):
            row = next(i for i, kind in enumerate(env.task.kinds) if kind.name == "goal")
            layout = layout.at[row].set(jnp.where(met, drawn, layout[row]))
        elif name == "Button":
            memory = {**memory, "target": jnp.where(met, target, memory["target"]),
                      "timer": jnp.where(met, TIMER, memory["timer"])}  # fmt: skip
        return env.observe(new.replace(sim=new.sim.replace(layout=layout, memory=memory)), view), met

    number = jax.dtypes.canonicalize_dtype(float)
    cast = lambda x: x.astype(number) if x.dtype.kind == "f" else x.astype(np.int32)  # noqa: E731
    keys = jax.random.split(jax.random.key(0), len(record["act"]))
    before = jax.jit(jax.vmap(place))(keys, jax.tree.map(cast, start), jax.tree.map(cast, remembered))
    after, met = jax.jit(jax.vmap(step))(before, cast(record["act"]), cast(drawn), target)
    return jax.device_get((before.obs, (after.obs, after.reward, after.cost, after.terminated, after.info), met))


def _compare(id: str, env: Navigation, record: Record, before, after, met) -> Result:
    obs, reward, cost, terminated, info = after
    engine, robot = env.engine.name, env.robot.name
    kinds = ("vase", "gremlin", "pillar", "push_box")
    felt = sum(record[f"ncon_{kind}{when}"] for kind in kinds for when in ("0", ""))
    smooth = (felt == 0) & (robot not in _ROUGH_ROBOTS)
    cost_differs = (cost > 0.5) != (record["cost"] > 0.5)
    for name, value in info.items():  # which of several entries makes up a cost hangs on a bounce where it is rough
        if name.startswith("cost_") and name in record:
            cost_differs |= ((value > 0.5) != (record[name] > 0.5)) & (smooth | (engine == "native"))
    near = _near(env, record, tolerance(engine, record["dev_agent_pose"]))
    term_differs = terminated.astype(bool) != record["term"].astype(bool)
    seen, shaken = _observation_errors(engine, record, before, obs)
    result = Result(
        id=id,
        obs=seen,
        accelerometer=shaken,
        reward=errors(reward, record["rew"]),
        obs_tolerance=_allowed(env, record["dev_obs"]),
        reward_tolerance=_allowed(env, record["dev_rew"]),
        cost_mismatches=np.flatnonzero(cost_differs & ~near),
        cost_near=np.flatnonzero(cost_differs & near),
        term_mismatches=np.flatnonzero(term_differs),
        term_near=np.zeros(0, int),
        smooth=smooth,
        goal_mismatches=np.flatnonzero((met != record["goal_met"].astype(bool)) & ~near),
    )
    result.rank()
    rough = result.reward[~result.smooth]
    steady = not len(rough) or np.median(rough) <= _ROUGH_MEDIAN
    result.passed = bool(result.flags_agree and result.within[result.smooth].all() and steady)
    if shaken is not None:
        result.passed &= bool((shaken <= result.obs_tolerance + _SHAKEN)[result.smooth].all())
    return result


def _allowed(env: Navigation, deviation: np.ndarray) -> np.ndarray:
    """What a smooth sample may be off by: in float64 a thousandth of what float32 inputs do to the original."""
    share, more = (1.0, _CAPSULES) if env.robot.name in _LEGGED else (1e-3, 0.0)
    if env.engine.name != "native":
        share = 0.0  # the tolerance has it
    return tolerance(env.engine.name, deviation) + share * deviation + more


def _observation_errors(engine: str, record: Record, before, after) -> tuple[np.ndarray, np.ndarray | None]:
    """Errors of observations in each sample, and those of the accelerometer where it is judged apart."""
    pairs = (after, record["obs"]), (before, record["obs0"])
    if engine == "native":
        return np.maximum(*(errors(ours, theirs) for ours, theirs in pairs)), None
    rest = slice(_ACCELEROMETER.stop, None)
    parts = [np.maximum(*(errors(a[:, part], b[:, part]) for a, b in pairs)) for part in (rest, _ACCELEROMETER)]
    return parts[0], parts[1]


def _near(env: Navigation, record: Record, allowed: np.ndarray) -> np.ndarray:
    """Samples whose flags may be either: the record says so, or the robot is within rounding of a border."""
    near = record["dev_cost"] > 0
    if "agent_pose" not in record:
        return near
    robot = record["agent_pose"][:, :2]
    names = [str(name) for name in record["obj_names"]]
    hazards = env.task.kind("hazards")
    if hazards:
        spots = record["obj_pos"][:, [names.index(name) for name in hazards.names], :2]
        gap = np.linalg.norm(spots - robot[:, None], axis=-1) - hazards.shape.size[0]
        near |= (np.abs(gap) <= allowed[:, None]).any(axis=1)
    if env.task.boundary:
        near |= np.abs(np.abs(robot[:, list(env.task.boundary)]).max(axis=1) - 1.125) <= allowed
    if env.task.name == "Goal":
        spots = record["obj_pos0"][:, names.index("goal"), :2]
        near |= np.abs(np.linalg.norm(spots - robot, axis=-1) - 0.3) <= allowed
    if env.task.name == "Push":
        box, goal = record["obj_pos"][:, names.index("push_box")], record["obj_pos0"][:, names.index("goal")]
        near |= np.abs(np.linalg.norm(goal - box, axis=-1) - 0.3) <= allowed
    return near
