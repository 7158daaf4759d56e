"""Errors that are meant for the person at the keyboard."""

from __future__ import annotations


class InputError(ValueError):
    """Input that the user can mend: a file, a field, a value or a command-line word.

    The message is one line: what is wrong (which file, field or value), what is allowed, what to
    do. The command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        """Keep ``message`` on a single line, whatever it was built from."""
        super().__init__(" ".join(message.split()))
