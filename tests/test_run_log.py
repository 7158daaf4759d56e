"""run.log on object stores: sent by the driver that holds the run, and by no other."""

from __future__ import annotations

import logging
import os
import socket
import time

import pytest
from pyarrow import fs

from parc_ray import run_log
from parc_ray.data.storage import Storage
from parc_ray.driver_record import LOCK_FILE, drives

log = logging.getLogger("parc_ray.tests")


@pytest.fixture
def remote():
    return Storage(filesystem=fs._MockFileSystem(), root="bucket/run")


def held_by(remote: Storage, pid: int) -> None:
    remote.write_json_atomic(LOCK_FILE, {"host": socket.gethostname(), "pid": pid})


def test_it_is_continued_and_sent_at_the_end(remote):
    held_by(remote, os.getpid())
    for word in ("first", "second"):
        with run_log.run_log(remote):
            log.info(word)
    lines = remote.read_bytes("run.log").decode().splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]


def test_a_driver_that_lost_its_lock_leaves_the_others_log(remote, monkeypatch):
    monkeypatch.setattr(run_log, "_SEND_S", 0.01)
    held_by(remote, os.getpid())
    with run_log.run_log(remote):
        held_by(remote, os.getpid() + 1)
        remote.write_bytes_atomic("run.log", b"of the other\n")
        log.info("of this one")
        time.sleep(0.1)
    assert remote.read_bytes("run.log") == b"of the other\n"


def test_a_broken_record_or_none_names_nobody(remote):
    assert not drives(remote)
    for broken in (b"{", b"[1]", b"null"):
        remote.write_bytes_atomic(LOCK_FILE, broken)
        assert not drives(remote)
