"""Drift, protocols and sweeps in a run's report."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd

from parc_ray.data.storage import Storage
from parc_ray.evaluation.limits import DriftConfig
from parc_ray.evaluation.report import render_report
from parc_ray.evaluation.report_sections import (
    drift_section,
    protocol_sections,
    sweep_sections,
)
from parc_ray.evaluation.results import SUMMARY_COLUMNS
from parc_ray.evaluation.write_results import write_table
from tests.evaluation.runs import tiny_config
from tests.evaluation.test_drift import sway
from tests.stages.helpers import put_clips


def drifting(folder, humanoid):
    initial = [sway(humanoid, f"d{k}", 0.1 + 0.05 * k) for k in range(3)]
    put_clips(folder, "it_00/merge", initial, humanoid)
    data = initial
    for k in (1, 2):
        made = [sway(humanoid, f"g{k}", 0.3 * k, float(k))]
        put_clips(folder, f"it_{k:02d}/generate", made, humanoid)
        data = [*data, *made]
        put_clips(folder, f"it_{k:02d}/merge", data, humanoid)
    return Storage.from_uri(folder)


def test_drift_is_drawn_and_alarms_are_told(tmp_path, humanoid):
    storage = drifting(tmp_path, humanoid)
    config = tiny_config(tmp_path, 2)
    strict = replace(config.evaluation, drift=DriftConfig(max_frechet=0.0))
    found = drift_section(storage, replace(config, evaluation=strict), humanoid)
    assert "iteration 2: Frechet distance from D0" in found.text
    assert [len(t.rows) for t in found.tables] == [2, 2, 2]
    assert [p.alt for p in found.pictures] == [
        "Distance from D0",
        "Nearest of D0, and depth",
        "Kept",
    ]
    assert found.tables[1].rows[0][1:] == ["1.0 / 1.0", *["0 / –"] * 4]
    limits = DriftConfig(max_frechet=1e9, max_nearest_ratio=1e9, max_class_share=1.0)
    loose = replace(config, evaluation=replace(config.evaluation, drift=limits))
    assert "No limit is exceeded." in drift_section(storage, loose, humanoid).text
    nothing = drift_section(Storage.from_uri(tmp_path / "x"), config, humanoid)
    assert nothing.tables == []


def test_protocols_and_sweeps_stand_on_the_page(tmp_path):
    run = Storage.from_uri(tmp_path / "r")
    row = {"test": "generator", "iteration": 1, "figure": "fwd_m", "values": 8, "groups": 2}
    ours = {**row, "source": "ours", "mean": 1.0, "low": 0.5, "high": 1.5}
    paper = {**row, "source": "paper", "mean": 1.908}
    summary = pd.DataFrame([ours, paper], columns=list(SUMMARY_COLUMNS))
    write_table(run.join("evaluation/small-1"), "summary", summary)
    meta = {"terrain_set": "a", "terrain_set_expected": "b"}
    run.write_json_atomic("evaluation/small-1/meta.json", meta)
    run.write_bytes_atomic("evaluation/it_01/x", b"")  # no protocol
    (section,) = protocol_sections(run)
    assert section.title == "Protocol small-1"
    assert "NOT that of the protocol" in section.text
    assert section.tables[0].rows == [
        ["iteration 1", "this run", "1.00 [0.500, 1.50]"],
        ["iteration 1", "paper (published)", "1.91"],
    ]
    for name, home in (("mine", run.root), ("other", "elsewhere")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sweep.json").write_text(json.dumps({"home": home}))
        (folder / "plot-1-lines.png").write_bytes(b"png")
    (sweep,) = sweep_sections(run)
    assert sweep.title == "Sweep mine"
    page = render_report("t", "", [], [section, sweep])
    assert "data:image/png;base64,cG5n" in page
    assert protocol_sections(Storage.from_uri(tmp_path / "none")) == []
