"""`riskppo completion SHELL`: prints a script that completes verbs, options, tasks and run directories."""

import argparse

from riskppo_jax.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    from riskppo_jax.completion import SHELLS, script

    if args.shell not in SHELLS:
        raise UserError(f"SHELL={args.shell}: accepts {', '.join(SHELLS)}")
    print(script(args.shell), end="")
    return 0
