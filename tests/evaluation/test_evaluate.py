"""``parc evaluate``: tables of a run's models, resumable and the same every time, without Ray."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from parc_ray import cli, cluster
from parc_ray.config import ResourcesConfig
from parc_ray.data.storage import Storage
from parc_ray.data.store import load_dataset
from parc_ray.evaluation.generator_test import TestWorker
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.evaluation.protocols import PROTOCOLS, set_digest, terrain_digest
from parc_ray.pool_config import PoolConfig
from parc_ray.stages._rollouts import plan_terrains
from parc_ray.tools.evaluate import is_stage, measure, stages_to_test
from tests.evaluation.runs import make_run, tiny_config


@pytest.fixture
def here(monkeypatch):
    """Work is done in this process."""
    inline = PoolConfig(actors=0, threads=1)
    monkeypatch.setattr(ResourcesConfig, "pool", lambda self, actors, **options: inline)
    monkeypatch.setattr(cluster, "connect", lambda resources: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two iterations, untrained."""
    return make_run(tiny_config(tmp_path_factory.mktemp("runs"), 2))


def run(*words) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["evaluate", *(str(w) for w in words)])
    return caught.value.code


def read(folder, name):
    csv, parquet = (folder / f"{name}.csv", folder / f"{name}.parquet")
    frame = pd.read_parquet(parquet)
    pd.testing.assert_frame_equal(
        pd.read_csv(csv), frame, check_dtype=False, check_exact=False, rtol=1e-12
    )
    return frame


def test_all_tables_are_written_and_a_second_call_changes_nothing(
    finished, here, tmp_path, capsys, humanoid, monkeypatch
):
    assert run(finished, "--protocol", "run", "--out", tmp_path) == 0
    out = tmp_path / "run-0"
    first = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    rows, terrains = read(out, "generator"), read(out, "terrains")
    assert len(rows) == 2 * 3 * 2
    assert list(rows.groupby("iteration").size()) == [6, 6]
    assert rows.groupby(["iteration", "terrain"])["best"].sum().tolist() == [1] * 6
    measured = ["fwd_m", "tpl_code", "tcl", "novelty", "floating_percent", "contact_f1"]
    assert np.isfinite(rows[measured]).all().all()
    assert set(terrains["class"]) <= {"level", "step", "drop", "climb", "gap"}
    tracker = read(out, "tracker")
    assert len(tracker) == 2 * 3
    assert tracker["success"].isin([0.0, 1.0]).all()
    assert (tracker["random_starts"] == 2).all()
    assert len(read(out, "tracker_reference")) == 2 * 2
    summary = read(out, "summary")
    ours = summary[summary["source"] == "ours"]
    fwd = ours[(ours["figure"] == "fwd_m") & (ours["iteration"] == 1)].iloc[0]
    assert fwd["mean"] == pytest.approx(rows[rows["iteration"] == 1]["fwd_m"].mean())
    assert fwd["low"] <= fwd["mean"] <= fwd["high"]
    assert (fwd["values"], fwd["groups"]) == (6, 3)
    paper = summary[(summary["source"] == "paper") & (summary["iteration"] == 2)]
    figures = dict(zip(paper["figure"], paper["mean"], strict=True))
    assert figures["tpl_code"] == 705.5
    assert figures["success"] == 0.44
    assert figures["body_error_relative_m"] == 0.05851
    text = (out / "tables.md").read_text()
    assert "| iteration 1 | paper (published) | 1.91 | 2093 |" in text
    assert "| no physics correction | paper (published) |" in text
    assert text.count("| iteration 2 | this run |") >= 3
    tex = (out / "tables.tex").read_text()
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 5
    assert r"\%HJF (pairs)" in tex
    monkeypatch.setattr(TestWorker, "__call__", None)  # nothing is generated again
    assert run(finished, "--protocol", "run", "--out", tmp_path) == 0
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == first
    capsys.readouterr()
    _, kept = load_dataset(out / "it_01" / "generator-test" / "kept.json")
    mine = rows[rows["iteration"] == 1].reset_index()
    for clip, row in zip(kept, mine.to_dict("records"), strict=True):
        figures = clip_metrics(clip, humanoid, "code")
        assert {k: row[k] for k in figures} == figures  # to the bit


