"""`riskppo evaluate RUN`: whole episodes of a trained policy, as a table and one line of JSON for each lane."""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

from riskppo_jax.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--env", metavar="ID", help="another task of the same sizes, by its id")
    parser.add_argument("--episodes", type=int, metavar="N", help="episodes of each kind (default: the run's own)")
    parser.add_argument("--lane", type=int, metavar="I", help="one run of a sweep (default: all of them)")
    parser.add_argument("--engine", metavar="E", help="native, mjx, warp, analytic or auto (default: the run's own)")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.results import describe_lane, run_episodes
    from riskppo_jax.rundir import restore_run
    from riskppo_jax.runs import pick_lane
    from riskppo_jax.writers import plain

    if args.episodes is not None and args.episodes < 1:
        raise UserError(f"--episodes {args.episodes}: accepts a whole number, 1 or larger")
    whole, states, progress = restore_run(args.run, args.lane, args.engine)
    for i in range(len(whole.lanes) or 1):
        job, state = pick_lane(whole, states, i)
        point = {"lane": args.lane or i, "point": job.point} if job.point else {}
        if point:
            print(f"lane {point['lane']}: " + ", ".join(f"{name}={value}" for name, value in job.point.items()))
        if args.env:
            job = _elsewhere(job, copy.deepcopy(job.settings), args)
        mean, sampled = (run_episodes(job, state, deterministic, args.episodes) for deterministic in (True, False))
        lane = describe_lane(job, state, mean, sampled)
        _print(lane)
        found = {"env": job.settings.env["id"], "engine": job.engine, "iterations": progress.iterations}
        print(json.dumps(plain({**found, **point, **lane})))
    return 0


def _elsewhere(job: Any, settings: Any, args: argparse.Namespace) -> Any:
    """The same policy in another task; limits given as numbers stay, and what they are about."""
    from riskppo_jax.build import build
    from riskppo_jax.envs.registry import make_env, options_of
    from riskppo_jax.envs.wrappers import LidarPowers

    known = options_of(args.env)
    settings.env = {name: value for name, value in settings.env.items() if name in known} | {"id": args.env}
    if not job.hypers.problem.constraints:
        settings.constraints = []
    own = job.env.env if isinstance(job.env, LidarPowers) else job.env
    envs = own, make_env(**settings.env)
    sizes = [(env.observation_size, env.action_size, env.num_actions) for env in envs]
    if sizes[0] != sizes[1]:
        has, wanted = (f"observations of {seen} numbers and {_actions(acted, choices)}"
                       for seen, acted, choices in reversed(sizes))  # fmt: skip
        raise UserError(f"--env {args.env}: has {has}; accepts a task with {wanted}, as the policy")
    other = build(settings)
    if len(other.hypers.problem.constraints) != len(job.hypers.problem.constraints):
        raise UserError(f"--env {args.env}: accepts a task with as many constraints as the run")
    return other


def _actions(size: int, choices: int | None) -> str:
    return f"actions of {size} numbers" if choices is None else f"{choices} actions to choose from"


def _print(lane: dict[str, Any]) -> None:
    from rich.table import Table

    from riskppo_jax.cli.console import table_console
    from riskppo_jax.results import say_laws, say_objective

    table = Table(box=None, pad_edge=False)
    for head in ("actions", "episodes", "return", "sd", "cost", "length"):
        table.add_column(head, justify="right")
    for label, key in (("mean", "eval"), ("sampled", "eval_sampled")):
        e = lane[key]
        numbers = (e["reward_mean"], e["reward_std"], e["cost_mean"], e["length_mean"])
        table.add_row(label, str(e["episodes"]), *(f"{x:.4g}" for x in numbers))
    console = table_console()
    console.print(table)
    if "objective" in lane:
        console.print(say_objective(lane["objective"]), markup=False)
    for c in lane["constraints"]:
        for label, found in (("mean", c), ("sampled", c["sampled"])):
            low, high = found["risk_value_ci"]
            console.print(
                f"{c['name']}, {label} actions: {c['risk']['name']} {found['risk_value']:.4g} "
                f"({low:.4g} to {high:.4g}), limit {c['threshold']:g}: {'kept' if found['satisfied'] else 'not kept'}"
            )
        for line in say_laws(c):
            console.print(line, markup=False)
