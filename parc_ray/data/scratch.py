"""Scratch directories that name their process, so that those of killed ones can be removed."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """An empty directory in ``TMPDIR`` while the context lasts.

    Those of the same kind that processes of this machine left when they were killed are removed.
    """
    owner = f"parc-{kind}-{_host()}."
    for left in Path(tempfile.gettempdir()).glob(f"{owner}*"):
        if _is_left(left.name.removeprefix(owner)):
            logger.info("%s: left by a process that was killed, removed", left)
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{owner}{os.getpid()}.") as directory:
        yield Path(directory)


def _host() -> str:
    """Where process numbers mean the same: containers and machines may share a ``TMPDIR``."""
    host = re.sub(r"[^\w-]", "_", socket.gethostname())
    namespace = Path("/proc/self/ns/pid")
    return f"{host}-{namespace.stat().st_ino}" if namespace.exists() else host


def _is_left(rest: str) -> bool:
    """Whether the process in ``<pid>.<random>`` has ended."""
    pid = rest.partition(".")[0]
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OverflowError, PermissionError):
        pass
    return False
