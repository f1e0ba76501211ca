"""The `riskppo` command: `riskppo <verb> ...`, one module per verb, loaded when it is called."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from riskppo_jax.errors import UserError, about_file
from riskppo_jax.signals import INTERRUPTED, exit_code

# verb -> what `riskppo --help` says of it. Module `riskppo_jax.cli.<verb>` has `configure(parser)` and
# `run(args) -> int`.
VERBS = {
    "bench": "measure speed against the alternatives",
    "completion": "print a script that completes commands in bash, zsh or fish",
    "doctor": "say what this machine offers and what to do about what is missing",
    "envs": "list the tasks with their sizes, thresholds and engines",
    "evaluate": "run a trained policy for whole episodes and print what it does",
    "export": "write a trained policy for use elsewhere: .npz, .onnx or .stablehlo",
    "parity": "replay recorded steps of the original tasks and measure the difference",
    "plot": "write the figures of runs and sweeps for print, PNG and PDF",
    "render": "film a trained policy, or look at a task",
    "report": "write one self-contained page about runs, sweeps and folders of them",
    "train": "train a policy, evaluate it, and leave a run directory",
    "truth": "run descent-ascent on finite problems whose optimum is known exactly",
    "watch": "show the curves of a run in the terminal, while it goes on",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit code: 0 done, 1 ran and missed its target, 2 the user's mistake.

    As a command (without `argv`) an interrupted verb ends the process here: threads that still compile do not survive
    an orderly exit of the interpreter.
    """
    code = _main(list(sys.argv[1:] if argv is None else argv))
    if argv is None and code in map(exit_code, (signal.SIGINT, signal.SIGTERM)):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _main(argv: list[str]) -> int:
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    try:
        return _dispatch(argv)
    except UserError as error:
        if debug:
            raise
        print(f"riskppo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if debug:
            raise
        print("riskppo: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `riskppo ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if debug or error.filename is None:
            raise
        print(f"riskppo: {about_file(error)}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose complaint is one line."""

    def error(self, message: str):
        raise UserError(f"{message} (see `{self.prog} --help`)")


def _dispatch(argv: list[str]) -> int:
    parser = _Parser(
        prog="riskppo",
        description="Risk-averse constrained reinforcement learning in one compiled JAX program.",
        epilog="`riskppo VERB --help` tells more; --debug shows the traceback behind an error line.",
    )
    parser.add_argument("--version", action="version", version=f"riskppo {_version()}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, summary in VERBS.items():
        sub = verbs.add_parser(verb, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if argv[:1] == [verb]:  # other verbs stay unloaded: `riskppo --help` is instant
            module = importlib.import_module(f"riskppo_jax.cli.{verb}")
            module.configure(sub)
    if argv[:1] == ["train"]:  # as with Hydra, -m may stand anywhere among the settings
        argv = ["train", *sorted(argv[1:], key=lambda word: not word.startswith("-"))]
    args = parser.parse_args(argv)
    return module.run(args)


def _version() -> str:
    from importlib.metadata import version

    return version("riskppo-jax")
