"""Who drives a run, as its lock says."""

from __future__ import annotations

import os
import socket

from parc_ray.data.storage import Storage
from parc_ray.errors import InputError

LOCK_FILE = "driver.json"


def drives(run: Storage) -> bool:
    """Whether the lock of a run directory names this process.

    What replaces files as a whole asks before it does: a driver that lost its lock may not have
    noticed yet, or is just being interrupted for it.
    """
    try:
        record = dict(run.read_json(LOCK_FILE))
    except (InputError, TypeError, ValueError):
        return False
    return (record.get("host"), record.get("pid")) == (socket.gethostname(), os.getpid())
