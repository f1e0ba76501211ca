"""`riskppo parity DIR`: replay recorded steps of the original and print how far ours are from them."""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from riskppo_jax.cli.console import table_console
from riskppo_jax.errors import UserError

_NAMED = 5  # samples beyond tolerance that are named for each task


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="folder of <task id>.npz records")
    parser.add_argument("--engine", default="auto", help="native, mjx, warp, analytic or auto (default)")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="ID", help="only these tasks")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.engines.base import resolve
    from riskppo_jax.parity import find_records, replay

    engine = resolve(args.engine)
    tasks = [task for word in args.tasks for task in word.split(",") if task]
    if args.tasks and not tasks:
        raise UserError("tasks is empty; tasks accepts one or more task ids")
    served, skipped = find_records(args.directory, tasks, engine)
    console = table_console(150)
    for path in skipped:
        console.print(f"skipped {path.name}: no task here serves it on {engine}", style="dim")
    results = [replay(path, engine) for path in served]
    _print(console, results)
    print(
        f"parity: engine={engine} tasks={len(results)} samples={sum(len(r.obs) for r in results)} "
        f"obs_max={max(_largest(r, r.obs) for r in results):.3g} "
        f"reward_max={max(_largest(r, r.reward) for r in results):.3g} "
        f"cost_mismatches={sum(len(r.cost_mismatches) for r in results)} "
        f"term_mismatches={sum(len(r.term_mismatches) for r in results)}"
    )
    return 0 if all(result.passed for result in results) else 1


def _print(console: Console, results) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    heads = ("samples", "smooth", "obs median", "obs max", "accel", "reward", "rough", "cost", "goal", "term",
             "near", "beyond", "verdict")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for r in results:
        median = np.median(r.obs[r.held]) if r.held.any() else 0.0
        shaken = "-" if r.accelerometer is None else f"{_largest(r, r.accelerometer):.1e}"
        numbers = [len(r.obs), r.held.sum(), f"{median:.1e}", f"{_largest(r, r.obs):.1e}", shaken]
        numbers.append(f"{_largest(r, r.reward):.1e}")
        numbers.append(f"{np.median(r.reward[~r.held]):.1e}" if not r.held.all() else "-")
        counts = [len(r.cost_mismatches), len(r.goal_mismatches), len(r.term_mismatches)]
        counts.append(len(r.cost_near) + len(r.term_near))
        cells = [*numbers, *counts, len(r.worst), "ok" if r.passed else "FAIL"]
        table.add_row(r.id, *map(str, cells))
    console.print(table)
    for r in results:
        for i in r.worst[:_NAMED]:
            errors = f"obs off by {r.obs[i]:.2g}, reward by {r.reward[i]:.2g}"
            allowed = f"tolerance {r.obs_tolerance[i]:.2g}, {r.reward_tolerance[i]:.2g}"
            console.print(f"{r.id} sample {i}: {errors} ({allowed})")
        if len(r.worst) > _NAMED:
            console.print(f"{r.id}: {len(r.worst) - _NAMED} more samples beyond tolerance")


def _largest(result, errors: np.ndarray) -> float:
    """Largest error in the samples that are held to the tolerance."""
    return float(errors[result.held].max(initial=0.0))
