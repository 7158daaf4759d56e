from __future__ import annotations

import csv
import json

import pytest

from benchmarks import _study, generator_study, generator_study_parts
from benchmarks.generator_study_parts import (
    VALIDATION_TAKES,
    data_energy,
    held_out_loss,
    load_clips,
    setting,
    with_sampling,
)
from benchmarks.generator_study_report import COLUMNS, verdict
from parc_ray.errors import InputError


def rows_of(base: list[float], upstream: list[float]) -> list[dict[str, object]]:
    rows = []
    for name, values in (("base", base), ("upstream", upstream)):
        for seed, value in enumerate(values):
            row = dict.fromkeys(COLUMNS, value)
            rows.append({"setting": name, "seed": seed, "cpu_s": 900.0, **row})
    return rows


def test_verdict_by_hand():
    """Means 6 and 10: 40 % lower. Ranges 5..7 and 6.5..13.5 overlap, 5..7 and 8..12 do not."""
    gain, apart = verdict(rows_of([5, 6, 7], [8, 10, 12]), "tpl", "base", "upstream")
    assert gain == pytest.approx(0.4)
    assert apart
    gain, apart = verdict(rows_of([5, 6, 7], [6.5, 10, 13.5]), "tpl", "base", "upstream")
    assert gain == pytest.approx(0.4)
    assert not apart


def test_page_and_tables_from_what_is_there(tmp_path):
    for row in rows_of([1.0, 2.0], [4.0, 8.0]):
        (tmp_path / f"{row['setting']}_{row['seed']}.json").write_text(json.dumps(row))
    curve = {"run": "base_0", **dict.fromkeys(COLUMNS, 1.0)}
    for s in (1.0, 0.5):
        (tmp_path / f"curve_base_0_{s:g}.json").write_text(json.dumps({**curve, "s": s}))
    generator_study.report(tmp_path, tmp_path / "out")
    page = (tmp_path / "out" / "generator_study.md").read_text()
    assert "75 % lower than `upstream`; ranges of the seeds do not overlap" in page
    curve_at = page.index("over s")
    assert page.index("\n| 0.5 |", curve_at) < page.index("\n| 1 |", curve_at)
    with (tmp_path / "out" / "generator_study" / "runs.csv").open() as file:
        assert [r["held_out_loss"] for r in csv.DictReader(file)] == ["1", "2", "4", "8"]
    assert (tmp_path / "out" / "generator_study" / "study.png").stat().st_size > 5_000


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    """Pieces with a result are skipped; the curve waits for its run; a failure is named."""
    started = []

    class Process:
        pid = 1

        def __init__(self, name: str) -> None:
            self.name = name

        def poll(self) -> int:
            if self.name == "upstream_1":
                return 3
            (tmp_path / f"{self.name}.json").write_text("{}")
            return 0

    def start(script, work, job):
        started.append(job.name)
        return Process(job.name)

    monkeypatch.setattr(_study, "start", start)
    monkeypatch.setattr(generator_study, "report", lambda work, out: None)
    monkeypatch.setattr(_study, "POLL_S", 0.0)
    (tmp_path / "base_1.json").write_text("{}")
    with pytest.raises(SystemExit, match="upstream_1"):
        generator_study.main(["--work", str(tmp_path), "--seeds", "0", "1"])
    assert started[:3] == ["base_0", "upstream_0", "upstream_1"]
    assert [n for n in started if n.startswith("curve")] == [
        f"curve_base_0_{s:g}" for s in generator_study_parts.BLENDS
    ]


def test_settings_by_dotted_key():
    config = setting("base", 3, 900.0, {"loss.min_snr_gamma": 5.0, "terrain.near_cells": 2})
    assert (config.loss.min_snr_gamma, config.terrain.near_cells) == (5.0, 2)
    assert (config.train.seed, config.train.max_cpu_s) == (3, 900.0)
    with pytest.raises(InputError, match=r"loss\.nonsense"):
        setting("base", 0, 1.0, {"loss.nonsense": 1.0})


@pytest.mark.slow
def test_one_run_and_one_point_of_the_curve(tmp_path, shared_data, monkeypatch):
    """The whole chain on PARC's clips, with next to no training and few motions."""
    for name, value in (
        ("TERRAINS", 2),
        ("MOTIONS", 2),
        ("SECONDS", 1.0),
        ("VALIDATION_BATCHES", 1),
        ("VALIDATION_SIZE", 16),
    ):
        monkeypatch.setattr(generator_study_parts, name, value)
    data = str(shared_data / "parc_clips")
    generator_study.one_run(tmp_path, data, "tiny", 0, 3.0, {"train.stat_windows": 256})
    row = json.loads((tmp_path / "tiny_0.json").read_text())
    assert {"held_out_loss", "tpl", "fwd_m", "hjf_percent", "energy_ratio"} <= row.keys()
    assert row["motions"] == 4
    generator_study.one_blend(tmp_path, data, "tiny_0", 1.0)
    assert json.loads((tmp_path / "curve_tiny_0_1.json").read_text())["s"] == 1.0


@pytest.mark.slow
def test_takes_are_split_and_loss_is_fixed(tmp_path, shared_data, humanoid, monkeypatch):
    """No take on both sides; two measurements of one generator agree to the bit."""
    from algorithms.diffusion.generator import DiffusionGenerator
    from algorithms.diffusion.train import train_local
    from parc_ray.data.bank import ClipBank

    training, held_out = load_clips(str(shared_data / "parc_clips"), humanoid)
    takes = [{c.provenance.take for c in clips} for clips in (training, held_out)]
    assert takes[1] == set(VALIDATION_TAKES)
    assert not takes[0] & takes[1]
    assert {c.provenance.class_name for c in held_out} <= {
        c.provenance.class_name for c in training
    }
    assert data_energy(training) > 0
    monkeypatch.setattr(generator_study_parts, "VALIDATION_BATCHES", 1)
    config = setting("tiny", 0, 900.0, {"train.steps": 1, "train.stat_windows": 64})
    bank = ClipBank(training, humanoid.skeleton)
    result = train_local(bank, humanoid, config, tmp_path)
    generator = DiffusionGenerator.load(result.path, humanoid)
    first = held_out_loss(generator, held_out, humanoid)
    assert first == held_out_loss(with_sampling(generator, blend=0.1), held_out, humanoid)
    assert {"penetration", "target"}.isdisjoint(first)


def test_runs_of_an_earlier_table_are_taken_over(tmp_path):
    """Exactly the missing ones, with their numbers; a foreign table is refused by its line."""
    for row in rows_of([1.0, 2.0], [4.0, 8.0]):
        (tmp_path / f"{row['setting']}_{row['seed']}.json").write_text(json.dumps(row))
    generator_study.report(tmp_path, tmp_path / "out")
    table = tmp_path / "out" / "generator_study" / "runs.csv"
    work = tmp_path / "again"
    work.mkdir()
    (work / "base_0.json").write_text('{"mine": true}')
    generator_study.take_over(table, work)
    names = {path.name for path in work.iterdir()}
    assert names == {"base_0.json", "base_1.json", "upstream_0.json", "upstream_1.json"}
    assert json.loads((work / "base_0.json").read_text()) == {"mine": True}
    found = json.loads((work / "upstream_1.json").read_text())
    assert (found["seed"], found["tpl"]) == (1, 8.0)
    table.write_text("setting,seed,steps\nbase,none,3\n")
    with pytest.raises(InputError, match=r"runs\.csv: line 2"):
        generator_study.take_over(table, work)
