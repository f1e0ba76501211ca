"""The errors a user can cause: one line that names the setting, or the place, and what it accepts."""


class UserError(ValueError):
    """A mistake in what was asked for; the command line prints it as one line and exits with 2.

    The message names the setting, the value it was given, and what it accepts. It is a `ValueError` so that
    callers from Python may catch it without knowing this package.
    """


def about_file(error: OSError) -> str:
    """One line for what the system says of a file or folder."""
    return f"{error.filename}: {error.strerror}; accepts a place to write to"
