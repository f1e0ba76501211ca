"""What the environment's own noise takes of a robot's speed: why a return may stay below its ceiling.

    python experiments/noise.py [RUN ...] [--worlds 32]

A law of speeds whose CVaR is at its limit has its mean below it. At every step of mean actions this draws the action
noise twice from the same state: half of the mean squared difference of the two speeds is variance that no policy can
answer, because it has acted by then. If that were all that speeds vary (a normal law), their mean would be
`c - s phi(q) / beta`. Reads runs that `python experiments/run.py velocity` left, leaves `noise/PART-ROBOT.json`.
"""

import argparse
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from run import HERE, ceiling, weight, write_json

from riskppo_jax.engines.cache import enable_cache
from riskppo_jax.normalize import normalize
from riskppo_jax.runs import read_run, restore_lane

RUNS = [Path("runs/paper") / name for name in ("velocity/halfcheetah", "velocity_v1/halfcheetah")]
START = 50  # steps in which a robot gets going


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, default=RUNS, help="run directories (default: HalfCheetah's)")
    parser.add_argument("--worlds", type=int, default=32)
    args = parser.parse_args()
    enable_cache()
    (HERE / "noise").mkdir(exist_ok=True)
    for run in args.runs:
        lanes = [shares(run, lane, args.worlds) for lane in range(len(read_run(run).lanes))]
        write_json(HERE / "noise" / f"{run.parent.name}-{run.name}.json", {"worlds": args.worlds, "lanes": lanes})
        for lane in lanes:
            print(run, {name: round(value, 4) for name, value in lane.items()}, flush=True)


def shares(run: Path, lane: int, worlds: int) -> dict[str, float]:
    """What the ceiling loses, as shares of it: to noise no policy can answer, to other swings, the start, effort."""
    job, state = restore_lane(run, lane)
    limit = job.hypers.problem.constraints[0]
    c, beta = float(limit.threshold), float(limit.utility.beta)
    speed, twin, reward, visited = (np.asarray(x) for x in episodes(job, state, limit.name, worlds))
    late = visited[START:]
    sd = float(np.sqrt(np.mean((speed - twin)[START:][late] ** 2) / 2))
    below = sd * NormalDist().pdf(NormalDist().inv_cdf(beta)) / beta
    summary = {"env": job.settings.env["id"], "lanes": [{"constraints": [{"threshold": c}]}]}
    worth, top = weight(summary), ceiling(summary)
    survival = top / 1000 - worth * c
    lost = worth * np.where(visited, c - speed, 0.0).sum(0).mean()
    steady = worth * (c - speed[START:][late].mean()) * visited.sum(0).mean()
    below = worth * 1000 * below
    earned = np.where(visited, reward, 0.0).sum(0).mean()
    effort = np.where(visited, worth * speed + survival - reward, 0.0).sum(0).mean()
    return {
        "seed": job.settings.seed,
        "return": float(earned / top),
        "sd": float(speed[START:][late].std() / c),
        "sd_of_one_step": sd / c,
        "noise": below / top,
        "swings": float((steady - below) / top),
        "start": float((lost - steady) / top),
        "effort": float(effort / top),
    }


def episodes(job: Any, state: Any, name: str, worlds: int) -> tuple[jax.Array, ...]:
    """Speeds, those of a twin with other noise at the same step, rewards, and which steps count; `[time, world]`."""
    params, moments = state.deployed
    env, networks, clip = job.env, job.trainer.networks, job.hypers.ppo.obs_clip

    def step(carry, key):
        states, alive = carry
        action = networks.policy(params, normalize(moments, states.obs, clip)).mode()
        twins = jax.vmap(env.step)(states.replace(key=jax.random.split(key, worlds)), action)
        after = jax.vmap(env.step)(states, action)
        seen = (after.constraints[name], twins.constraints[name], after.reward, alive)
        return (after, alive & ~(after.terminated | after.truncated)), seen

    @jax.jit
    def run(key):
        key_reset, key_twins = jax.random.split(key)
        states = jax.vmap(env.reset)(jax.random.split(key_reset, worlds))
        return jax.lax.scan(step, (states, jnp.ones(worlds, bool)), jax.random.split(key_twins, env.limit))[1]

    return run(jax.random.key(1))


if __name__ == "__main__":
    main()
