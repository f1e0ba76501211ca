"""How far noise alone goes: the share of episodes that it brings to a goal's worth of return, before any training.

    python experiments/reach.py [--env SafetyPointPush1-v0] [--episodes 512] [--steps 500]

Exploration that never sees the reward behind a detour cannot learn it. Actions here are nothing but noise around zero,
for some of its correlations from step to step (`layout.noise_memory`), in one layout. Leaves `reach/ENV.json`.
"""

import argparse

import jax
import numpy as np
from run import HERE, write_json

import riskppo_jax as rp
from riskppo_jax.distributions import remembering
from riskppo_jax.engines.cache import enable_cache

MEMORIES = (0.0, 0.9, 0.95, 0.98, 0.99)
ENOUGH = 1.0  # return: what reaching a goal adds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--env", default="SafetyPointPush1-v0", metavar="ID")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--sd", type=float, default=1.0, help="of an action (default: %(default)s)")
    args = parser.parse_args()
    enable_cache()
    (HERE / "reach").mkdir(exist_ok=True)
    env = rp.make_env(args.env, reset="fixed", time_limit=args.steps)
    found = {"episodes": args.episodes, "steps": args.steps, "sd": args.sd, "share": {}}
    for memory in MEMORIES:
        best = highest(env, memory, args.sd, args.steps, args.episodes)
        found["share"][f"{memory:g}"] = float(np.mean(best > ENOUGH))
        print(f"{args.env}: noise that correlates by {memory:g} earns more than {ENOUGH:g} in "
              f"{found['share'][f'{memory:g}']:.2%} of {args.episodes} episodes", flush=True)  # fmt: skip
    write_json(HERE / "reach" / f"{args.env}.json", found)


def highest(env, memory: float, sd: float, steps: int, episodes: int) -> np.ndarray:
    """The highest return so far that each episode of noise saw."""

    @jax.jit
    def rewards(key):
        worlds = jax.vmap(env.reset)(jax.random.split(key, episodes))
        noise = sd * remembering(jax.random.fold_in(key, 1), memory, (steps, episodes, env.action_size))

        def step(worlds, action):
            worlds = jax.vmap(env.step)(worlds, action)
            return worlds, worlds.reward

        return jax.lax.scan(step, worlds, noise)[1]

    return np.asarray(rewards(jax.random.key(0))).cumsum(0).max(0)


if __name__ == "__main__":
    main()
