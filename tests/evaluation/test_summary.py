"""A run read from the markers that its stages left."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from parc_ray.data.storage import Storage
from parc_ray.evaluation.report import iteration_table, text_of, time_table
from parc_ray.evaluation.summary import summarise


def mark(root: Path, label: str, wall: float, cpu: float, /, **metrics: float | None) -> None:
    """A finished stage's marker, with the fields that a summary reads."""
    home = root / label
    home.mkdir(parents=True, exist_ok=True)
    marker = {"metrics": metrics, "seconds": wall, "cpu_seconds": cpu}
    (home / "_DONE.json").write_text(json.dumps(marker))


@pytest.fixture
def run(tmp_path):
    mark(tmp_path, "it_00/augment", 2.0, 3.0, clips=4.0)
    mark(tmp_path, "it_00/merge", 0.5, 0.5, clips=4.0, seconds=6.5)
    mark(tmp_path, "it_01/merge", 0.5, 0.5, clips=7.0, seconds=10.25)
    mark(tmp_path, "it_01/record", 10.0, 19.0, attempted=5.0, corrected=3.0)
    mark(tmp_path, "it_01/evaluate", 4.0, 4.0, gen_tpl=12.345, gen_fwd=None)
    (tmp_path / "it_01/generate").mkdir()  # started, not finished
    (tmp_path / "it_01/generate/_STARTED.json").write_text("{}")
    (tmp_path / "it_xx").mkdir()
    (tmp_path / "logs/it_01/record").mkdir(parents=True)
    return tmp_path


def summary(run):
    return summarise(Storage.from_uri(run), "r")


def test_finished_stages_are_listed_in_the_order_in_which_they_ran(run):
    found = [(s.iteration, s.name) for s in summary(run).stages]
    assert found == [
        (0, "augment"),
        (0, "merge"),
        (1, "record"),
        (1, "merge"),
        (1, "evaluate"),
    ]
    assert summary(run).iterations == [0, 1]


def test_a_stage_that_has_not_finished_is_not_there(run):
    assert summary(run).stage(1, "generate") is None
    record = summary(run).stage(1, "record")
    assert record is not None
    assert record.metrics["corrected"] == 3.0


def test_tables_and_records_are_read_where_there_are_some(run):
    (run / "it_01/record/records.json").write_text('[{"a": 1}]')
    (run / "it_01/evaluate/t.csv").write_text("clip,starts\nx,3\n")
    record, evaluate = (summary(run).stage(1, name) for name in ("record", "evaluate"))
    assert record is not None
    assert evaluate is not None
    assert record.records() == [{"a": 1}]
    assert evaluate.records() == []
    table = evaluate.table("t.csv")
    assert table is not None
    assert table.to_dict("records") == [{"clip": "x", "starts": 3}]
    assert record.table("t.csv") is None


def test_the_iteration_table_has_a_row_per_iteration_and_dashes(run):
    table = iteration_table(summary(run))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [r["iteration"] for r in rows] == ["0", "1"]
    assert rows[0]["clips in D"] == "4"
    assert rows[0]["generated"] == "–"
    assert rows[1]["clips in D"] == "7"
    assert rows[1]["seconds in D"] == "10.2"
    assert (rows[1]["generated"], rows[1]["corrected"]) == ("5", "3")
    assert (rows[1]["TPL"], rows[1]["FWD (m)"]) == ("12.3", "–")


def test_the_time_table_adds_up(run):
    table = time_table(summary(run))
    assert table.columns == ["stage", "iteration 0", "iteration 1", "all"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["merge"] == ["0 / 0", "0 / 0", "1 / 1"]
    assert rows["record"] == ["–", "10 / 19", "10 / 19"]
    assert rows["all"] == ["2 / 4", "14 / 24", "17 / 27"]
    assert list(rows)[-1] == "all"


def test_an_empty_directory_is_a_run_that_has_not_begun(tmp_path):
    empty = summarise(Storage.from_uri(tmp_path), "r")
    assert empty.stages == ()
    assert iteration_table(empty).rows == []
    assert time_table(empty).rows == [["all", "0 / 0"]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (3.0, "3"),
        (0.12345, "0.123"),
        (1234567.5, "1.23e+06"),
        (True, "yes"),
        (False, "no"),
        (5, "5"),
        ("walk", "walk"),
        (math.inf, "inf"),
        (0.0, "0"),
    ],
)
def test_cells(value, text):
    assert text_of(value) == text
