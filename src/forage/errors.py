"""The error that a user's mistake becomes."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in what the user gave; its message is one line: what, the value, what to do.

    The command line prints it without a traceback and exits with code 2.
    """
