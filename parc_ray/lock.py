"""One driver per run directory: a lock file with a heartbeat."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import uuid
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from parc_ray.data.storage import Storage
from parc_ray.driver_record import LOCK_FILE
from parc_ray.errors import InputError

logger = logging.getLogger(__name__)

_BEAT_S = 5.0
_BEATS_PER_INTERRUPT = 12
"""Heartbeats until a stage that goes on without its lock is interrupted again: the exception is
lost where Python raises it in a finaliser."""
_STALE_S = 60.0
_SETTLE_S = 0.05
_SETTLE_REMOTE_S = 2.0
"""Longer than an object store takes between looking whether the lock is free and writing it."""


class RunLock:
    """Context manager that holds a run directory.

    The lock names host, process and its start time. It counts as held while the process lives (same
    host) or while its heartbeat is younger than a minute (other hosts). A driver that was killed
    leaves a lock that the next one on the same host takes over at once.

    It is a file that is written and read again, not a lock of the storage: pyarrow offers no write
    that fails where an object exists. Of two drivers that start in the same moment the last writer
    stays. Should the store take longer than our pause between the first look and the write, both
    start; the first writer then sees the other's record at its next heartbeat, five seconds later,
    and is interrupted in its stage. Until then both work on the run; what they write is equal.
    """

    def __init__(self, storage: Storage) -> None:
        """Prepare a lock on directory ``storage``; nothing is written yet."""
        self._storage = storage
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = False
        self._before: Any = None

    def __enter__(self) -> RunLock:
        """Take the lock.

        Raises:
            InputError: another driver works on the directory, or it cannot be written.
        """
        self.require_free()
        try:
            self._beat()
        except OSError as error:
            raise InputError(
                f"--storage: {self._storage} cannot be written ({error.strerror or error}); a "
                "writable directory is needed; choose another"
            ) from error
        settle = _SETTLE_REMOTE_S if self._storage.is_object_store else _SETTLE_S
        time.sleep(settle)  # of two that start in the same moment the last writer stays
        holder = self._read()
        if holder is None or holder.get("token") != self._token:
            raise InputError(_held_by(self._storage, holder or {}))
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGUSR1, _interrupt)
        self._thread = threading.Thread(target=self._keep_beating, name="run-lock", daemon=True)
        self._thread.start()
        return self

    def require_free(self) -> None:
        """Look whether the lock could be taken, without taking it.

        Raises:
            InputError: another driver works on the directory.
        """
        holder = self._read()
        if holder is not None and _is_alive(holder):
            raise InputError(_held_by(self._storage, holder))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock, unless somebody else holds it by now.

        Raises:
            InputError: it was lost, and what the block did was interrupted for that.
        """
        interrupted = isinstance(error, KeyboardInterrupt)
        try:
            self._stop.set()
            if self._thread is not None:
                self._thread.join()
        except KeyboardInterrupt:
            if not self._lost:
                raise
            interrupted = True  # by the last heartbeat
        finally:
            if self._before is not None:
                signal.signal(signal.SIGUSR1, self._before)
        if self._lost and interrupted:
            self.require_held()
        holder = self._read()
        if holder is not None and holder.get("token") == self._token:
            self._storage.delete(LOCK_FILE)

    def _read(self) -> dict[str, Any] | None:
        if not self._storage.exists(LOCK_FILE):
            return None
        try:
            return dict(self._storage.read_json(LOCK_FILE))
        except (InputError, TypeError):
            return None  # gone between the two calls, or not ours: it protects nothing

    def _beat(self) -> None:
        record = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process_start": _process_start(os.getpid()),
            "token": self._token,
            "beat_unix_s": time.time(),
        }
        self._storage.write_json_atomic(LOCK_FILE, record)

    def require_held(self) -> None:
        """Look whether nobody took the lock while this process could not write.

        Raises:
            InputError: another driver holds the directory now.
        """
        if self._lost:
            raise InputError(_held_by(self._storage, self._read() or {}))

    def _keep_beating(self) -> None:
        """Renew the record; storage that fails is asked again, a lock that was taken is left."""
        while not self._stop.wait(_BEAT_S):
            try:
                holder = self._read()
                if holder is not None and holder.get("token") != self._token:
                    self._lost = True
                    logger.error("%s", _held_by(self._storage, holder))
                    self._interrupt_until_stopped()
                    return
                self._beat()
            except OSError as error:
                logger.warning("%s: heartbeat not written: %s", self._storage, error)

    def _interrupt_until_stopped(self) -> None:
        """Interrupt the main thread now, and again where that was not heard."""
        while self._before is not None and not self._stop.is_set():
            _interrupt_main()
            if self._stop.wait(_BEATS_PER_INTERRUPT * _BEAT_S):
                return


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # the one exception that Ray lets out of a wait of its own


def _interrupt_main() -> None:
    """End what the main thread does, also where it waits in a system call."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGUSR1)


def _is_alive(holder: dict[str, Any]) -> bool:
    if holder.get("host") == socket.gethostname():
        start = _process_start(int(holder.get("pid", 0)))
        return start is not None and start == holder.get("process_start")
    return time.time() - float(holder.get("beat_unix_s", 0.0)) < _STALE_S


def _process_start(pid: int) -> str | None:
    """A string that tells a process from a later one with the same number; None if it is gone."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.exists() and Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    try:  # systems without /proc
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"


def _held_by(storage: Storage, holder: dict[str, Any]) -> str:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    return (
        f"{storage}: another driver ({who}) works on this run; one driver per run directory is "
        "allowed; wait for it, end it, or choose another --name"
    )
