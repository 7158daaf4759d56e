"""The driver, killed with signal 9 right after it wrote a certain file.

``python -m tests.integration.self_kill PATH WORDS...`` is ``run_parc.py WORDS...``; PATH is the end
of the file's. For stages that are over too soon to be hit from outside.
"""

from __future__ import annotations

import os
import signal
import sys

from parc_ray.data.storage import Storage


def kill_after(ending: str) -> None:
    """Arrange for the kill."""
    original = Storage.write_bytes_atomic

    def wrapped(self: Storage, path: str, data: bytes) -> None:
        original(self, path, data)
        if f"{self.root}/{path}".endswith(ending):
            os.kill(os.getpid(), signal.SIGKILL)

    Storage.write_bytes_atomic = wrapped


if __name__ == "__main__":
    from parc_ray.cli import guarded, run_command

    kill_after(sys.argv[1])
    sys.exit(guarded(lambda: run_command(sys.argv[2:], prog="run_parc.py")))
