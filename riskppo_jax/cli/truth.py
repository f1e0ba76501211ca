"""`riskppo truth DIR`: descent-ascent with an exact oracle against stored optima, as a table and one line."""

import argparse
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from riskppo_jax.errors import UserError

_COLUMNS = "{:<24} {:>10} {:>10}  {:<22} {:<20} {:<26} {:>7} {:>7} {:>7}  {:>7}  {}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="folder of instances, or one JSON file")
    parser.add_argument("--variant", default="default", help="rule to run; `list` names them (default: %(default)s)")
    parser.add_argument("--iterations", type=int, help="steps of descent-ascent (default: the variant's own)")
    parser.add_argument("--seed", type=int, default=0, help="of random starts and perturbations")


def run(args: argparse.Namespace) -> int:
    """Runs every instance; 0 only if all are solved."""
    import jax

    from riskppo_jax import truth
    from riskppo_jax.envs import tabular

    if args.variant == "list":
        for name, variant in truth.VARIANTS.items():
            print(f"{name:<14} {variant}")
        return 0
    if args.variant not in truth.VARIANTS:
        raise UserError(f"--variant {args.variant}: accepts {', '.join(truth.VARIANTS)}")
    variant = truth.VARIANTS[args.variant]
    if args.iterations is not None:
        if args.iterations < 1:
            raise UserError(f"--iterations {args.iterations}: accepts a positive integer")
        variant = replace(variant, iterations=args.iterations)
    paths = _instance_paths(args.directory)
    with jax.enable_x64(True):
        loaded = [(path, tabular.load(path)) for path in paths]  # every file is read before the first run

    print(
        f"variant={args.variant} lam={variant.rule.lam} t={variant.rule.t} box={variant.rule.box} "
        f"oracle={variant.oracle} iterate={variant.iterate} of {variant.iterations}, "
        + (f"the best feasible of {variant.starts} starts for each t" if variant.starts > 1 else "one start")
    )
    print(
        _COLUMNS.format(
            "instance", "objective", "P*", "t", "lambda", "OCE (threshold)", "gap", "viol.", "t err.", "since", ""
        )
    )
    for path, instance in loaded:
        if instance is not None and instance.solution is None:
            raise UserError(f"{path}: field `solution` accepts a value, and is missing")
        if instance is None:
            print(f"{path.stem:<24} skipped: no `transitions` in it")
    instances = [instance for _, instance in loaded if instance is not None]
    scores = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compiling and running both leave Python's lock alone
        runs = [pool.submit(truth.solve, instance, variant, args.seed) for instance in instances]
        for instance, future in zip(instances, runs, strict=True):
            outcome, trace = future.result()
            score = truth.score(instance, outcome.objective, outcome.slack, outcome.t)
            scores.append(score)
            print(_row(instance, outcome, score, truth.settled(instance, outcome, trace)), flush=True)
    if not scores:
        raise UserError(f"{args.directory}: accepts a folder with at least one instance that has `transitions`")
    solved = sum(score.solved for score in scores)
    gap, violation, t_error = (max(column) for column in zip(*scores, strict=True))
    print(
        f"truth: instances={len(scores)} solved={solved} objective_gap_max={gap:.3g} "
        f"violation_max={violation:.3g} t_error_max={t_error:.3g}"
    )
    return 0 if solved == len(scores) else 1


def _row(instance, outcome, score, since: int | None) -> str:
    values = [f"{s + b:.4f} ({b:g})" for s, b in zip(outcome.slack, instance.thresholds, strict=True)]
    known = [t for t, best in zip(outcome.t, instance.solution.t_interval, strict=True) if best is not None]
    return _COLUMNS.format(
        instance.name[:24],
        f"{outcome.objective:.6f}",
        f"{instance.solution.objective:.6f}",
        _join(known),
        _join(outcome.lam),
        " ".join(values),
        *(f"{100 * error:.2f}%" for error in score),
        since if since is not None and score.solved else "-",
        "solved" if score.solved else "MISSED",
    )


def _instance_paths(directory: Path) -> list[Path]:
    if directory.is_file():
        return [directory]
    if not directory.is_dir():
        raise UserError(f"{directory}: accepts a folder of JSON files, or one such file")
    paths = sorted(directory.glob("*.json"))
    if not paths:
        raise UserError(f"{directory}: accepts a folder with JSON files, and has none")
    return paths


def _join(values: Iterable[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
