"""A sweep of six trials on a real Ray: killed, gone on with, and the same table as undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.evaluation.runs import make_run, tiny_config
from tests.integration.processes import descendants, end, survivors
from tests.integration.runs import ROOT, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]
FILE = """
about: six values of s
recipe: smoke
iterations: 1
grid:
  evaluation.s: [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
until: train-generator
tests: [generator]
protocol: run
measure: last
plots:
  - kind: trade-off
    figures: [generator/tpl_code, generator/hjf_pairs_percent]
    paper: blends
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The command, but for the storage."""
    folder = tmp_path_factory.mktemp("sweep")
    run = make_run(tiny_config(folder / "runs"), without=("it_01/evaluate",))
    (folder / "six.yaml").write_text(FILE)
    test = "--evaluation.terrains 2 --evaluation.motions_per_terrain 2 "
    test += "--evaluation.max_duration_s 0.8 --evaluation.terrain.cells 12 12"
    return [
        *(sys.executable, "-m", "parc_ray.cli", "sweep", str(folder / "six.yaml")),
        *("--run", str(run), "--address", "local", *test.split()),
    ]


def start(words, storage: Path) -> subprocess.Popen:
    storage.mkdir(parents=True, exist_ok=True)
    with (storage / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [*words, "--storage", str(storage)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(words, storage: Path) -> None:
    driver = start(words, storage)
    assert driver.wait(1200) == 0, (storage / "driver.log").read_text()[-4000:]


@pytest.fixture(scope="module")
def calm(words, tmp_path_factory) -> Path:
    storage = tmp_path_factory.mktemp("calm")
    finish(words, storage)
    return storage / "six"


@pytest.fixture(scope="module")
def killed(words, tmp_path_factory) -> Path:
    """Killed when two trials are done and others are not."""
    storage = tmp_path_factory.mktemp("killed")
    driver = start(words, storage)
    limit = time.monotonic() + 1200
    try:
        while len(list(storage.glob("six/trials/*/sweep/finished.json"))) < 2:
            assert driver.poll() is None, (storage / "driver.log").read_text()[-4000:]
            assert time.monotonic() < limit
            time.sleep(0.1)
        family = descendants(driver.pid)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    end(survivors(family, 20.0))
    done = len(list(storage.glob("six/trials/*/sweep/finished.json")))
    assert 2 <= done < 6
    assert not (storage / "six/results.csv").exists()
    finish(words, storage)
    return storage / "six"


def test_the_table_after_a_kill_is_the_same(calm, killed):
    mine, theirs = (pd.read_csv(folder / "results.csv") for folder in (killed, calm))
    assert list(mine["status"].unique()) == ["finished"]
    assert mine["trial"].nunique() == 6
    pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
    assert (killed / "tables.md").read_text() == (calm / "tables.md").read_text()


def test_all_forms_of_the_results_are_there(calm):
    frame = pd.read_parquet(calm / "results.parquet")
    assert sorted(frame["evaluation.s"].unique()) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    tpl = frame[frame["figure"] == "tpl_code"]
    assert (tpl["low"] <= tpl["mean"]).all()
    assert tpl["mean"].nunique() > 1  # s matters
    text = (calm / "tables.md").read_text()
    assert "| s = 0.65 | paper (published) |" in text
    assert (calm / "plot-1-trade-off.png").stat().st_size > 5000
    assert "<img" in (calm / "report.html").read_text()


def test_nothing_was_trained_again_and_the_run_is_untouched(calm):
    for trial in (calm / "trials").iterdir():
        assert (trial / "it_01/train-generator").is_symlink()
    assert not (calm / "shared").exists()


def test_a_finished_sweep_is_left_alone(calm, words):
    before = (calm / "results.csv").read_bytes()
    done = (calm / "sweep_done.json").stat().st_mtime_ns
    finish(words, calm.parent)
    assert (calm / "results.csv").read_bytes() == before
    assert (calm / "sweep_done.json").stat().st_mtime_ns == done


ASHA = """
about: two lengths, the shorter is stopped
recipe: smoke
iterations: 2
grid:
  evaluation.max_duration_s: [0.8, 0.6]
until: train-generator
tests: [generator]
protocol: run
scheduler: {kind: asha, metric: generator/length_s, mode: max, reduction: 2}
concurrent: 1
"""


def test_asha_stops_what_is_worse(tmp_path, words):
    """Untrained motions go on to their limit, so the trial of the lower limit is the worse one."""
    run = make_run(tiny_config(tmp_path / "runs", 2), without=("it_02/evaluate",))
    (tmp_path / "asha.yaml").write_text(ASHA)
    words = [*words]
    words[4], words[6] = str(tmp_path / "asha.yaml"), str(run)
    finish(words, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out/asha/results.csv")
    found = table.groupby("evaluation.max_duration_s")[["status", "iteration"]].max()
    assert found.loc[0.8].tolist() == ["finished", 2]
    assert found.loc[0.6].tolist() == ["stopped", 1]


def test_another_sweep_in_its_directory_is_refused(calm, words):
    driver = start([*words, "--evaluation.seed", "4"], calm.parent)
    assert driver.wait(300) == 2
    assert "made by another sweep" in (calm.parent / "driver.log").read_text()
