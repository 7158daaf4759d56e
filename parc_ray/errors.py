"""Errors that are meant for the person at the keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator


class InputError(ValueError):
    """Input that the user can mend: a file, a field, a value or a command-line word.

    The message is one line: what is wrong (which file, field or value), what is allowed, what to
    do. The command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        """Keep ``message`` on a single line, whatever it was built from."""
        super().__init__(" ".join(message.split()))


class SimulatorLostError(RuntimeError):
    """A simulator in a process of its own was killed, hangs or is gone; a new one can be started.

    Nothing of the run is wrong: whoever trains goes on from its last checkpoint.
    """


_REMOTE = re.compile(r"^parc_ray\.errors\.InputError: (.+)$", re.MULTILINE)


def find_input_error(error: BaseException) -> InputError | None:
    """The ``InputError`` behind an error, also where a Ray worker raised it.

    Ray's errors carry what happened in the worker as an object, or, where an actor could not be
    made, only as the text of its traceback.
    """
    for at in causes(error):
        cause = getattr(at, "cause", None)
        if isinstance(cause, InputError):
            return InputError(str(cause))
        if type(at).__module__.partition(".")[0] == "ray":
            remote = _REMOTE.findall(str(at))
            if remote:
                return InputError(remote[-1])
        elif isinstance(at, InputError):
            return at
    return None


def find_cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The first error of ``kind`` among an error and its causes, Ray's included."""
    for at in causes(error):
        cause = getattr(at, "cause", None)
        if isinstance(cause, kind):
            return cause
        if isinstance(at, kind):
            return at
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, Ray's included (what a worker raised), each once."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        cause = getattr(at, "cause", None)
        at = cause if isinstance(cause, BaseException) else at.__cause__
