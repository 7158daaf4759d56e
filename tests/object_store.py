"""An S3 server on this machine that can be stopped and started with what it holds."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

KEYS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",  # nobody answers there, which would take seconds
}


class ObjectStore:
    """Moto's S3 in threads of this process; its buckets outlive a stop."""

    def __init__(self) -> None:
        """Choose a port; nothing is started."""
        self.port = _free_port()
        self._server: Any = None

    def start(self) -> None:
        """Answer from now on."""
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        import boto3

        place = f"http://127.0.0.1:{self.port}"
        client = boto3.client("s3", endpoint_url=place, region_name="us-east-1")
        client.create_bucket(Bucket=name)

    def uri(self, path: str) -> str:
        """Address of ``bucket/path``."""
        place = f"127.0.0.1%3A{self.port}"
        return f"s3://{path}?endpoint_override={place}&scheme=http&region=us-east-1"


def _free_port() -> int:
    """A port that no other program is given by chance while the server is stopped."""
    for port in random.SystemRandom().sample(range(21_000, 32_000), 50):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 21000 and 32000")


@contextmanager
def object_store(bucket: str) -> Iterator[ObjectStore]:
    """A running store with one bucket, and credentials for it in the environment."""
    pytest.importorskip("moto.server", reason="an S3 server for tests: pip install -e '.[dev]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        store = ObjectStore()
        store.start()
        try:
            store.make_bucket(bucket)
            yield store
        finally:
            store.stop()
