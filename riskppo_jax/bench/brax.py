"""`mjx` beside Brax's own environments with `backend="mjx"`: lines of `riskppo bench engines`."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from copy import copy
from importlib.util import find_spec
from typing import Any

import jax
import mujoco

from riskppo_jax.bench.engines import (
    Line,
    engine_step,
    line_of,
    random_actions,
    robot_of,
    scan_of,
    until_ready,
    world_keys,
)
from riskppo_jax.bench.timing import bytes_per_world, compiled, race
from riskppo_jax.engines.base import make_engine
from riskppo_jax.engines.mjx import SEARCHES
from riskppo_jax.engines.models import quiet
from riskppo_jax.envs.base import State
from riskppo_jax.envs.registry import make_env
from riskppo_jax.types import Array, PyTree

SPEED = 1.5  # what the project wants of itself
BYTES = 5.0


def measure(task: str, n: int, steps: int, repeats: int) -> Iterator[Line]:
    """Lines of one task: ours, Brax's as it is and with the task's integrator, and what a faster solver could gain."""
    env = make_env(task, engine="mjx")
    states = jax.jit(jax.vmap(env.reset))(world_keys(n))
    actions = random_actions(env, steps, n)
    program, seconds = compiled(scan_of(jax.vmap(env.step)), states, actions)
    ours = until_ready(program, states, actions)
    size = bytes_per_world(states, n)
    yield Line(task, "mjx task, compile", n, seconds, unit="s")
    brax, reason = _brax(robot_of(task), env.task.frame_skip)
    if brax is None:
        rate = race({"ours": ours}, repeats)["ours"]
        yield Line(task, "mjx task / brax", n, rate.best, repeats=repeats, note=reason)
        yield Line(task, "bytes, brax / mjx task", n, size, unit="B", note=reason)
        return
    from brax.envs.wrappers import training

    keys = jax.random.key_data(world_keys(n))
    wrapped = training.wrap(brax, episode_length=1000)
    first = jax.jit(wrapped.reset)(keys)
    program, seconds = compiled(scan_of(wrapped.step), first, actions)
    yield Line(task, "brax, compile", n, seconds, unit="s")
    programs = {"ours": ours, "brax": until_ready(program, first, actions)}
    sim = first.pipeline_state
    for name, step, start in (
        ("pipeline", jax.vmap(brax.pipeline_step), sim),
        ("engine", *_on_model_of(brax, env.task.frame_skip, sim.q, sim.qd)),
        ("bound", *_unsolved(env, states)),
    ):
        programs[name] = until_ready(compiled(scan_of(step), start, actions)[0], start, actions)
    forwards = _forwards(env.engine.model.opt.integrator), _forwards(brax.sys.opt.integrator)
    same = forwards[0] == forwards[1]
    if not same:  # Brax with as many forward passes as the task asks for
        rk4 = type(brax.sys.opt.integrator).RK4
        brax.sys = brax.sys.tree_replace({"opt.integrator": rk4})
        alike = training.wrap(brax, episode_length=1000)
        programs["alike"] = until_ready(compiled(scan_of(alike.step), first, actions)[0], first, actions)
    rates = race(programs, repeats)
    note = "" if same else "forward passes a substep: {} here, {} in brax".format(*forwards)
    yield line_of(task, "mjx task / brax", n, rates["ours"], rates["brax"], SPEED, note)
    if not same:
        yield line_of(task, "mjx task / brax, same integrator", n, rates["ours"], rates["alike"], SPEED)
    note = "the engine on the task's model if constraint forces came for nothing: no solver gets beyond it"
    yield line_of(task, "mjx without solver / brax", n, rates["bound"], rates["brax" if same else "alike"], note=note)
    note = "physics alone, on brax's model, with its integrator and as many Newton iterations"
    yield line_of(task, "mjx engine / brax's, same model", n, rates["engine"], rates["pipeline"], SPEED, note)
    theirs = bytes_per_world(jax.eval_shape(jax.vmap(brax.reset), keys), n)
    yield Line(
        task, "bytes, brax / mjx task", n, size, theirs, "B", theirs / size, target=BYTES,
        note="brax without its training wrappers",
    )  # fmt: skip


def _brax(robot: str, substeps: int) -> tuple[Any, str]:
    """Brax's environment of a robot, or None and the reason."""
    if find_spec("brax") is None:
        return None, "no comparison: brax is not installed (pip install 'riskppo-jax[bench]')"
    with warnings.catch_warnings(), quiet(), redirect_stdout(None):
        warnings.simplefilter("ignore")  # Brax announces at length that it is no longer developed
        from brax import envs

        try:
            return envs.get_environment(robot.lower(), backend="mjx", n_frames=substeps), ""
        except ValueError as error:
            return None, f"no comparison: brax's {robot} says: {error}"


def _on_model_of(brax: Any, substeps: int, qpos: Array, qvel: Array) -> tuple[Callable, PyTree]:
    """The step of our engine on the model of a Brax environment, solved as there, and a batch of states."""
    model, option = copy(brax.sys.mj_model), brax.sys.opt
    for name in ("integrator", "disableflags", "solver", "cone"):
        setattr(model.opt, name, int(getattr(option, name)))
    solver = {"newton": int(option.iterations), "searches": min(int(option.ls_iterations), SEARCHES)}
    engine = make_engine("mjx", model, substeps, solver=solver)
    return engine_step(engine), jax.jit(jax.vmap(engine.init))(qpos, qvel).carry


def _unsolved(env: Any, states: State) -> tuple[Callable, PyTree]:
    """The step of an engine that sets up all constraints and takes no iteration to solve them, and its states."""
    engine = make_engine("mjx", env.engine.model, env.task.frame_skip, solver={"newton": 0, "searches": 0})
    return engine_step(engine), jax.jit(jax.vmap(engine.init))(states.sim.qpos, states.sim.qvel).carry


def _forwards(integrator: Any) -> int:
    return 4 if int(integrator) == int(mujoco.mjtIntegrator.mjINT_RK4) else 1
