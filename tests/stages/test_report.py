"""The page about a run, made from a run directory that was put together by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pandas as pd
import pytest

from parc_ray.data.storage import Storage
from parc_ray.evaluation.report import Card, Section, Table, render_report
from parc_ray.recipes import get_recipe
from parc_ray.stages.report import PICTURES_PER_ITERATION, STAGE, build_report
from tests.correction.helpers import recording_of
from tests.envs.helpers import sway_clip
from tests.evaluation.test_summary import mark
from tests.stages.helpers import put_clips, run_body

CONFIG = replace(get_recipe("smoke"), name="by-hand")


def record_of(source, clip_id=None, seconds=0.0, whole=False):
    return {
        "source_id": source,
        "clip_id": clip_id,
        "corrector": "mpc" if clip_id else None,
        "whole": whole,
        "seconds": seconds,
    }


def fill(root, character):
    """Iteration 0 and most of 1: six motions generated, one recorded whole, one in part."""
    sources = [sway_clip(character, 31, f"g{i}", speed=0.5) for i in range(6)]
    whole = replace(recording_of(sources[4], character), clip_id="g4_mpc")
    piece = replace(recording_of(sources[5], character, last=18), clip_id="g5_mpc")
    put_clips(root, "it_01/generate", sources, character)
    put_clips(root, "it_01/record", [whole, piece], character)
    records = [record_of(f"g{i}") for i in range(4)]
    records += [record_of("g4", "g4_mpc", 1.0, True), record_of("g5", "g5_mpc", 0.6)]
    (root / "it_01/record/records.json").write_text(json.dumps(records))
    mark(root, "it_00/merge", 0.1, 0.1, clips=3.0, seconds=4.5)
    mark(root, "it_01/train-generator", 30.0, 31.0, loss=2.0)
    mark(root, "it_01/generate", 12.0, 20.0, motions=6.0)
    mark(root, "it_01/train-tracker", 60.0, 61.0, samples=2e6)
    made = {"corrected_mpc": 2.0, "corrected_share": 2 / 6, "mpc_attempts": 6.0, "mpc_cpu_s": 40.0}
    mark(root, "it_01/record", 20.0, 39.0, attempted=6.0, corrected=2.0, **made)
    mark(root, "it_01/merge", 0.1, 0.1, clips=5.0, seconds=6.1)
    survived = {"tracker_survived_from_start": 0.61, "tracker_clips_completed": 2.0}
    mark(root, "it_01/evaluate", 9.0, 9.0, gen_tpl=3.25, gen_fwd=None, **survived)
    curve = pd.DataFrame({"step": [10, 20, 30], "loss": [3.0, None, 2.0], "total": [4.0, 3.0, 2.5]})
    curve.to_csv(root / "it_01/train-generator/curve.csv", index=False)
    columns = {"clip": ["<g4>"], "seconds": [1.0], "level_change_m": [0.25], "maker": ["mpc"]}
    columns |= {"starts": [32], "completed": [25], "survived": [0.8125]}
    pd.DataFrame(columns).to_csv(root / "it_01/evaluate/tracker_clips.csv", index=False)
    pd.DataFrame({"clip": ["<g4>"], "survived": [0.25]}).to_csv(
        root / "it_01/evaluate/baseline_clips.csv", index=False
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory, humanoid):
    root = tmp_path_factory.mktemp("run")
    fill(root, humanoid)
    return root


@pytest.fixture(scope="module")
def parts(run):
    page = build_report(Storage.from_uri(run), CONFIG)
    pieces = re.split(r"<h2>(.*?)</h2>", page)
    return {"head": pieces[0], "page": page, **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def rows(part):
    return [re.findall(r"<td>(.*?)</td>", line) for line in re.findall(r"<tr>(<td>.*?)</tr>", part)]


def test_headline_figures_are_those_of_the_last_stages(parts):
    cards = dict(re.findall(r'<span class="soft">(.*?)</span><b>(.*?)</b>', parts["head"]))
    assert cards["clips in the data set"] == "5"
    assert cards["seconds of motion"] == "6.1"
    assert cards["corrected, last iteration"] == "0.333"
    assert cards["survived from frame 0"] == "0.61"
    assert "2.2 minutes" in parts["head"]


def test_iterations_stand_in_a_table(parts):
    assert [row[:3] for row in rows(parts["Iterations"])] == [["0", "3", "4.5"], ["1", "5", "6.1"]]


def test_corrections_are_counted_by_corrector_with_their_budgets(parts):
    (row,) = rows(parts["Correction"])
    assert row[:4] == ["1", "6", "–", "2"]
    assert row[-2:] == ["2.00 M steps, 60 s", "6 attempts, 40 CPU-s"]


def test_the_tracker_stands_beside_the_baseline(parts):
    (row,) = rows(parts["Tracker on its clips"])
    assert row == ["&lt;g4&gt;", "1", "0.25", "mpc", "32", "25", "0.812", "0.25"]
    assert "from 75% of its starts" in parts["Tracker on its clips"]


def test_curves_leave_out_what_was_not_measured(parts):
    assert parts["Learning curves"].count("<img") == 1
    assert 'alt="Generator loss"' in parts["Learning curves"]


def test_corrected_motions_come_first_among_the_pictures(parts):
    section = parts["Iteration 1: generated motions before and after correction"]
    found = re.findall(r'alt="(.*?)"', section)
    titles = found[::2]
    assert found[1::2] == [f"{title}: film strip" for title in titles]
    assert len(titles) == PICTURES_PER_ITERATION
    assert titles[0] == "g4: corrected by mpc, whole"
    assert titles[1] == "g5: corrected by mpc, 0.6 s segment"
    assert all(title.endswith("not corrected") for title in titles[2:])


def test_the_page_needs_nothing_from_elsewhere(parts):
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:)""", parts["page"])
    assert "<script" not in parts["page"]


def test_the_config_is_in_the_page(parts):
    assert "name: by-hand" in parts["How to make it again"]


def test_a_run_that_has_hardly_begun_has_a_report_too(tmp_path):
    mark(tmp_path, "it_00/augment", 1.0, 1.0, clips=3.0)
    page = build_report(Storage.from_uri(tmp_path), CONFIG)
    assert "There is no evaluated tracker." in page
    assert "–" in page


def test_the_stage_writes_the_page_twice(tmp_path):
    mark(tmp_path, "it_00/merge", 1.0, 1.0, clips=3.0, seconds=1.0)
    result = run_body(tmp_path, "report", STAGE.body, {}, CONFIG, 2)
    page = (tmp_path / "report.html").read_bytes()
    assert page == (tmp_path / "it_02/report/report.html").read_bytes()
    assert result.metrics["bytes"] == len(page)


def test_what_is_handed_in_is_escaped():
    page = render_report(
        "<i>t</i>",
        "s & s",
        [Card(label="<b>", value="1<2")],
        [
            Section(
                title="x<y",
                tables=[Table(columns=["<c>"], rows=[["<script>alert(1)</script>"]])],
                blocks=["a < b"],
            )
        ],
    )
    assert "<script>" not in page
    assert "<i>" not in page
    for text in ("&lt;i&gt;t&lt;/i&gt;", "s &amp; s", "1&lt;2", "x&lt;y", "&lt;c&gt;", "a &lt; b"):
        assert text in page
