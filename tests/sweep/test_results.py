"""The table of a sweep from what its trials left, without Ray."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from parc_ray.evaluation.bootstrap import Interval
from parc_ray.sweep.plots import draw_plots
from parc_ray.sweep.results import collect, last_figures, write_sweep
from parc_ray.sweep.spec import PlotSpec
from parc_ray.sweep.trial import FINISHED, PROGRESS, _records
from parc_ray.sweep.tuner import flat_figures
from tests.sweep.test_spec import prepared


@pytest.fixture
def sweep(tmp_path):
    return prepared(
        tmp_path,
        "grid: {evaluation.s: [0.0, 0.5, 1.0]}\nuntil: train-generator\n"
        "plots: [{kind: trade-off, paper: blends, "
        "figures: [generator/tpl_code, generator/hjf_pairs_percent]}, {kind: lines}]",
    )


def rows(level, interval=True):
    out = []
    for k, name in enumerate(("tpl_code", "hjf_pairs_percent", "hjf_frames_percent", "fwd_m")):
        mean = level + k
        low, high = (mean - 0.5, mean + 0.5) if interval else (None, None)
        out.append(
            {"test": "generator", "iteration": 1, "figure": name, "mean": mean}
            | {"low": low, "high": high, "values": 8, "groups": 4}
        )
    return out


def leave(sweep, number, iterations, *, finished=True):
    run = sweep.directory / "trials" / sweep.trials[number].name
    for iteration in range(1, iterations + 1):
        path = run / PROGRESS.format(iteration)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = [{**row, "iteration": iteration} for row in rows(10.0 * number + iteration)]
        path.write_text(json.dumps({"terrain_set": "x", "rows": made}))
    if finished:
        (run / FINISHED).write_text("{}")


def test_every_state_of_a_trial_is_told(sweep):
    leave(sweep, 0, 2)
    leave(sweep, 1, 1, finished=False)
    table = collect(sweep.directory, sweep.trials)
    status = table.groupby("evaluation.s")["status"].first().to_dict()
    assert status == {0.0: "finished", 0.5: "stopped", 1.0: "missing"}
    assert table.groupby("evaluation.s").size().to_dict() == {0.0: 8, 0.5: 4, 1.0: 1}
    figures = last_figures(table)
    assert figures[sweep.trials[0].name]["generator/tpl_code"] == Interval(
        mean=2.0, low=1.5, high=2.5, values=8, groups=4
    )
    assert sweep.trials[2].name not in figures


def test_pages_and_pictures(sweep):
    for number in range(3):
        leave(sweep, number, 1)
    figures = last_figures(collect(sweep.directory, sweep.trials))
    pictures = draw_plots(sweep.directory, sweep.spec, sweep.trials, figures)
    assert pictures == ["plot-1-trade-off.png", "plot-2-lines.png"]
    write_sweep(sweep.directory, sweep.name, sweep.spec, sweep.trials, pictures)
    text = (sweep.directory / "tables.md").read_text()
    assert "| evaluation.s = 0.5 | this run | finished | 14.0 [13.5, 14.5] |" in text
    assert "| s = 0.65 | paper (published) | – | 0.596 | 179.6 |" in text
    assert "![plot-1-trade-off.png]" in text
    page = (sweep.directory / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page.split("</style>")[1]
    csv = pd.read_csv(sweep.directory / "results.csv")
    parquet = pd.read_parquet(sweep.directory / "results.parquet")
    pd.testing.assert_frame_equal(csv, parquet, check_dtype=False)


def test_a_sweep_of_which_nothing_is_there_yet_has_a_table(sweep):
    sweep.directory.mkdir(parents=True)
    assert draw_plots(sweep.directory, sweep.spec, sweep.trials, {}) == []
    table = write_sweep(sweep.directory, sweep.name, sweep.spec, sweep.trials, [])
    assert table["status"].tolist() == ["missing"] * 3


def test_numbers_pass_through_json_to_the_bit():
    values = [1 / 3, math.pi * 1e-9, 1e300, float("nan")]
    frame = pd.DataFrame({"mean": values, "values": [1, 2, 3, 4]})
    back = json.loads(json.dumps(_records(frame)))
    assert [row["mean"] for row in back] == [*values[:3], None]
    assert [row["values"] for row in back] == [1, 2, 3, 4]


def test_what_tune_compares():
    found = flat_figures([{"test": "generator", "figure": "fwd_m", "mean": 2.0}])
    assert found == {"generator/fwd_m": 2.0}
    missing = flat_figures([{"test": "tracker", "figure": "success", "mean": None}])
    assert math.isnan(missing["tracker/success"])
    assert PlotSpec().figures[0] == "generator/tpl_code"
