"""`riskppo watch RUN`: the curves of a run in a terminal, while it goes on."""

import argparse
from pathlib import Path

from riskppo_jax.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--once", action="store_true", help="print the curves as they are now, and end")
    parser.add_argument("--lane", type=int, default=0, metavar="I", help="which run of a sweep (default: the first)")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between looks (default: 2)")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.watch import watch

    if not 0.1 <= args.every <= 3600:
        raise UserError(f"--every {args.every:g}: accepts seconds from 0.1 to 3600")
    try:
        watch(args.run, args.lane, args.once, args.every)
    except KeyboardInterrupt:  # the usual way to stop looking; the run itself is not touched
        return 130
    return 0
