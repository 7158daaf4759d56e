"""Kill -9 of the stage ``generate``: its actors and its driver. The same parts, whoever dies."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.train import train_local
from parc_ray.character.character import Character
from tests.algorithms.diffusion.fakes import make_bank
from tests.integration.generating import APART, LABEL, config, generate
from tests.integration.processes import descendants, end, survivors
from tests.integration.runs import ROOT, RunFiles, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory, humanoid: Character) -> Path:
    """A generator file after two steps."""
    settings = tiny()
    train = replace(settings.train, steps=2, batch_size=4, stat_windows=32, report_every=2)
    made = tmp_path_factory.mktemp("generator")
    return train_local(make_bank(humanoid), humanoid, replace(settings, train=train), made).path


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory, generator: Path, ray_session: None) -> RunFiles:
    """Undisturbed, by one actor that runs all operators."""
    root = tmp_path_factory.mktemp("calm") / "r"
    generate(root, generator, config(generate_operators="together", generate_actors=1))
    return RunFiles(root)


class Killer(threading.Thread):
    """Kills the first actor of each of these operators that it finds at work."""

    def __init__(self, *operators: str) -> None:
        super().__init__(daemon=True)
        self.waiting, self.killed = set(operators), dict[str, int]()
        self.over = threading.Event()

    def run(self) -> None:
        while self.waiting and not self.over.wait(0.02):
            for pid in descendants(os.getpid()):
                self._meet(pid)

    def _meet(self, pid: int) -> None:
        try:
            title = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            return
        for operator in sorted(self.waiting):
            if f"MapBatches({operator})" in title and ".submit" in title:
                os.kill(pid, signal.SIGKILL)
                self.waiting.remove(operator)
                self.killed[operator] = pid


@pytest.fixture(scope="module")
def hit(tmp_path_factory: pytest.TempPathFactory, generator: Path, ray_session: None) -> RunFiles:
    """Operators apart, two actors roll out; one of those and the one that optimises are killed."""
    root = tmp_path_factory.mktemp("hit") / "r"
    killer = Killer("roll_out", "optimise")
    killer.start()
    try:
        generate(root, generator, config(**APART))
    finally:
        killer.over.set()
        killer.join()
    assert set(killer.killed) == {"roll_out", "optimise"}
    return RunFiles(root)


def parts(run: RunFiles, pattern: str) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (run.path / LABEL).glob(pattern)}


def test_parts_and_manifests_are_equal_to_the_byte(calm: RunFiles, hit: RunFiles):
    assert hit.marker(LABEL)["outputs"] == calm.marker(LABEL)["outputs"]
    for pattern in ("*.parquet", "items/*.parquet"):
        a, b = (
            {p.name: p.read_bytes() for p in (r.path / LABEL).glob(pattern)} for r in (calm, hit)
        )
        assert a == b
        assert a, pattern
    clips = hit.clips(LABEL)
    assert len({c.clip_id for c in clips}) == len(clips) == calm.manifest(LABEL).rows


def test_every_rejection_is_listed_once_with_its_reason(calm: RunFiles, hit: RunFiles):
    a, b = ((r.path / LABEL / "rejections.csv").read_bytes() for r in (calm, hit))
    assert a == b
    table = pd.read_csv(io.BytesIO(a))
    metrics = calm.marker(LABEL)["metrics"]
    records = calm.json(f"{LABEL}/records.json")
    assert not table.duplicated(["terrain", "candidate"]).any()
    assert table["reason"].notna().all()
    assert table["candidate"].isna().sum() == metrics["terrains_without_path"]
    judged = metrics["candidates"] - sum(
        "seconds" in m for r in records for m in r["motions"].values()
    )
    assert table["candidate"].notna().sum() == judged
    told = table[table["candidate"].notna()]["reason"].str.partition(":")[0].value_counts()
    assert {f"rejected/{k}": float(v) for k, v in told.items()} == {
        k: v for k, v in metrics.items() if k.startswith("rejected/")
    }


def test_motions_have_their_figures_before_and_after(hit: RunFiles):
    for clip in hit.clips(LABEL):
        for name in ("tpl", "tcl", "hjf_percent", "foot_slide_mps"):
            assert {f"{name}_before", f"{name}_after"} <= clip.metrics.keys()


def test_throughput_counts_items_not_attempts(calm: RunFiles, hit: RunFiles):
    for run in (calm, hit):
        table = pd.read_csv(run.path / LABEL / "throughput.csv", index_col="operator")
        assert list(table.index) == ["plan", "roll-out", "optimise"]
        assert (table["items"] == 3).all()
        assert table["wall_share"].sum() == pytest.approx(1.0, abs=1e-4)
        metrics = run.marker(LABEL)["metrics"]
        made = metrics["terrains"] - metrics["terrains_without_path"]
        assert table.loc["plan", "motions"] == made
        assert run.marker(LABEL)["cpu_seconds"] >= table["cpu_s"].sum()


def test_a_killed_driver_goes_on_with_the_items_that_are_missing(
    calm: RunFiles, generator: Path, tmp_path: Path, ray_session: None
):
    root = tmp_path / "r"
    _kill_driver(root, generator)
    items = root / LABEL / "items"
    kept = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in items.glob("*.json")}
    assert 1 <= len(kept) < 3
    generate(root, generator, config(generate_operators="together", generate_actors=1))
    run = RunFiles(root)
    assert run.marker(LABEL)["outputs"] == calm.marker(LABEL)["outputs"]
    for pattern in ("*.parquet", "items/*.parquet", "records.json", "rejections.csv"):
        assert parts(run, pattern) == parts(calm, pattern)
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in kept} == kept
    assert len(list(items.glob("*.json"))) == 3
    assert not list(root.rglob("*.tmp"))


def _kill_driver(root: Path, generator: Path) -> None:
    """Start the stage in a process and kill that with signal 9 once an item is done."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.generating", str(root), str(generator)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limit = time.monotonic() + 300.0
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
