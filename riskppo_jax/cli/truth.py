"""`riskppo truth DIR`: descent-ascent, exact or as the trainer does it, against stored optima; a table and one line."""

import argparse
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from riskppo_jax.errors import UserError

_COLUMNS = "{:<24} {:>10} {:>10}  {:<22} {:<20} {:<26} {:>7} {:>7} {:>7} {:>8}  {:>7}  {}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("directory", metavar="DIR", type=Path, nargs="?", help="folder of instances, or one JSON file")
    parser.add_argument(
        "--solver",
        default="exact",
        help="exact (default): expectations from the model; ppo: the trainer, sampled",
    )
    parser.add_argument("--variant", default="default", help="rule of the exact solver; `list` names them")
    parser.add_argument("--iterations", type=int, help="steps of descent-ascent (default: the solver's own)")
    parser.add_argument("--seed", type=int, default=0, help="of starts, perturbations and samples")


def run(args: argparse.Namespace) -> int:
    """Runs every instance; 0 only if all are solved."""
    import jax

    from riskppo_jax import truth
    from riskppo_jax.engines.base import backend
    from riskppo_jax.envs import tabular

    if args.variant == "list":
        for name, variant in truth.VARIANTS.items():
            print(f"{name:<14} {variant}")
        return 0
    if args.iterations is not None and args.iterations < 1:
        raise UserError(f"--iterations {args.iterations}: accepts a positive integer")
    if not 0 <= args.seed < 2**63:
        raise UserError(f"--seed {args.seed}: accepts a whole number, 0 or larger")
    solver = {"exact": _exact, "ppo": _ppo}.get(args.solver)
    if solver is None:
        raise UserError(f"--solver {args.solver}: accepts exact, ppo")
    if args.directory is None:
        raise UserError("truth: DIR is missing; accepts a folder of instances, or one JSON file")
    paths = _instance_paths(args.directory)
    backend()
    with jax.enable_x64(True):
        loaded = [(path, tabular.load(path)) for path in paths]  # every file is read before the first run
    words, solve = solver(args)
    print(words)
    print(
        _COLUMNS.format(
            "instance", "objective", "P*", "t", "lambda", "OCE (threshold)", "gap", "viol.", "t err.", "lam err.",
            "since", "",
        )
    )  # fmt: skip
    for path, instance in loaded:
        if instance is not None and instance.solution is None:
            raise UserError(f"{path}: field `solution` accepts a value, and is missing")
        if instance is None:
            print(f"{path.stem:<24} skipped: no `transitions` in it")
    instances = [instance for _, instance in loaded if instance is not None]
    scores, solved = [], 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compiling and running both leave Python's lock alone
        runs = [pool.submit(solve, instance) for instance in instances]
        for instance, future in zip(instances, runs, strict=True):
            outcome, since, tolerance = future.result()
            score = truth.score(instance, outcome)
            scores.append(score)
            solved += score.within(tolerance)
            print(_row(instance, outcome, score, since, score.within(tolerance)), flush=True)
    if not scores:
        raise UserError(f"{args.directory}: accepts a folder with at least one instance that has `transitions`")
    gap, violation, t_error, _ = (max(column) for column in zip(*scores, strict=True))
    print(
        f"truth: instances={len(scores)} solved={solved} objective_gap_max={gap:.3g} "
        f"violation_max={violation:.3g} t_error_max={t_error:.3g}"
    )
    return 0 if solved == len(scores) else 1


def _exact(args: argparse.Namespace):
    """What the exact solver is, in words, and the solver: instance -> outcome, since when, tolerance."""
    from riskppo_jax import truth

    if args.variant not in truth.VARIANTS:
        raise UserError(f"--variant {args.variant}: accepts {', '.join(truth.VARIANTS)}")
    variant = truth.VARIANTS[args.variant]
    if args.iterations is not None:
        variant = replace(variant, iterations=args.iterations)

    def solve(instance):
        outcome, trace = truth.solve(instance, variant, args.seed)
        return outcome, truth.settled(instance, outcome, trace), truth.TOLERANCE

    begin = f"the best feasible of {variant.starts} starts for each t" if variant.starts > 1 else "one start"
    return (
        f"variant={args.variant} lam={variant.rule.lam} t={variant.rule.t} box={variant.rule.box} "
        f"oracle={variant.oracle} iterate={variant.iterate} of {variant.iterations}, {begin}; solved within 1%"
    ), solve


def _ppo(args: argparse.Namespace):
    """The same for the trainer."""
    from riskppo_jax.truth import sampled

    if args.variant != "default":
        raise UserError(f"--variant {args.variant}: is of the exact solver; --solver ppo accepts none")

    recipe = sampled.Recipe()
    if args.iterations is not None:
        recipe = replace(recipe, iterations=args.iterations)

    def solve(instance):
        return sampled.solve(instance, recipe, args.seed), None, sampled.tolerance(instance)

    return (
        f"solver=ppo lam={recipe.rule.lam} t={recipe.rule.t} box={recipe.rule.box}, {recipe.iterations} iterations of "
        f"{recipe.layout.batch_size} samples, the last policy of the best of {recipe.starts} starts; solved "
        "within 5% (10% with more than ten states or several constraints)"
    ), solve


def _row(instance, outcome, score, since: int | None, solved: bool) -> str:
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
        since if since is not None and solved else "-",
        "solved" if solved else "MISSED",
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
