"""`riskppo report RUN...`: one page that holds everything about runs, sweeps and folders of them."""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run directories, or folders that hold some")
    parser.add_argument("--out", metavar="FILE", type=Path, help="file to write (default: RUN/report.html, or here)")
    parser.add_argument("--no-replay", action="store_true", help="leave out policies that were not recorded yet")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.report import write_report

    path = write_report(args.runs, args.out, replays=not args.no_replay)
    print(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0
