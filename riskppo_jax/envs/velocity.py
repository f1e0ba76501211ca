"""The six velocity tasks of Safety-Gymnasium: run, and be charged for running faster than a threshold.

They are gymnasium's v4 locomotion environments with a cost: models from the `gymnasium` package, the raw
action in the reward, and for Ant and Humanoid a velocity taken from the body positions the last Runge-Kutta
stage leaves behind. Numbers come from the original package; `riskppo parity` replays its recordings against
this file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from riskppo_jax.engines.base import Engine, Sim, Track, make_engine, resolve
from riskppo_jax.engines.models import load_packaged
from riskppo_jax.envs.base import Env, State
from riskppo_jax.envs.wrappers import ActionNoise, AutoReset, FiniteGuard, TimeLimit
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, Key

Fields = dict[str, Array]
_MAX_EFFORT = 25.0  # generous bound on the mean square of what policies ask of their motors


@dataclass(frozen=True)
class Task:
    """What sets one velocity task apart; lengths in metres, speeds in metres per second."""

    xml: str
    frame_skip: int
    reset_scale: float  # qpos noise is U(-scale, scale)
    reset_gauss: bool  # qvel noise is scale * N(0, 1) instead of U(-scale, scale)
    ctrl_weight: float
    survival: float  # paid on every step, the last one included
    threshold: float  # the benchmark's limit on the speed
    max_speed: float  # generous bound on speeds that policies reach
    observe: Callable[[Fields], Array]
    margin: Callable[[Array, Array], Array]  # of qpos, qvel: distance to the nearest limit, < 0 beyond it
    closed: bool = False  # whether a posture exactly at the limit is healthy
    forward_weight: float = 1.0
    paper_threshold: float | None = None  # limits in the captions of the paper's figures
    speed: str = "signed"  # the speed the benchmark charges for
    point: tuple[str, str | int] = ("qpos", 0)  # whose displacement is the velocity
    upright: bool = False  # whether it moves in the plane of x and z, never to the side
    fields: tuple[str, ...] = ("qpos", "qvel")
    solver: Mapping[str, Any] = field(default_factory=dict)  # MJX's; the default suits all, see engines/mjx.py


def _none(qpos: Array, qvel: Array) -> Array:
    return jnp.full((), jnp.inf)


def _hopper_margin(qpos: Array, qvel: Array) -> Array:
    bounded = 100.0 - jnp.max(jnp.abs(jnp.concatenate([qpos[2:], qvel])))
    return jnp.minimum(jnp.minimum(qpos[1] - 0.7, 0.2 - jnp.abs(qpos[2])), bounded)


def _walker_margin(qpos: Array, qvel: Array) -> Array:
    return jnp.minimum(jnp.minimum(qpos[1] - 0.8, 2.0 - qpos[1]), 1.0 - jnp.abs(qpos[2]))


def _ant_margin(qpos: Array, qvel: Array) -> Array:
    finite = jnp.all(jnp.isfinite(qpos)) & jnp.all(jnp.isfinite(qvel))
    return jnp.where(finite, jnp.minimum(qpos[2] - 0.2, 1.0 - qpos[2]), -jnp.inf)


def _humanoid_margin(qpos: Array, qvel: Array) -> Array:
    return jnp.minimum(qpos[2] - 1.0, 2.0 - qpos[2])


def _posture(skip: int, clip: float | None = None) -> Callable[[Fields], Array]:
    """Observation `qpos[skip:], qvel`, velocities clipped where the original does."""

    def observe(derived: Fields) -> Array:
        qvel = derived["qvel"] if clip is None else jnp.clip(derived["qvel"], -clip, clip)
        return jnp.concatenate([derived["qpos"][skip:], qvel])

    return observe


def _humanoid_observation(derived: Fields) -> Array:
    rest = ("qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    return jnp.concatenate([derived["qpos"][2:], *(derived[name] for name in rest)])


TASKS = {
    "HalfCheetah": Task(
        xml="half_cheetah.xml", frame_skip=5, reset_scale=0.1, reset_gauss=True, ctrl_weight=0.1,
        survival=0.0, threshold=3.2096, paper_threshold=1.450, max_speed=20.0, observe=_posture(1),
        margin=_none, upright=True,
    ),
    "Hopper": Task(
        xml="hopper.xml", frame_skip=4, reset_scale=0.005, reset_gauss=False, ctrl_weight=0.001, survival=1.0,
        threshold=0.7402, paper_threshold=0.373, max_speed=10.0, observe=_posture(1, 10.0),
        margin=_hopper_margin, upright=True,
    ),
    "Swimmer": Task(
        xml="swimmer.xml", frame_skip=4, reset_scale=0.1, reset_gauss=False, ctrl_weight=0.0001, survival=0.0,
        threshold=0.2282, paper_threshold=0.228, max_speed=5.0, observe=_posture(2), margin=_none,
    ),
    "Walker2d": Task(
        xml="walker2d.xml", frame_skip=4, reset_scale=0.005, reset_gauss=False, ctrl_weight=0.001,
        survival=1.0, threshold=2.3415, paper_threshold=1.171, max_speed=10.0, observe=_posture(1, 10.0),
        margin=_walker_margin, upright=True,
    ),
    "Ant": Task(
        xml="ant.xml", frame_skip=5, reset_scale=0.1, reset_gauss=True, ctrl_weight=0.5, survival=1.0,
        threshold=2.6222, max_speed=20.0, observe=_posture(2), margin=_ant_margin, closed=True,
        speed="planar", point=("xpos", "torso"),
    ),
    "Humanoid": Task(
        xml="humanoid.xml", frame_skip=5, reset_scale=0.01, reset_gauss=False, ctrl_weight=0.1, survival=5.0,
        forward_weight=1.25, threshold=1.4149, max_speed=20.0, observe=_humanoid_observation,
        margin=_humanoid_margin, speed="planar", point=("subtree_com", 0),
        fields=("qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext"),
    ),
}  # fmt: skip


def make(
    robot: str,
    engine: str = "auto",
    time_limit: int | None = 1000,
    noise: float = 0.0,
    auto_reset: bool = True,
    **options: Any,
) -> Env:
    """The task with what surrounds it in training: noise, finite guard, time limit, auto-reset."""
    env = FiniteGuard(ActionNoise(Velocity(robot, engine, **options), noise))
    if time_limit is not None:
        env = TimeLimit(env, time_limit)
    return AutoReset(env, told=("x_velocity", "y_velocity")) if auto_reset else env


class Velocity:
    """One velocity task on one engine, without time limit, noise or auto-reset (`wrappers` add those).

    `State.cost` is the benchmark's: 1 where its speed exceeds its threshold. `State.constraints["velocity"]`
    is the speed in the form asked for, `["effort"]` the mean square of the action, for those who limit that too.

    Args:
      robot: a name in `TASKS`.
      engine: see `engines.make_engine`.
      reset: "random" as in the benchmark, or "fixed" for its centre without noise.
      thresholds: "v1" for the benchmark's limit in `env.thresholds`, "paper" for the paper's.
      speed: "signed" forward velocity, "abs" its absolute value, "planar" length of the horizontal velocity;
        by default what the benchmark charges for.
      clip_actions: clip actions to the control range before reward and physics see them; MuJoCo clips what
        acts on the joints in any case.
    """

    num_actions = None
    constraint_names = ("velocity", "effort")

    def __init__(
        self,
        robot: str,
        engine: str = "auto",
        reset: str = "random",
        thresholds: str = "v1",
        speed: str | None = None,
        clip_actions: bool = False,
    ):
        task = TASKS[robot]
        model = load_packaged(task.xml, pairs=resolve(engine) == "native")
        self.task = task
        self.engine: Engine = make_engine(
            engine, model, task.frame_skip, task.fields, _track(task, model), solver=task.solver
        )
        self.dt = self.engine.dt
        self.action_size = model.nu
        self.observation_size = _observation_size(task, model)
        self.action_range = (float(model.actuator_ctrlrange[0, 0]), float(model.actuator_ctrlrange[0, 1]))
        self.thresholds = {"velocity": _threshold(robot, thresholds)}
        self.paper_threshold = task.paper_threshold
        self._speed = task.speed if speed is None else speed
        low = -task.max_speed if self._speed == "signed" else 0.0
        self.constraint_range = {"velocity": (low, task.max_speed), "effort": (0.0, _MAX_EFFORT)}
        self._fixed = reset == "fixed"
        self._clip = clip_actions
        self._qpos0 = model.qpos0.copy()
        self._free = model.jnt_type[0] == 0

    def reset(self, key: Key, where: Array | bool = True) -> State:
        """A fresh world; where `where` is False the engine may return anything."""
        key, key_qpos, key_qvel = jax.random.split(key, 3)
        qpos, qvel = self._start(key_qpos, key_qvel)
        return self.place(key, qpos, qvel, where)

    def place(self, key: Key, qpos: Array, qvel: Array, where: Array | bool = True) -> State:
        """A world that starts from this posture and motion."""
        sim = self.engine.init(qpos, qvel, where=where)
        zero = jnp.zeros(())
        false = jnp.zeros((), bool)
        obs = self.task.observe(sim.derived)
        return State(
            sim=sim.carry, obs=obs, reward=zero, cost=zero, constraints={"velocity": zero, "effort": zero},
            terminated=false, truncated=false, final_obs=obs, info={"x_velocity": zero, "y_velocity": zero}, key=key,
        )  # fmt: skip

    def step(self, state: State, action: Array) -> State:
        if self._clip:
            action = jnp.clip(action, *self.action_range)
        task = self.task
        sim = self.engine.step(Sim(carry=state.sim, derived={}), action)
        velocity = sim.derived["moved"] / self.dt
        if task.upright:
            velocity = velocity.at[1].set(0.0)
        speed = {form: _speed(form, velocity) for form in (task.speed, self._speed)}
        reward = task.forward_weight * velocity[0] + task.survival - task.ctrl_weight * jnp.sum(action**2)
        obs = task.observe(sim.derived)
        margin = task.margin(sim.derived["qpos"], sim.derived["qvel"])
        return state.replace(
            sim=sim.carry,
            obs=obs,
            reward=reward,
            cost=(speed[task.speed] > task.threshold).astype(reward.dtype),
            constraints={"velocity": speed[self._speed], "effort": jnp.mean(action**2)},
            terminated=~((margin > 0) | (task.closed & (margin == 0))),
            truncated=jnp.zeros_like(state.truncated),
            final_obs=obs,
            info={**state.info, "x_velocity": velocity[0], "y_velocity": velocity[1]},
        )

    def _start(self, key_qpos: Key, key_qvel: Key) -> tuple[Array, Array]:
        qpos = jnp.asarray(self._qpos0, float)
        nv = self.engine.model.nv
        if self._fixed:
            return qpos, jnp.zeros(nv)
        scale = self.task.reset_scale
        qpos = qpos + jax.random.uniform(key_qpos, qpos.shape, minval=-scale, maxval=scale)
        if self._free:  # the noise hits the quaternion too; the original's MuJoCo normalises it in place
            qpos = qpos.at[3:7].divide(jnp.linalg.norm(qpos[3:7]))
        if self.task.reset_gauss:
            return qpos, scale * jax.random.normal(key_qvel, (nv,))
        return qpos, jax.random.uniform(key_qvel, (nv,), minval=-scale, maxval=scale)


def _speed(form: str, velocity: Array) -> Array:
    if form == "planar":
        return jnp.sqrt(velocity[0] ** 2 + velocity[1] ** 2)
    return jnp.abs(velocity[0]) if form == "abs" else velocity[0]


def _threshold(robot: str, thresholds: str) -> float:
    task = TASKS[robot]
    if thresholds == "v1":
        return task.threshold
    if task.paper_threshold is None:
        raise UserError(f"thresholds=paper: the paper has no limit for {robot}; thresholds accepts v1")
    return task.paper_threshold


def _track(task: Task, model) -> Track:
    name, row = task.point
    if name == "qpos":
        return Track(name, 0, 2)
    start = 3 * (model.body(row).id if isinstance(row, str) else row)
    return Track(name, start, start + 2)


def _observation_size(task: Task, model) -> int:
    import mujoco

    data = mujoco.MjData(model)
    derived = {name: jax.ShapeDtypeStruct((getattr(data, name).size,), jnp.float32) for name in task.fields}
    return jax.eval_shape(task.observe, derived).shape[0]
