"""`riskppo plot RUN...`: the figures of runs, sweeps and folders of them, for print."""

import argparse
from pathlib import Path

from riskppo_jax.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run directories, or folders that hold some")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write (default: RUN/figures, or figures)")
    parser.add_argument("--formats", default="png,pdf", metavar="A,B", help="png, pdf, svg (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.figures import write_figures
    from riskppo_jax.runs import read_runs

    formats = tuple(word for word in args.formats.split(",") if word)
    if not formats or not set(formats) <= {"png", "pdf", "svg"}:
        raise UserError(f"--formats {args.formats}: accepts png, pdf, svg, or several with commas between")
    found = read_runs(args.runs)
    runs = [run for run in found if run.summary]
    if not runs:
        raise UserError(f"{found[0].folder}: is not finished; plot accepts runs with a summary.json")
    for run in found:
        if not run.summary:
            print(f"left out: {run.folder} is not finished")
    out = args.out or (runs[0].folder if len(runs) == 1 else Path()) / "figures"
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; accepts a folder")
    written = write_figures(runs, out, formats)
    print(f"written: {len(written)} files in {out}: " + ", ".join(str(path.relative_to(out)) for path in written[:8])
          + (" ..." if len(written) > 8 else ""))  # fmt: skip
    return 0
