"""Kill -9 of the stage ``record``: one of its actors, and its driver. The same recordings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.correcting import COUNT, LABEL, correct
from tests.integration.processes import descendants, end, survivors
from tests.integration.runs import ROOT, RunFiles, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> RunFiles:
    """Undisturbed, by one actor."""
    root = tmp_path_factory.mktemp("calm") / "r"
    correct(root, actors=1)
    return RunFiles(root)


class Killer(threading.Thread):
    """Kills one actor that is at work, once the first item is done."""

    def __init__(self, items: Path) -> None:
        super().__init__(daemon=True)
        self.items, self.killed = items, 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.killed and not self.over.wait(0.02):
            if not list(self.items.glob("*.json")):
                continue
            for pid in descendants(os.getpid()):
                if not self.killed and _at_work(pid):
                    os.kill(pid, signal.SIGKILL)
                    self.killed = pid


def _at_work(pid: int) -> bool:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return "MapBatches(work)" in title and ".submit" in title


@pytest.fixture(scope="module")
def hit(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> RunFiles:
    """Two actors, one of which is killed."""
    root = tmp_path_factory.mktemp("hit") / "r"
    killer = Killer(root / LABEL / "items")
    killer.start()
    try:
        correct(root, actors=2)
    finally:
        killer.over.set()
        killer.join()
    assert killer.killed
    return RunFiles(root)


def untimed(record: Any) -> Any:
    """A record without what the machine's speed decides."""
    if isinstance(record, dict):
        return {k: untimed(v) for k, v in record.items() if k != "cpu_s"}
    return [untimed(r) for r in record] if isinstance(record, list) else record


def assert_equal_runs(a: RunFiles, b: RunFiles) -> None:
    assert a.marker(LABEL)["outputs"] == b.marker(LABEL)["outputs"]
    for pattern in ("*.parquet", "items/*.parquet", "refused.json", "failures.csv"):
        found = [{p.name: p.read_bytes() for p in (r.path / LABEL).glob(pattern)} for r in (a, b)]
        assert found[0] == found[1], pattern
    records = [untimed(r.json(f"{LABEL}/records.json")) for r in (a, b)]
    assert records[0] == records[1]


def test_the_stage_corrects_what_it_can(calm: RunFiles):
    records = {r["source_id"]: r for r in calm.json(f"{LABEL}/records.json")}
    assert len(records) == COUNT
    assert records["sway0"]["corrector"] == "mpc"
    assert records["flee"]["corrector"] is None
    assert records["flee"]["failures"][0]["frame"] is not None


def test_a_killed_actor_costs_nothing_but_its_item(calm: RunFiles, hit: RunFiles):
    assert_equal_runs(calm, hit)
    assert len(list((hit.path / LABEL).glob("items/*.json"))) == COUNT


def test_a_killed_driver_goes_on_with_the_motions_that_are_missing(
    calm: RunFiles, tmp_path: Path, ray_session: None
):
    root = tmp_path / "r"
    _kill_driver(root)
    items = root / LABEL / "items"
    kept = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in items.glob("*.json")}
    assert 1 <= len(kept) < COUNT
    correct(root, actors=1)
    run = RunFiles(root)
    assert_equal_runs(calm, run)
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in kept} == kept
    assert len(list(items.glob("*.json"))) == COUNT
    assert not list(root.rglob("*.tmp"))


def _kill_driver(root: Path) -> None:
    """Start the stage in a process and kill that with signal 9 once a motion is done."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.correcting", str(root)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limit = time.monotonic() + 600.0
    try:
        while not list((root / LABEL).glob("items/*.json")):
            assert driver.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.02)
        family = descendants(driver.pid)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    end(survivors(family, 10.0))
