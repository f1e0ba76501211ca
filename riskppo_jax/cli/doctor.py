"""`riskppo doctor`: what this machine offers, and what to do about what is missing."""

import argparse
import json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON list in place of the table")
    parser.add_argument("--no-rendering", action="store_true", help="do not try to draw, which takes seconds")


def run(args: argparse.Namespace) -> int:
    from rich.table import Table

    from riskppo_jax.cli.console import table_console
    from riskppo_jax.doctor import examine

    findings = list(examine(rendering=not args.no_rendering))
    if args.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    else:
        table = Table(box=None, pad_edge=False)
        for head in ("", "subject", "found", "what to do"):
            table.add_column(head, overflow="fold")
        for finding in findings:
            table.add_row({"ok": "ok", "note": "-", "bad": "BAD"}[finding.status], *finding[:1], *finding[2:])
        table_console().print(table, markup=False)
    bad = [finding.subject for finding in findings if finding.status == "bad"]
    if bad and not args.json:
        print(f"doctor: {', '.join(bad)} must be mended before numbers can be trusted")
    return 1 if bad else 0
