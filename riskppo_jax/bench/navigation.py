"""Speed of the navigation tasks: part of `riskppo bench engines`.

In the middle of each round all worlds end their episodes and start others, as they do in training, where they were
started together; there it happens once in 500 or 1000 steps, here once in a round of a few dozen.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from riskppo_jax.bench.engines import Line, line_of, random_actions, raw_loop, scan_of, until_ready, world_keys
from riskppo_jax.bench.timing import bytes_per_world, compiled, race
from riskppo_jax.envs.registry import engines_of, make_env
from riskppo_jax.types import PyTree

TASKS = ("SafetyPointGoal1-v0", "SafetyPointButton1-v0", "SafetyPointCircle1-v0")

# what the project wants of itself
RAW = 0.8  # native task, with lidar, layouts and resets, over the bare batch
NATIVE = 6_000  # environment steps per second on two cores, where the bare batch allows it
ANALYTIC = 1_000_000
_ANALYTIC_WORLDS = 4096


def measure(task: str, engine: str, n: int, steps: int, repeats: int) -> Iterator[Line]:
    """Lines of one navigation task; those of `analytic` come with `native`."""
    if engine == "mjx":
        yield from _mjx(task, n, steps, repeats)
        return
    yield from _native(task, n, steps, repeats)
    if "analytic" in engines_of(task):
        yield from _analytic(task, max(n, _ANALYTIC_WORLDS) if n > 16 else n, steps, repeats)


def _native(task: str, n: int, steps: int, repeats: int) -> Iterator[Line]:
    env = make_env(task, engine="native")
    states, actions = _ending(env, n, steps), random_actions(env, steps, n)
    whole, seconds = compiled(scan_of(jax.vmap(env.step)), states, actions)
    yield Line(task, "native task, compile", n, seconds, unit="s")
    states = _rewound(whole(states, actions), states)  # gremlins start on the floor and float from then on
    _, raw = raw_loop(env.engine, actions, states.sim.carry)
    rates = race({"raw": raw, "task": until_ready(whole, states, actions)}, repeats)
    yield line_of(task, "native task / raw batch", n, rates["task"], rates["raw"], RAW)
    allowed = min(NATIVE, RAW * rates["raw"].best)
    yield _against(task, "native task / wanted", n, rates["task"], allowed)


def _analytic(task: str, n: int, steps: int, repeats: int) -> Iterator[Line]:
    env = make_env(task, engine="analytic")
    states, actions = _ending(env, n, steps), random_actions(env, steps, n)
    whole, seconds = compiled(scan_of(jax.vmap(env.step)), states, actions)
    yield Line(task, "analytic task, compile", n, seconds, unit="s")
    rate = race({"task": until_ready(whole, states, actions)}, repeats)["task"]
    yield _against(task, "analytic task / wanted", n, rate, ANALYTIC)


def _mjx(task: str, n: int, steps: int, repeats: int) -> Iterator[Line]:
    env = make_env(task, engine="mjx")
    states, actions = _ending(env, n, steps), random_actions(env, steps, n)
    whole, seconds = compiled(scan_of(jax.vmap(env.step)), states, actions)
    yield Line(task, "mjx task, compile", n, seconds, unit="s")
    rate = race({"task": until_ready(whole, states, actions)}, repeats)["task"]
    contacts = f"{env.engine.contacts} candidate contacts"
    yield Line(task, "mjx task", n, rate.best, repeats=repeats, note=contacts)
    yield Line(task, "bytes, mjx task", n, bytes_per_world(states, n), unit="B")


def _against(task: str, what: str, n: int, rate: Any, wanted: float) -> Line:
    best, median = rate.best / wanted, rate.median / wanted
    return Line(task, what, n, rate.best, wanted, "steps/s", best, median, len(rate.samples), 1.0)


def _ending(env: Any, n: int, steps: int) -> PyTree:
    """Fresh worlds whose episodes end halfway through a round."""
    states = jax.jit(jax.vmap(env.reset))(world_keys(n))
    left = jnp.full_like(states.info["steps"], env.limit - steps // 2)
    return states.replace(info={**states.info, "steps": left})


def _rewound(states: PyTree, first: PyTree) -> PyTree:
    """`states` with the clocks of the first."""
    return states.replace(info={**states.info, "steps": first.info["steps"]})
