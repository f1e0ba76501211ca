"""`riskppo envs`: the tasks, one line each."""

import argparse

from rich.table import Table

from riskppo_jax.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", help="only ids that match, as in 'Safety*Velocity-v1' or '*PointGoal*'")
    parser.add_argument("--speed", action="store_true", help="measure steps/s of each task here (256 at once; minutes)")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.cli.console import table_console
    from riskppo_jax.envs.registry import list_envs, make_env

    ids = list_envs(args.pattern)
    if not ids:
        raise UserError(f"pattern={args.pattern} matches no task; pattern accepts ids or shell patterns")
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("observation", justify="right", no_wrap=True)
    table.add_column("action", justify="right", no_wrap=True)
    table.add_column("constraint", no_wrap=True)
    table.add_column("threshold", justify="right", no_wrap=True)
    table.add_column("paper", justify="right", no_wrap=True)
    table.add_column("limit", justify="right", no_wrap=True)
    table.add_column("engines", no_wrap=True)
    if args.speed:
        table.add_column("steps/s", justify="right")
    for id in ids:
        env = make_env(id)
        names = env.constraint_names
        table.add_row(
            id,
            str(env.observation_size),
            str(env.action_size if env.num_actions is None else env.num_actions),
            ", ".join(names),
            ", ".join(_number(env.thresholds[name]) for name in names if name in env.thresholds) or "-",
            _number(getattr(env, "paper_threshold", None)),
            str(getattr(env, "limit", None) or "-"),
            _engines(id),
            *([_speed(id)] if args.speed else []),
        )
    table_console(170).print(table)
    return 0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _speed(id: str) -> str:
    from riskppo_jax.bench.engines import task_speed

    return f"{task_speed(id):,.0f}"


def _engines(id: str) -> str:
    """Engines that serve the task and work on this machine; the one `auto` picks is marked."""
    from riskppo_jax.engines.base import resolve
    from riskppo_jax.envs.registry import engines_of

    served, words = engines_of(id), []
    chosen = resolve("auto") if resolve("auto") in served else "native"
    for name in served:
        try:
            resolve(name)
        except UserError:
            continue
        words.append(f"{name}*" if name == chosen else name)
    return " ".join(words)
