"""Storage that fails for a while is asked again; storage that is full is not.

Network file systems and object stores drop calls when a server restarts or a link is down. Such
calls are repeated with growing pauses for about a minute; then the error says what to do. Nothing
that was finished is lost either way, since files appear whole or not at all.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses between the tries of one call, s."""


def _numbers(*names: str) -> frozenset[int]:
    """Numbers of errors that this system knows; EREMOTEIO, for one, is Linux's alone."""
    return frozenset(getattr(errno, name) for name in names if hasattr(errno, name))


_FULL = _numbers("ENOSPC", "EDQUOT")
_PASSING = _numbers(
    *("EAGAIN", "EBUSY", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN"),
    *("EHOSTUNREACH", "EIO", "ENETDOWN", "ENETUNREACH", "ENOTCONN", "EPIPE", "EREMOTEIO"),
    *("ESTALE", "ETIMEDOUT"),
)
_PASSING_WORDS = (
    *("network", "timeout", "timed out", "slow_down", "service_unavailable", "curl"),
    *("http status 5", "internal_failure", "internalerror", "unavailable"),
)

_given_up = threading.Event()
"""Set after a call of the main thread that failed in every try, until any call succeeds."""
_alone = threading.local()
"""``given_up`` of another thread: a heartbeat that gave up does not make the run impatient."""

logger = logging.getLogger(__name__)


class StorageError(OSError):
    """Storage is full, or failed for longer than we wait; one line that says what to do."""


def patiently(where: str, call: Callable[[], T]) -> T:
    """Call ``call``, again with growing pauses while storage fails in a way that may pass.

    Once that was in vain the same thread tries each later call only once, until one succeeds; where
    it was the main thread, all do: what still closes files and releases locks on its way out does
    not wait as long again each time.

    Args:
        where: path for messages.
        call: does one thing as a whole; may be called several times.

    Raises:
        StorageError: the storage is full, or failed in every try.
        OSError: anything else, at once.
    """
    waits = () if _has_given_up() else WAITS_S
    for number, wait in enumerate((*waits, None), 1):
        try:
            result = call()
            _given_up.clear()
            _alone.given_up = False
            return result
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            if is_full(error):
                raise full(where, error) from error
            if not may_pass(error):
                raise
            if wait is None:
                _give_up()
                failed = f"storage failed {number} times within {sum(waits):.0f} s"
                raise StorageError(
                    f"{where}: {failed if waits else 'storage still fails'} "
                    f"({error.strerror or error}); what was finished is kept; see to the "
                    "storage, then the same command continues"
                ) from error
            logger.warning("%s: %s; trying again in %g s", where, error.strerror or error, wait)
            time.sleep(wait)
    raise AssertionError("the loop returns or raises")


def _has_given_up() -> bool:
    return _given_up.is_set() or getattr(_alone, "given_up", False)


def _give_up() -> None:
    if threading.current_thread() is threading.main_thread():
        _given_up.set()
    else:
        _alone.given_up = True


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a local file whole or not at all, in as many tries as ``patiently`` gives.

    Raises:
        StorageError: the disk is full, or failed in every try.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def write() -> None:
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    patiently(str(path), write)


def full(where: str, error: OSError) -> StorageError:
    """What to say of a disk or quota that is used up."""
    return StorageError(
        f"{where}: no space is left ({error.strerror or error}); what was finished is kept; make "
        "room, then the same command continues"
    )


def is_full(error: OSError) -> bool:
    """Whether the disk or the quota is used up."""
    return error.errno in _FULL


def may_pass(error: OSError) -> bool:
    """Whether the same call may succeed later. Object stores give no number, only words."""
    if error.errno is not None:
        return error.errno in _PASSING
    return any(word in str(error).lower() for word in _PASSING_WORDS)
