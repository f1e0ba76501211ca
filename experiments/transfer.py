"""A policy trained on one engine and run on the other, and its exported arrays run by plain NumPy.

    python experiments/transfer.py [RUN ...] [--episodes 8]

Reads the first lane of runs that `python experiments/run.py velocity mjx` left, lets it act on `native` and on `mjx`
from the same keys, and leaves `transfer/TASK-ENGINE.json`, the engine being the one it was trained on.
"""

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from run import HERE, write_json

from riskppo_jax.build import build
from riskppo_jax.engines.cache import enable_cache
from riskppo_jax.evaluation import risk_report
from riskppo_jax.export import export
from riskppo_jax.normalize import normalize
from riskppo_jax.results import run_episodes, versions
from riskppo_jax.runs import restore_lane

RUNS = [Path("runs/paper") / name for name in ("velocity/halfcheetah", "velocity/hopper", "mjx/hopper")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, default=RUNS, help="run directories (default: three)")
    parser.add_argument("--episodes", type=int, default=8)
    args = parser.parse_args()
    enable_cache()
    (HERE / "transfer").mkdir(exist_ok=True)
    for run in args.runs:
        job, state = restore_lane(run)
        task = f"{run.name}-{job.engine}"
        found: dict[str, Any] = {"env": job.settings.env["id"], "trained_on": job.engine, "seed": job.settings.seed}
        found["episodes"], found["versions"] = args.episodes, versions()
        found["engines"] = {engine: on_engine(job, state, engine, args.episodes) for engine in ("native", "mjx")}
        found["numpy_action_error"] = numpy_error(run, job, state)
        write_json(HERE / "transfer" / f"{task}.json", found)
        print(task, found["engines"], found["numpy_action_error"], flush=True)


def on_engine(job: Any, state: Any, engine: str, episodes: int) -> dict[str, float]:
    """Reward and risk of the mean action."""
    settings = copy.deepcopy(job.settings)
    settings.engine = engine
    seen = run_episodes(build(settings), state, True, episodes)
    risk = risk_report(job.hypers.problem.constraints[0], seen)
    return {"reward": float(seen.reward.mean()), **{name: risk[name] for name in ("risk_value", "quantile", "mean")}}


def numpy_error(run: Path, job: Any, state: Any) -> float:
    """The largest difference between exported and own actions on a thousand observations."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = dict(np.load(export(run, Path(folder) / "policy.npz")))
    drawn = np.random.default_rng(0).normal(size=(1000, job.env.observation_size))
    obs = (arrays["obs_mean"] + 2.0 * np.sqrt(arrays["obs_var"]) * drawn).astype(np.float32)
    params, moments = state.deployed
    own = job.trainer.networks.policy(params, normalize(moments, jnp.asarray(obs), job.hypers.ppo.obs_clip)).mode()
    x = np.clip((obs - arrays["obs_mean"]) / np.sqrt(arrays["obs_var"]), -arrays["obs_clip"], arrays["obs_clip"])
    depth = sum(name[0] == "w" for name in arrays)
    for i in range(depth):
        x = x @ arrays[f"w{i}"] + arrays[f"b{i}"]
        x = np.tanh(x) if i < depth - 1 else x
    return float(np.abs(x - np.asarray(own)).max())


if __name__ == "__main__":
    main()
