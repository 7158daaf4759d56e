"""``run.log`` of a run directory: appended to where it is mounted, sent now and then elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from parc_ray.console import setup_logging
from parc_ray.data.mirror import Mirror
from parc_ray.data.scratch import scratch
from parc_ray.data.storage import Storage
from parc_ray.driver_record import drives

RUN_LOG = "run.log"
_SEND_S = 20.0

logger = logging.getLogger(__name__)


@contextmanager
def run_log(storage: Storage) -> Iterator[None]:
    """Log into the run directory ``storage`` from now on.

    On object stores lines go to a local file, which continues the one on storage and replaces it
    every 20 seconds and at the end of the context: a driver that is killed loses that much of it.
    One that lost its lock sends nothing more, since the log is another's now.
    """
    if storage.is_local:
        setup_logging(file=storage.local_path(RUN_LOG))
        yield
        return
    with scratch("log") as directory:
        mirror = Mirror(storage, directory)
        mirror.pull(RUN_LOG)
        setup_logging(file=directory / RUN_LOG)
        done = threading.Event()
        sender = threading.Thread(target=_send, args=(mirror, done), name="run-log", daemon=True)
        sender.start()
        try:
            yield
        finally:
            done.set()
            sender.join()
            setup_logging()  # closes the file, which goes with its directory


def _send(mirror: Mirror, done: threading.Event) -> None:
    """Send the file whenever it has grown; storage that fails is only spoken of."""
    sent = -1
    while True:
        ended = done.wait(_SEND_S)
        try:
            size = (mirror.local / RUN_LOG).stat().st_size
            if size != sent and drives(mirror.remote):
                mirror.push(RUN_LOG)
                sent = size
        except OSError as error:
            logger.warning("%s: %s not sent: %s", mirror.remote, RUN_LOG, error)
        if ended:
            return
