"""Damaged files are found by their hashes and made again; a taken lock ends its driver."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import ClassVar

import pytest

from parc_ray import cluster, dispatch, loop
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

    def drive() -> None:
        with RunLock(storage) as lock:
            lock.require_held()
            taken = {"token": "other", "host": "elsewhere", "pid": 1, "beat_unix_s": time.time()}
            storage.write_json_atomic(LOCK_FILE, taken)
            deadline = time.monotonic() + 10.0
            while not lock._lost:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            lock.require_held()

    with pytest.raises(InputError, match="another driver"):
        drive()
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


class Apart:
    """In the place of ``Hosted``: runs the stage at once, and keeps what it was asked for."""

    asked: ClassVar[list[str]] = []
    before: ClassVar[list[str]] = []
    """What happens before the next one runs, by label of a stage to damage."""

    def __init__(self, function, context, stage) -> None:
        Apart.asked.append(stage.label)
        for label in Apart.before:
            context.run.delete(f"{label}/out/part-1.txt")
        Apart.before = []
        self.error, self.done = None, None
        try:
            self.done = function(context, stage)
        except Exception as error:
            self.error = error

    def result(self):
        if self.error is not None:
            raise self.error
        return self.done

    def wait(self) -> None: ...

    def finished(self) -> bool:
        return True

    def cancel(self) -> None: ...


@pytest.fixture
def apart(monkeypatch):
    monkeypatch.setattr(cluster, "connect", lambda resources: None)
    monkeypatch.setattr(dispatch, "Hosted", Apart)
    Apart.asked, Apart.before = [], []
    return Apart.asked


def test_what_is_made_again_is_made_where_it_belongs(tmp_path, apart):
    config = fake_config(str(tmp_path))
    config = replace(config, resources=replace(config.resources, tracker_host="cluster"))
    loop.run(config)
    assert apart == ["it_00/train-tracker", "it_01/train-tracker"]
    run = tmp_path / "smoke"
    (run / "it_01/train-tracker/out/part-1.txt").unlink()
    (run / "it_01/record/_DONE.json").unlink()
    loop.run(config)
    assert apart[2:] == ["it_01/train-tracker"]


def test_a_stage_apart_makes_nothing_again_itself(tmp_path, apart):
    config = fake_config(str(tmp_path))
    config = replace(config, resources=replace(config.resources, overlap=True))
    Apart.before = ["it_01/generate"]  # lost when the evaluation begins
    results = loop.run(config)
    assert apart == ["it_01/evaluate", "it_01/evaluate"]
    assert executed(tmp_path).count("it_01/generate") == 2
    assert executed(tmp_path).count("it_01/evaluate") == 1
    assert not results["it_01/evaluate"].skipped
