from __future__ import annotations

import csv
import json

import pytest

from benchmarks import policy_study, policy_study_starts, tracker_study_parts
from benchmarks.policy_study import PLAN, TAKES, Run, one_run, setting_of
from parc_ray.errors import InputError
from tests.correction.test_by_mpc import CONFIG
from tests.envs.helpers import stand_clip, sway_clip

SMALL = {"ppo.hidden": [8], "ppo.num_envs": 4, "ppo.horizon": 4, "ppo.minibatch": 8}


@pytest.fixture
def short(humanoid, monkeypatch):
    """Two short clips that stand, few episodes, MPC with few samples."""
    monkeypatch.setattr(tracker_study_parts, "EPISODES", 2)
    monkeypatch.setattr(tracker_study_parts, "RETEST_SEEDS", 1)
    monkeypatch.setattr(policy_study_starts, "CorrectionConfig", lambda: CONFIG)
    return [stand_clip(humanoid, 21), sway_clip(humanoid)]


def result_of(work, run):
    return json.loads((work / f"{run.name}.json").read_text())


def test_every_run_of_the_plan_can_be_made():
    for text in PLAN:
        run = Run.parse(text)
        assert Run.parse(str(run)) == run
        config = setting_of(run)
        assert (config.ppo.seed, config.cell_size) == (run.seed, 0.2)
        assert (config.task.assist.strength > 0) == (run.method == "assist")
    assert len(TAKES) == 5


def test_wrong_words_are_refused(tmp_path):
    with pytest.raises(InputError, match="method:seed:cpu_s"):
        Run.parse("plain:0")
    with pytest.raises(InputError, match="'nonsense' is unknown"):
        Run.parse("nonsense:0:10")
    with pytest.raises(InputError, match="starts from plain__0"):
        policy_study.main(["--work", str(tmp_path), "--runs", "more:0:10"])


@pytest.mark.parametrize("method", ["plain", "specialists", "teacher"])
def test_a_run_counts_its_start_and_goes_on(tmp_path, humanoid, short, method):
    run = Run(method, 1, 1.0)
    one_run(tmp_path, run, humanoid, short, short[:1], 0.2, SMALL)
    first = result_of(tmp_path, run)
    assert first["cpu_s"] >= 1.0
    assert (first["start_cpu_s"] > 0) == (method != "plain")
    assert {"completed/stand", "completed/sway", "fresh_completed/sway"} <= {
        *curve(tmp_path, run)[0],
        *first,
    }
    assert "beside_completed/stand" in first
    start = tmp_path / run.name / "start.pt"
    made = start.read_bytes() if start.exists() else b""
    one_run(tmp_path, Run(method, 1, first["cpu_s"] + 0.5), humanoid, short, [], 0.2, SMALL)
    second = result_of(tmp_path, run)
    assert second["samples"] > first["samples"]
    assert second["start_cpu_s"] == first["start_cpu_s"]
    assert (start.read_bytes() if start.exists() else b"") == made


def test_more_clips_start_from_the_plain_policy(tmp_path, humanoid, short):
    plain = Run("plain", 1, 0.3)
    one_run(tmp_path, plain, humanoid, short[:1], [], 0.2, SMALL)
    run = Run("more", 1, 0.3)
    one_run(tmp_path, run, humanoid, short, [], 0.2, SMALL)
    result = result_of(tmp_path, run)
    assert result["start_cpu_s"] == 0.0
    policy_study.main(["--work", str(tmp_path), "--out", str(tmp_path / "out"), "--report"])
    page = (tmp_path / "out" / "policy_study.md").read_text()
    assert "| more | 1 |" in page
    assert "| plain | 1 |" in page
    with (tmp_path / "out" / "policy_study" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["more", "plain"]
    assert float(rows[1]["samples"]) > 0


def curve(work, run):
    with (work / run.name / "curve.csv").open() as file:
        return list(csv.DictReader(file))
