"""`riskppo bench SUBJECT`: speed, as ratios to what one would use otherwise."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riskppo_jax.cores import cores
from riskppo_jax.errors import UserError

if TYPE_CHECKING:
    from riskppo_jax.bench.engines import Line

# default batch sizes, scan lengths and rounds: of a full run, and of a quick one
# (many short rounds: the best of them falls into a moment when the machine has nothing else to do)
_FULL = {"native": ((256,), 40, 15), "mjx": ((64, 512), 5, 5)}
_QUICK = {"native": ((16,), 20, 2), "mjx": ((4,), 2, 2)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Without a subject: a quick look at the engines, `riskppo bench engines --quick --engines native`."
    parser.set_defaults(tasks=None, engines=["native"], num_envs=None, steps=None, repeats=None, quick=True, json=None)
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT")
    engines = subjects.add_parser(
        "engines",
        help="physics: native against raw MuJoCo and gymnasium, mjx against brax",
        description="Steps a second of each engine and of what one would use without it, measured by turns.",
    )
    engines.add_argument("--tasks", nargs="+", metavar="ID", help="velocity and navigation tasks (default: all nine)")
    engines.add_argument("--engines", nargs="+", metavar="E", help="native, mjx or both (default)")
    engines.add_argument("--num-envs", nargs="+", type=int, metavar="N", help="batch sizes (native 256, mjx 64 512)")
    engines.add_argument("--steps", type=int, metavar="T", help="steps of a scan (native 40, mjx 5)")
    engines.add_argument("--repeats", type=int, metavar="R", help="measured rounds (native 15, mjx 5)")
    train = subjects.add_parser(
        "train",
        help="training against the bare physics, and where its time goes",
        description="Steps a second of whole training iterations beside raw MuJoCo with as many worlds, by turns.",
    )
    train.add_argument(
        "--tasks", nargs="+", metavar="ID", help="tasks, those of navigation too (default: HalfCheetah, Hopper)"
    )
    train.add_argument("--repeats", type=int, metavar="R", help="measured rounds (15)")
    train.add_argument("words", nargs="*", metavar="key=value", help="settings, as for `riskppo train`")
    sweep = subjects.add_parser(
        "sweep",
        help="a grid in one program against single runs, and the memory a lane takes",
        description="Time of lanes in one program beside single runs and processes, as ratios; lower is better.",
    )
    sweep.add_argument("--parts", nargs="+", metavar="P", help="native, processes, analytic, memory (default: all)")
    sweep.add_argument("--repeats", type=int, metavar="R", help="measured rounds (5)")
    sweep.add_argument("words", nargs="*", metavar="key=value", help="settings, as for `riskppo train`")
    for parser in (engines, train, sweep):
        parser.add_argument("--quick", action="store_true", help="short: shows that it runs, not how fast")
        parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")


def run(args: argparse.Namespace) -> int:
    """Measures, prints a table, and returns 1 where a target was missed."""
    if args.json and (args.json.is_dir() or not args.json.absolute().parent.is_dir()):
        raise UserError(f"--json {args.json}: accepts a file in a folder that exists")
    args.subject = args.subject or "engines"
    lines, settings, text = {"engines": _engines, "train": _train, "sweep": _sweep}[args.subject](args)
    _print(lines, text)
    if args.json:
        args.json.write_text(json.dumps(_document(args.subject, lines, settings, args.quick), indent=1) + "\n")
    return 1 if not args.quick and any(line.verdict == "missed" for line in lines) else 0


def _engines(args: argparse.Namespace) -> tuple[list["Line"], dict[str, Any], str]:
    from riskppo_jax.bench import navigation
    from riskppo_jax.bench.engines import TASKS, measure

    tasks = _words("tasks", args.tasks, TASKS + navigation.TASKS)
    engines = _words("engines", args.engines, ("native", "mjx"))
    for name, values in (("num-envs", args.num_envs), ("steps", [args.steps]), ("repeats", [args.repeats])):
        for value in values or []:
            _positive(name, value)
    chosen = {}
    for engine, (sizes, steps, repeats) in (_QUICK if args.quick else _FULL).items():
        chosen[engine] = (args.num_envs or sizes, args.steps or steps, args.repeats or repeats)
    lines = []
    for task in tasks:
        for engine in engines:
            print(f"{task} on {engine} ...", file=sys.stderr, flush=True)
            lines += measure(task, engine, *chosen[engine])
    rounds = (f"{chosen[name][2]} rounds of {chosen[name][1]} steps ({name})" for name in engines)
    names = ("num_envs", "steps", "repeats")
    settings = {engine: dict(zip(names, chosen[engine], strict=True)) for engine in engines}
    return lines, settings, f"Best of {' and '.join(rounds)}, by turns; `median` is of the rounds' own ratios."


def _train(args: argparse.Namespace) -> tuple[list["Line"], dict[str, Any], str]:
    from riskppo_jax.bench import navigation
    from riskppo_jax.bench.engines import TASKS as KNOWN
    from riskppo_jax.bench.train import TASKS, measure
    from riskppo_jax.parallel import cores_as_devices, one_thread_each
    from riskppo_jax.settings import read_settings

    _positive("repeats", args.repeats)
    tasks = _words("tasks", args.tasks or list(TASKS), KNOWN + navigation.TASKS)
    cores_as_devices(2)  # as `riskppo train` does
    one_thread_each()
    repeats = args.repeats or (2 if args.quick else 15)
    read_settings(args.words)  # complains before anything is measured
    lines = []
    for task in tasks:
        print(f"{task} ...", file=sys.stderr, flush=True)
        warm_up, lanes = (3, 4096) if args.quick else (60, 491_520)
        lines += measure(task, repeats, tuple(args.words), warm_up, lanes)
    return lines, {"repeats": repeats, "words": args.words}, (
        f"Best of {repeats} rounds, by turns; training is a chunk of iterations. A part's ratio is its share of an "
        "iteration's time, measured by "
        "itself; evaluation and log are spread over the iterations of a run of total_steps."
    )  # fmt: skip


def _sweep(args: argparse.Namespace) -> tuple[list["Line"], dict[str, Any], str]:
    from riskppo_jax.bench.sweep import PARTS, measure
    from riskppo_jax.settings import read_settings

    _positive("repeats", args.repeats)
    repeats = args.repeats or (1 if args.quick else 5)
    read_settings(args.words)
    lines = []
    for part in _words("parts", args.parts, PARTS):
        print(f"{part} ...", file=sys.stderr, flush=True)
        lines += measure(part, repeats, tuple(args.words), args.quick)
    return lines, {"repeats": repeats, "words": args.words}, (
        f"Best of {repeats} rounds, by turns; `median` is of the rounds' own ratios. Ratios are times (or bytes), ours "
        "over theirs: a target is what they may be at most."
    )  # fmt: skip


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UserError(f"--{name} {value}: {name} accepts positive numbers")


def _words(name: str, given: list[str] | None, accepted: tuple[str, ...]) -> list[str]:
    words = list(accepted) if given is None else [w for word in given for w in word.split(",") if w]
    for word in words:
        if word not in accepted:
            raise UserError(f"--{name} {word}: {name} accepts {', '.join(accepted)}")
    if not words:
        raise UserError(f"--{name} is empty; {name} accepts {', '.join(accepted)}")
    return list(dict.fromkeys(words))


def _print(lines: list["Line"], text: str) -> None:
    from rich.table import Table

    from riskppo_jax.cli.console import table_console

    table = Table(box=None, pad_edge=False)
    for head in ("task", "comparison"):
        table.add_column(head, no_wrap=True)
    for head in ("envs", "ours", "theirs", "unit", "ratio", "median", "target", "verdict"):
        table.add_column(head, justify="right", no_wrap=True)
    notes: list[str] = []
    for line in lines:
        if line.note and line.note not in notes:
            notes.append(line.note)
        mark = f" [{notes.index(line.note) + 1}]" if line.note else ""
        numbers = [_number(line.ours), _number(line.theirs), line.unit]
        found = [_ratio(line.ratio), _ratio(line.ratio_median), _ratio(line.target), line.verdict]
        what = (line.what + mark).replace("[", r"\[")
        table.add_row(line.task, what, str(line.num_envs), *numbers, *found)
    console = table_console(160)
    console.print(table)
    for i, note in enumerate(notes):
        console.print(f"[{i + 1}] {note}", markup=False)
    console.print(text, markup=False)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _document(subject: str, lines: list["Line"], settings: dict[str, Any], quick: bool) -> dict[str, Any]:
    from importlib.metadata import version

    import jax

    packages = ("riskppo-jax", "jax", "mujoco", "mujoco-mjx", "gymnasium")
    return {
        "subject": subject,
        "quick": quick,
        "settings": settings,
        "cores": cores(),
        "backend": jax.default_backend(),
        "versions": {name: version(name) for name in packages},
        "lines": [line.to_json() for line in lines],
    }
