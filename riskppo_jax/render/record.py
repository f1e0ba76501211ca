"""Episodes as MuJoCo states: what the physics carried, step by step, with what was earned and constrained."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import mujoco
import numpy as np

from riskppo_jax.envs.base import Env, State
from riskppo_jax.envs.wrappers import with_noise
from riskppo_jax.errors import UserError
from riskppo_jax.normalize import normalize
from riskppo_jax.risk.lagrangian import Problem
from riskppo_jax.types import Array, ArrayLike, Key

if TYPE_CHECKING:
    from riskppo_jax.build import Job

Act = Callable[[Key, Array], Array]  # key, observation -> action


class Recording(NamedTuple):
    """Steps of one world, episode after episode; fields lead with the step."""

    model: mujoco.MjModel
    dt: float  # seconds of simulation between two steps
    qpos: np.ndarray  # [step, nq], after the step
    mocap: np.ndarray  # [step, nmocap, 7]
    reward: np.ndarray
    cost: np.ndarray
    quantities: dict[str, np.ndarray]
    thresholds: dict[str, float]
    episode: np.ndarray  # number of the episode a step belongs to, from 0

    def place(self, data: mujoco.MjData, step: int) -> None:
        """Puts `data` where the world was after `step`."""
        data.qpos[:] = self.qpos[step]
        data.mocap_pos[:], data.mocap_quat[:] = self.mocap[step, :, :3], self.mocap[step, :, 3:]
        mujoco.mj_forward(self.model, data)


def limits_of(problem: Problem) -> dict[str, float]:
    """The limit of each constrained quantity, the tightest where it has several."""
    limits: dict[str, float] = {}
    for constraint in problem.constraints:
        limits[constraint.name] = min(float(constraint.threshold), limits.get(constraint.name, math.inf))
    return limits


def record(
    env: Env,
    act: Act,
    steps: int,
    key: Key | None = None,
    thresholds: dict[str, float] | None = None,
    noise: ArrayLike | None = None,
) -> Recording:
    """Runs `act` in one world for `steps` steps; episodes follow each other.

    Args:
      env: a task with a MuJoCo model; it resets itself.
      act: the policy, of a key and an observation.
      steps: how many; those that end an episode are left out, since they show the next one's start.
      key: of the world; fixed by default.
      thresholds: limits to show; by default the task's own.
      noise: standard deviation of the task's action noise; None leaves what it was made with.
    """
    model = model_of(env)
    key = jax.random.key(0) if key is None else key
    states = jax.jit(_run, static_argnames=("env", "act", "steps"))(key, noise, env=env, act=act, steps=steps)
    states = jax.device_get(states.replace(key=None))
    done = states.terminated | states.truncated
    shown = ~done
    if not shown.any():
        raise UserError(f"steps={steps}: every episode ended at once, there is nothing to show; accepts more steps")
    worlds = (jax.tree.map(lambda x, i=i: x[i], states) for i in np.flatnonzero(shown))
    qpos, mocap = zip(*(pose_of(env, world) for world in worlds), strict=True)
    return Recording(
        model=model,
        dt=time_step(env),
        qpos=np.array(qpos),
        mocap=np.array(mocap).reshape(len(mocap), model.nmocap, 7),
        reward=states.reward[shown],
        cost=states.cost[shown],
        quantities={name: value[shown] for name, value in states.constraints.items()},
        thresholds=dict(env.thresholds if thresholds is None else thresholds),
        episode=(np.cumsum(done) - done)[shown],
    )


def policy_of(job: "Job", state: Any, deterministic: bool = True) -> Act:
    """The policy of a run at `state`; the mean action, or sampled ones."""
    params, moments = state.deployed if deterministic else state.trained
    clip = job.hypers.ppo.obs_clip

    def act(key: Key, obs: Array) -> Array:
        law = job.trainer.networks.policy(params, normalize(moments, obs, clip))
        return law.mode() if deterministic else law.sample(seed=key)

    return act


def random_policy(env: Env) -> Act:
    """Actions drawn evenly from the task's range."""
    low, high = getattr(env, "action_range", (-1.0, 1.0))

    def act(key: Key, obs: Array) -> Array:
        del obs
        if env.num_actions is not None:
            return jax.random.randint(key, (), 0, env.num_actions)
        return jax.random.uniform(key, (env.action_size,), minval=low, maxval=high)

    return act


def model_of(env: Env) -> mujoco.MjModel:
    """The model to draw: the task's own `scene()` where it shows more than its physics knows, else the physics."""
    if hasattr(env, "scene"):
        return env.scene()
    model = getattr(engine_of(env), "model", None)
    if model is None:
        raise UserError("env: this task has no physics, so there is nothing to draw; accepts one with a MuJoCo model")
    return model


def pose_of(env: Env, state: State) -> tuple[np.ndarray, np.ndarray]:
    """`qpos` and mocap poses `[nmocap, 7]` of one world, in float64."""
    if hasattr(env, "pose"):
        found = env.pose(state)
        return found["qpos"], np.concatenate([found["mocap_pos"], found["mocap_quat"]], axis=1)
    return engine_of(env).poses(state.sim)


def can_be_drawn(env: Env) -> bool:
    """Whether there is a model to draw."""
    return hasattr(env, "scene") or getattr(engine_of(env), "model", None) is not None


def engine_of(env: Env) -> Any:
    """The physics behind a task; None where it has none."""
    return getattr(env, "engine", None)


def time_step(env: Any) -> float:
    """Seconds of simulation in a step of the task."""
    return float(getattr(env, "dt", 1.0))


def _run(key: Key, noise: Array | None, *, env: Env, act: Act, steps: int) -> State:
    key_reset, key_act = jax.random.split(key)
    start = env.reset(key_reset)
    start = start if noise is None else with_noise(start, noise)

    def step(state, key):
        state = env.step(state, act(key, state.obs))
        return state, state

    return jax.lax.scan(step, start, jax.random.split(key_act, steps))[1]


def steps_for(env: Env, seconds: float) -> int:
    """Steps that last `seconds` in the simulated world."""
    return max(1, round(seconds / time_step(env)))
