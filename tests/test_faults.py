"""Damaged files are found by their hashes and made again; a taken lock ends its driver."""

from __future__ import annotations

import json
import time

import pytest

from parc_ray import loop
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.lock import LOCK_FILE, RunLock
from parc_ray.stages.registry import clear_overrides
from tests.fakes import fake_config, install


@pytest.fixture(autouse=True)
def _fakes():
    install()
    yield
    clear_overrides()


def executed(path) -> list[str]:
    return (path / "smoke/executions.log").read_text().split()


@pytest.mark.parametrize("damage", ["changed", "lost"])
def test_an_input_that_was_damaged_is_made_again_as_it_was(tmp_path, damage):
    config = fake_config(str(tmp_path))
    loop.run(config)
    run = tmp_path / "smoke"
    before = {p: p.read_bytes() for p in run.glob("it_*/*/out/*")}
    part = run / "it_01/generate/out/part-1.txt"
    for name in ("record", "merge", "evaluate", "report"):
        (run / f"it_01/{name}/_DONE.json").unlink()
    if damage == "changed":
        part.write_bytes(b"x")
    else:
        part.unlink()
    count = len(executed(tmp_path))
    loop.run(config)
    assert executed(tmp_path)[count:] == [
        f"it_01/{name}" for name in ("generate", "record", "merge", "evaluate", "report")
    ]
    assert {p: p.read_bytes() for p in run.glob("it_*/*/out/*")} == before
    assert "damaged, making it again" in (run / "run.log").read_text()


def test_a_damaged_input_of_a_damaged_input_too(tmp_path):
    config = fake_config(str(tmp_path))
    loop.run(config)
    run = tmp_path / "smoke"
    for name in ("train-generator", "generate"):
        (run / f"it_01/{name}/out/part-0.txt").write_bytes(b"x")
    (run / "it_01/record/_DONE.json").unlink()
    count = len(executed(tmp_path))
    loop.run(config)
    again = [f"it_01/{name}" for name in ("train-generator", "generate", "record")]
    assert executed(tmp_path)[count:] == again


def test_what_comes_out_unlike_before_is_refused(tmp_path):
    config = fake_config(str(tmp_path))
    loop.run(config)
    run = tmp_path / "smoke"
    marker = run / "it_01/generate/_DONE.json"
    stored = json.loads(marker.read_text())
    stored["outputs"]["motions"]["sha256"] = "0" * 64  # as if other versions had made it
    marker.write_text(json.dumps(stored))
    (run / "it_01/record/_DONE.json").unlink()
    (run / "it_01/record/_STARTED.json").unlink()
    with pytest.raises(InputError, match="it_01/generate: made again after damage, motions came"):
        loop.run(config)


def test_a_lock_that_was_taken_meanwhile_ends_the_driver(tmp_path, monkeypatch):
    import parc_ray.lock as module

    monkeypatch.setattr(module, "_BEAT_S", 0.02)
    storage = Storage.from_uri(tmp_path)
    with RunLock(storage) as lock:
        lock.require_held()
        taken = {"token": "other", "host": "elsewhere", "pid": 1, "beat_unix_s": time.time()}
        storage.write_json_atomic(LOCK_FILE, taken)
        deadline = time.monotonic() + 10.0
        while not lock._lost:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(InputError, match="another driver"):
            lock.require_held()
    assert storage.read_json(LOCK_FILE)["token"] == "other"


def test_a_heart_goes_on_after_storage_failed(tmp_path, monkeypatch):
    import parc_ray.lock as module

    monkeypatch.setattr(module, "_BEAT_S", 0.02)
    storage = Storage.from_uri(tmp_path)
    with RunLock(storage) as lock:
        real, fails = lock._beat, []

        def beat() -> None:
            if len(fails) < 3:
                fails.append(1)
                raise OSError("gone for a while")
            real()

        monkeypatch.setattr(lock, "_beat", beat)
        first = storage.read_json(LOCK_FILE)["beat_unix_s"]
        deadline = time.monotonic() + 10.0
        while storage.read_json(LOCK_FILE)["beat_unix_s"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(fails) == 3
