"""A whole sweep in this process: Tune is replaced by a loop over the trials' jobs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import ray

from parc_ray import cli, cluster
from parc_ray.config import ResourcesConfig
from parc_ray.pool_config import PoolConfig
from parc_ray.sweep import tuner
from parc_ray.sweep.trial import FINISHED, TrialJob, run_job
from tests.evaluation.runs import make_run, tiny_config

FILE = """
about: two values of s
recipe: smoke
iterations: 1
grid:
  evaluation.s: [0.0, 1.0]
until: train-generator
tests: [generator]
protocol: run
measure: last
plots:
  - kind: lines
"""


class Loop:
    """Runs jobs one after the other; stops before the job of that number as if it were killed."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.stop_at: int | None = None
        self.at_once = 0

    def __call__(self, directory, points, scheduler, *, at_once, max_iterations):
        self.at_once = at_once
        for number, point in enumerate(points):
            if number == self.stop_at:
                raise KeyboardInterrupt
            if not (Path(point["run"]) / FINISHED).exists():
                self.begun.append(point["trial"])
                run_job(TrialJob(**json.loads(Path(point["job"]).read_text())))
        return []


@pytest.fixture
def loop(monkeypatch):
    made = Loop()
    inline = PoolConfig(actors=0, threads=1)
    monkeypatch.setattr(tuner, "run_trials", made)
    monkeypatch.setattr(ResourcesConfig, "pool", lambda self, actors, **options: inline)
    for name in ("connect", "disconnect"):
        monkeypatch.setattr(cluster, name, lambda *_: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    context = SimpleNamespace(gcs_address="local")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run whose last stage is left, and the sweep file."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "two.yaml").write_text(FILE)
    return make_run(tiny_config(folder / "runs"), without=("it_01/evaluate",))


def sweep(source, storage, *words):
    command = ["sweep", str(source.parents[1] / "two.yaml"), "--run", str(source)]
    command += ["--storage", str(storage), "--evaluation.terrains", "2"]
    command += ["--evaluation.motions_per_terrain", "2", "--evaluation.max_duration_s", "0.6"]
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--evaluation.terrain.cells", "12", "12", *words])
    return caught.value.code


def test_a_sweep_that_was_stopped_goes_on_and_ends_with_the_same_table(
    source, loop, tmp_path, capsys
):
    assert sweep(source, tmp_path / "calm") == 0
    calm = tmp_path / "calm" / "two"
    assert len(loop.begun) == 2
    loop.begun, loop.stop_at = [], 1
    assert sweep(source, tmp_path / "killed") == 1
    killed = tmp_path / "killed" / "two"
    assert not (killed / "results.csv").exists()
    assert sweep(source, tmp_path / "killed", "--results") == 0
    assert "missing" in (killed / "results.csv").read_text()
    first, loop.stop_at = loop.begun[0], None
    assert sweep(source, tmp_path / "killed") == 0
    assert loop.begun.count(first) == 1
    assert len(loop.begun) == 2
    for name in ("results.csv", "tables.md", "tables.tex", "results.parquet"):
        assert (killed / name).read_bytes() == (calm / name).read_bytes(), name
    table = pd.read_parquet(calm / "results.parquet")
    assert table["status"].unique().tolist() == ["finished"]
    tpl = table[table["figure"] == "tpl_code"].set_index("evaluation.s")["mean"]
    assert tpl[0.0] != tpl[1.0]
    shared = (calm / "trials").glob("*/it_01/train-generator")
    assert all(path.is_symlink() for path in shared)
    assert (calm / "plot-1-lines.png").exists()
    # Finished, it is left alone; another sweep may not take its directory.
    loop.begun = []
    assert sweep(source, tmp_path / "calm") == 0
    assert loop.begun == []
    capsys.readouterr()
    assert sweep(source, tmp_path / "calm", "--evaluation.seed", "4") == 2
    assert "made by another sweep" in capsys.readouterr().err
    assert sweep(source, tmp_path / "other", "--concurrent", "99") == 2
    assert "could wait for each other for ever" in capsys.readouterr().err
    assert sweep(source, tmp_path / "other", "--seed", "9") == 2
    assert "none of its stages is that of every trial" in capsys.readouterr().err