def test_a_killed_test_goes_on_with_the_terrains_that_are_missing(
    finished, here, tmp_path, monkeypatch
):
    config = tiny_config(finished.parent, 2)
    config = replace(config, resources=replace(config.resources, address="local"))
    from parc_ray.evaluation.protocols import get_protocol

    protocol = get_protocol("run", config)
    run_storage = Storage.from_uri(finished)
    stages = stages_to_test(run_storage, config, [1])
    calm, _ = measure(
        run_storage, config, stages, Storage.from_uri(tmp_path / "a"), protocol, trackers=False
    )
    real = TestWorker.__call__
    done = []

    def dying(self, item):
        if done:
            raise KeyboardInterrupt
        done.append(item.id)
        return real(self, item)

    target = Storage.from_uri(tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(TestWorker, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            measure(run_storage, config, stages, target, protocol, trackers=False)

    def counting(self, item):
        done.append(item.id)
        return real(self, item)

    monkeypatch.setattr(TestWorker, "__call__", counting)
    again, _ = measure(run_storage, config, stages, target, protocol, trackers=False)
    assert done == ["test-00000", "test-00002"]
    pd.testing.assert_frame_equal(again[0].generator, calm[0].generator, check_exact=True)


def test_other_settings_are_refused_and_force_does_them(finished, here, tmp_path, capsys):
    words = (finished, "--protocol", "run", "--iteration", 1, "--out", tmp_path)
    assert run(*words) == 0
    assert run(*words, "--random-starts", 3) == 2
    assert "random_starts: 2 -> 3" in capsys.readouterr().err
    assert run(*words, "--random-starts", 3, "--force") == 0
    assert (read(tmp_path / "run-0", "tracker")["random_starts"] == 3).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--protocol", "smal"], "did you mean 'small'"),
        (["--iteration", "3"], "the run has [1, 2]"),
        (["--random-starts", "0"], "--random-starts: 0 is out of range"),
    ],
)
def test_wrong_words_are_one_line(finished, here, capsys, words, said):
    assert run(finished, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        (["--iteration", "1", "--name", "r"], True),
        (["--recipe", "smoke", "--force"], True),
        (["runs/r", "--iteration", "1"], False),
        (["--protocol", "small", "runs/r"], False),
        (["--random-starts=9", "runs/r"], False),
        (["--help"], False),
        ([], False),
    ],
)
def test_the_loops_stage_keeps_its_words(words, stage):
    assert is_stage(words) == stage


def test_a_run_without_a_generator_is_refused(tmp_path, here, capsys):
    config = tiny_config(tmp_path)
    found = make_run(
        config,
        without=tuple(
            f"it_01/{n}"
            for n in ("train-generator", "generate", "train-tracker", "record", "merge", "evaluate")
        ),
    )
    assert run(found) == 2
    assert "not trained yet" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_the_terrain_sets_are_those_of_their_versions(name):
    protocol = PROTOCOLS[name]
    config = tiny_config("runs")
    cfg = protocol.evaluation
    batch = plan_terrains(
        cfg.terrain, protocol.synthesis(config.synthesis), range(cfg.terrains), cfg.seed
    )
    assert not batch.refused
    digests = [terrain_digest(p.terrain, p.path.points) for p in batch.planned]
    assert set_digest(digests) == protocol.digest
    assert len(set(digests)) == cfg.terrains


def test_the_papers_protocol_has_its_numbers():
    cfg = PROTOCOLS["paper"].evaluation
    assert (cfg.terrains, cfg.motions_per_terrain, cfg.s) == (100, 32, 0.65)
    assert (cfg.terrain.cells, cfg.terrain.path_count) == ((32, 32), 10)
    small = PROTOCOLS["small"].evaluation
    assert (small.terrains, small.motions_per_terrain) == (10, 8)
    assert json.dumps(PROTOCOLS["small"].label) == '"small-1"'
