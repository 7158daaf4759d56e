"""One driver per run directory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from parc_ray.cli import guarded
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.lock import LOCK_FILE, RunLock, _process_start


def write(storage, **changes):
    record = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": _process_start(os.getpid()),
        "token": "other",
        "beat_unix_s": time.time(),
        **changes,
    }
    storage.write_json_atomic(LOCK_FILE, record)


def test_a_second_driver_is_refused_and_the_lock_goes_with_the_first(tmp_path):
    storage = Storage.from_uri(tmp_path)
    with RunLock(storage):
        message = f"another driver .process {os.getpid()} on .* works on this run"
        with pytest.raises(InputError, match=message), RunLock(storage):
            pass
        assert storage.exists(LOCK_FILE)
    assert not storage.exists(LOCK_FILE)
    with RunLock(storage):
        pass


def test_the_lock_of_a_dead_process_is_taken_over_at_once(tmp_path):
    storage = Storage.from_uri(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write(storage, pid=child.pid, process_start=_process_start(child.pid))
    with pytest.raises(InputError), RunLock(storage):
        pass
    child.kill()
    child.wait()
    with RunLock(storage):
        assert storage.read_json(LOCK_FILE)["pid"] == os.getpid()


def test_a_reused_process_number_holds_nothing(tmp_path):
    storage = Storage.from_uri(tmp_path)
    write(storage, process_start="1")
    with RunLock(storage):
        pass


def test_another_host_holds_it_while_its_heart_beats(tmp_path):
    storage = Storage.from_uri(tmp_path)
    write(storage, host="elsewhere", beat_unix_s=time.time() - 30)
    with pytest.raises(InputError, match="elsewhere"), RunLock(storage):
        pass
    write(storage, host="elsewhere", beat_unix_s=time.time() - 61)
    with RunLock(storage):
        pass


def test_the_heart_beats(tmp_path, monkeypatch):
    import parc_ray.lock as module

    monkeypatch.setattr(module, "_BEAT_S", 0.02)
    storage = Storage.from_uri(tmp_path)
    with RunLock(storage):
        first = storage.read_json(LOCK_FILE)["beat_unix_s"]
        deadline = time.monotonic() + 5.0
        while storage.read_json(LOCK_FILE)["beat_unix_s"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def lose(storage) -> None:
    """Another host's driver takes over, before our first beat."""
    write(storage, host="elsewhere", token="another")


def test_a_driver_that_lost_its_lock_is_interrupted_in_its_stage(tmp_path, monkeypatch):
    import parc_ray.lock as module

    monkeypatch.setattr(module, "_BEAT_S", 0.5)
    storage = Storage.from_uri(tmp_path)
    before = signal.getsignal(signal.SIGUSR1)

    def stage() -> None:
        with RunLock(storage):
            lose(storage)
            time.sleep(60.0)

    with pytest.raises(InputError, match=r"another driver .* on elsewhere"):
        stage()
    assert storage.read_json(LOCK_FILE)["token"] == "another"  # is left to its holder
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.mark.slow
def test_a_wait_for_ray_is_interrupted_as_well(tmp_path, monkeypatch, ray_session):
    import ray

    import parc_ray.lock as module

    monkeypatch.setattr(module, "_BEAT_S", 0.5)
    storage = Storage.from_uri(tmp_path)
    task = ray.remote(num_cpus=0)(lambda: time.sleep(120.0)).remote()

    def stage() -> None:
        with RunLock(storage):
            lose(storage)
            ray.get(task, timeout=60.0)

    with pytest.raises(InputError, match="another driver"):
        stage()
    ray.cancel(task, force=True)
    assert ray.get(ray.remote(num_cpus=0)(lambda: 7).remote()) == 7  # Ray itself goes on


def test_without_its_lock_an_error_of_the_work_stays_what_it_is(tmp_path, monkeypatch):
    import parc_ray.lock as module

    monkeypatch.setattr(module, "_BEAT_S", 1000.0)
    with pytest.raises(ZeroDivisionError), RunLock(Storage.from_uri(tmp_path)):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), RunLock(Storage.from_uri(tmp_path)):
        raise KeyboardInterrupt


def test_of_two_that_start_together_one_stays(tmp_path, monkeypatch):
    """The other's record lands between our write and our check."""
    import parc_ray.lock as module

    storage = Storage.from_uri(tmp_path)
    monkeypatch.setattr(module.time, "sleep", lambda s: write(storage))
    with pytest.raises(InputError, match="another driver"), RunLock(storage):
        pass
    assert json.loads((tmp_path / LOCK_FILE).read_text())["token"] == "other"


def test_a_broken_lock_file_protects_nothing(tmp_path):
    (tmp_path / LOCK_FILE).write_text("not json")
    with RunLock(Storage.from_uri(tmp_path)):
        pass


def test_a_batch_systems_term_releases_the_lock(tmp_path, capsys):
    storage = Storage.from_uri(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with RunLock(storage):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30.0)  # is not slept

    assert guarded(work) == 1
    assert "the same command continues" in capsys.readouterr().err
    assert not storage.exists(LOCK_FILE)
    assert signal.getsignal(signal.SIGTERM) == before
