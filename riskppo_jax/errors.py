"""The error a user can cause: one line that names the setting and what it accepts."""


class UserError(ValueError):
    """A mistake in what was asked for; the command line prints it as one line and exits with 2.

    The message names the setting, the value it was given, and what it accepts. It is a `ValueError` so that
    callers from Python may catch it without knowing this package.
    """
