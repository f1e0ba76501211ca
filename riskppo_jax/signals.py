"""SIGTERM and Ctrl-C: a run finishes its chunk, saves, says how it goes on, and ends with the shell's exit code."""

import shlex
import signal
from pathlib import Path
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT  # exit code of a run that Ctrl-C ended at once


class Wish:
    """The wish to stop: while this is entered, a signal is noted instead of obeyed; a second one stops at once."""

    def __init__(self) -> None:
        self.received = 0  # number of the signal; 0 while nobody wants to stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Wish":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: whoever runs us decides
                break
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        print("\nfinishing this chunk and saving ...", flush=True)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def exit_code(number: int) -> int:
    """What a run returns that this signal ended, as shells count; 0 for none."""
    return 128 + number if number else 0


def say_how_to_go_on(what: str, folder: Path) -> None:
    """One line for whoever stopped a run: what became of it, and the command that continues it."""
    print(f"{what}; go on with: riskppo train resume=true output={shlex.quote(str(folder))}", flush=True)
