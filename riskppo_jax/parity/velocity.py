"""Records of the velocity tasks."""

from pathlib import Path

import jax
import numpy as np

from riskppo_jax.engines.base import resolve
from riskppo_jax.parity.record import Record, Result, check_shapes, errors, precision, read_record, tolerance

_NEEDED = ("qpos0", "qvel0", "obs0", "act", "obs", "rew", "cost", "term", "qpos", "qvel", "x_velocity")
_DEVIATIONS = ("dev_obs", "dev_rew", "dev_qpos")
_NATIVE_MEDIAN = 1e-4  # for tasks in `_CHAOTIC`
_CHAOTIC = ("SafetyHumanoidVelocity-v1",)  # limb-limb contacts and another solver: a few samples part ways
_CHAOTIC_SHARE = 0.5  # of its samples that must be within tolerance on mjx: right in the median


def replay(path: Path, engine: str) -> Result:
    """Steps every sample of a record once on `engine` and compares."""
    from riskppo_jax.envs.velocity import TASKS, Velocity

    robot = path.stem.removeprefix("Safety").removesuffix("Velocity-v1")
    needed = (*_NEEDED, *_DEVIATIONS, *(("y_velocity",) if TASKS[robot].speed == "planar" else ()))
    record = read_record(path, needed)
    engine = resolve(engine)
    with precision(engine):
        env = Velocity(robot, engine)
        _check(path, record, env, needed)
        start, after = _step_all(env, record)
        margin = jax.vmap(env.task.margin)(record["qpos"], record["qvel"])
    return _compare(path.stem, engine, env.task, record, start, after, np.asarray(margin))


def _check(path: Path, record: Record, env, needed) -> None:
    model = env.engine.model
    wide = {"qpos": (model.nq,), "qvel": (model.nv,), "qpos0": (model.nq,), "qvel0": (model.nv,), "act": (model.nu,),
            "obs": (env.observation_size,), "obs0": (env.observation_size,)}  # fmt: skip
    check_shapes(path, record, wide, needed)


def _step_all(env, record: Record):
    keys = jax.random.split(jax.random.key(0), len(record["act"]))
    number = jax.dtypes.canonicalize_dtype(float)
    qpos, qvel, act = (np.asarray(record[name], number) for name in ("qpos0", "qvel0", "act"))
    start = jax.jit(jax.vmap(env.place))(keys, qpos, qvel)
    after = jax.jit(jax.vmap(env.step))(start, act)
    return _returns(start), _returns(after)


def _returns(state) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, (state.obs, state.reward, state.cost, state.terminated)))


def _compare(id: str, engine: str, task, record: Record, start, after, margin) -> Result:
    obs, reward, cost, terminated = after
    allowed = {name: tolerance(engine, record[name]) for name in _DEVIATIONS}
    cost_differs = (cost > 0.5) != (record["cost"] > 0.5)
    near_threshold = np.abs(_recorded_speed(task, record) - task.threshold) <= allowed["dev_rew"]
    term_differs = terminated.astype(bool) != record["term"].astype(bool)
    near_limit = np.abs(margin) <= allowed["dev_qpos"]
    result = Result(
        id=id,
        obs=np.maximum(errors(obs, record["obs"]), errors(start[0], record["obs0"])),
        reward=errors(reward, record["rew"]),
        obs_tolerance=allowed["dev_obs"],
        reward_tolerance=allowed["dev_rew"],
        cost_mismatches=np.flatnonzero(cost_differs & ~near_threshold),
        cost_near=np.flatnonzero(cost_differs & near_threshold),
        term_mismatches=np.flatnonzero(term_differs & ~near_limit),
        term_near=np.flatnonzero(term_differs & near_limit),
    )
    result.rank()
    result.passed = result.flags_agree and _errors_pass(result, engine)
    return result


def _errors_pass(result: Result, engine: str) -> bool:
    if result.id not in _CHAOTIC:
        return bool(result.within.all())
    if engine == "native":
        return bool(max(np.median(result.obs), np.median(result.reward)) <= _NATIVE_MEDIAN)
    return bool(result.within.mean() >= _CHAOTIC_SHARE)


def _recorded_speed(task, record: Record) -> np.ndarray:
    if task.speed == "planar":
        return np.hypot(record["x_velocity"], record["y_velocity"])
    return record["x_velocity"]
