"""Bytes and operations of the training program's parts, and what a roofline makes of them.

XLA's cost analysis counts the body of a loop once. The parts analysed here are therefore those between the loops: one
step of all worlds, and one gradient step; how often each runs is arithmetic. Loops that remain inside a part (physics
substeps, solver iterations) are counted by their length from the jaxpr, and the factor is given.
"""

import argparse
import json
import math
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from riskppo_jax.build import Job, build
from riskppo_jax.engines.cache import enable_cache
from riskppo_jax.room import carried_bytes, working_bytes
from riskppo_jax.settings import read_settings
from riskppo_jax.solvers.ppo.losses import Batch, ppo_loss

PROGRAMS = {"mjx": "SafetyHalfCheetahVelocity-v1", "analytic": "SafetyPointGoal0-v0"}
# vendors' peaks, single precision without tensor cores, and memory bandwidth
DEVICES = {
    "A100 SXM 80 GB": {"flops": 19.5e12, "bytes_per_second": 2.039e12, "memory": 80e9},
    "H100 SXM 80 GB": {"flops": 67e12, "bytes_per_second": 3.35e12, "memory": 80e9},
}
LAUNCH = 4e-6  # seconds of a kernel launch: assumed, not measured


def analyse(engine: str, task: str, worlds: int) -> dict[str, Any]:
    """Costs of one engine's program with the default networks and update."""
    job = build(read_settings([f"env={task}", f"engine={engine}", f"layout.num_envs={worlds}", "layout.horizon=32"]))
    state = jax.eval_shape(job.trainer.init, jax.random.key(0), job.hypers)
    action = jax.ShapeDtypeStruct((worlds, job.env.action_size), jnp.float32)
    parts = {
        "world step": cost(jax.vmap(job.env.step), worlds, state.envs, action),
        "policy and value": cost(_act(job), worlds, state.learner.params, state.envs.obs),
        "gradient step": cost(_gradient(job, state), job.layout.minibatch_size, *_gradient_args(job, state)),
    }
    layout = job.layout
    per_step = {"world step": 1, "policy and value": 2, "gradient step": layout.num_epochs}
    total = {key: sum(parts[name][key] * times for name, times in per_step.items()) for key in ("flops", "bytes")}
    kernels = parts["world step"]["kernels"] + parts["policy and value"]["kernels"]
    return {
        "task": task, "worlds": worlds, "parts": parts, "times_per_environment_step": per_step,
        "per_environment_step": total, "kernels_between_steps": kernels,
        "bytes_per_lane": {"carried": carried_bytes(job), "at_work": working_bytes(job)},
        "devices": {name: roofline(total, kernels, about) for name, about in DEVICES.items()},
    }  # fmt: skip


def roofline(total: dict[str, float], kernels: int, device: dict[str, float]) -> dict[str, Any]:
    """The least time of an environment step, what limits it, and how many worlds hide the kernels' launches."""
    compute, memory = total["flops"] / device["flops"], total["bytes"] / device["bytes_per_second"]
    least = max(compute, memory)
    return {
        "seconds_per_step": least,
        "steps_per_second_at_most": 1 / least,
        "limited_by": "arithmetic" if compute > memory else "memory",
        "worlds_that_hide_launches": math.ceil(kernels * LAUNCH / least),
    }


def cost(function: Any, count: int, *args: Any) -> dict[str, Any]:
    """XLA's count for `count` worlds or samples, per world or sample, with loops inside counted by their length."""
    program = jax.jit(function).lower(*args).compile()
    found, memory, text = program.cost_analysis(), program.memory_analysis(), program.as_text()
    once, unrolled = _operations(jax.make_jaxpr(function)(*args).jaxpr)
    factor = unrolled / max(once, 1)
    return {
        "flops_once": found["flops"] / count, "bytes_once": found["bytes accessed"] / count, "loop_factor": factor,
        "flops": factor * found["flops"] / count, "bytes": factor * found["bytes accessed"] / count,
        "temporary_bytes": memory.temp_size_in_bytes / count, "kernels": round(factor * text.count(" fusion(")),
    }  # fmt: skip


def _operations(jaxpr: Any) -> tuple[float, float]:
    """Operations with every loop counted once, and by its length (a `while` of unknown length stays one)."""
    once = many = 0.0
    for equation in jaxpr.eqns:
        inner = [sub for value in equation.params.values() for sub in _jaxprs(value)]
        if inner:
            length = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            for sub in inner:
                a, b = _operations(sub)
                once, many = once + a, many + length * b
            continue
        size = sum(math.prod(out.aval.shape) for out in equation.outvars)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            size *= 2 * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        once, many = once + size, many + size
    return once, many


def _jaxprs(value: Any) -> list[Any]:
    values = value if isinstance(value, list | tuple) else [value]
    return [getattr(item, "jaxpr", item) for item in values if hasattr(item, "eqns") or hasattr(item, "jaxpr")]


def _act(job: Job) -> Any:
    networks = job.trainer.networks

    def act(params, obs):
        return networks.policy(params, obs).sample(seed=jax.random.key(0)), networks.value(params, obs)

    return act


def _gradient(job: Job, state: Any) -> Any:
    _, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state.learner.params))

    def loss(weights, batch):
        return ppo_loss(unravel(weights), batch, job.trainer.networks, job.hypers.ppo, job.layout)

    return jax.value_and_grad(loss, has_aux=True)


def _gradient_args(job: Job, state: Any) -> tuple[Any, ...]:
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(state.learner.params))
    column = jax.ShapeDtypeStruct((job.layout.minibatch_size,), jnp.float32)
    wide = lambda n: jax.ShapeDtypeStruct((job.layout.minibatch_size, n), jnp.float32)  # noqa: E731
    batch = Batch(wide(job.env.observation_size), wide(job.env.action_size), column, column, column, column, column)
    return jax.ShapeDtypeStruct((size,), jnp.float32), batch


def products(size: int = 64, count: int = 1000, rounds: int = 20) -> float:
    """Operations a second of bare matrix products as large as a hidden layer's, one after the other on this device."""
    matrix = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5
    program = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, y: y @ matrix, x)).lower(matrix).compile()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(program(matrix))
        times.append(time.perf_counter() - began)
    return 2 * size**3 * count / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--worlds", type=int, default=256)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "scale.json")
    parser.add_argument("--products", action="store_true", help="measure bare matrix products here, and nothing else")
    args = parser.parse_args()
    if args.products:
        print(f"products of 64 x 64 matrices: {products() / 1e9:.0f} GFLOP/s")
        return
    enable_cache()
    found = json.loads(args.json.read_text())["programs"] if args.json.exists() else {}
    for engine in args.engines:
        found[engine] = analyse(engine, PROGRAMS[engine], args.worlds)
        print(engine, json.dumps(found[engine], indent=1), flush=True)
        about = {"assumed": {"kernel_launch_seconds": LAUNCH, "peaks": DEVICES}, "compiled_for": jax.default_backend()}
        about["versions"] = {name: version(name) for name in ("jax", "jaxlib", "mujoco-mjx")}
        args.json.write_text(json.dumps({**about, "programs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
