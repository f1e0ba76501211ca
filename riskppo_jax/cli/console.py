"""A console wide enough for tables, also where the output is a file or a pipe."""

import shutil

from rich.console import Console


def table_console(least: int = 120) -> Console:
    """Prints to stdout, never folding a table of up to `least` characters."""
    return Console(highlight=False, width=max(shutil.get_terminal_size((least, 24)).columns, least))
