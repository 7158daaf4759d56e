"""Counting corrections, and the whole stage on two clips, one of which nobody can follow."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from algorithms.mpc.config import MpcConfig
from envs.sims.replay import replay_clip
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.outcome import Attempt, Outcome
from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.recipes import get_recipe
from parc_ray.stages import record as module
from parc_ray.stages.record import STAGE, metrics_of
from tests.correction.helpers import outcome_of
from tests.envs.helpers import stand_clip, sway_clip
from tests.stages.helpers import put_clips, run_body

CONFIG = replace(
    get_recipe("smoke"),
    correction=CorrectionConfig(
        strategy="mpc",
        mpc=MpcConfig(samples=8, horizon=4, knots=2, iterations=1, rewinds=0),
        mpc_retries=0,
        mpc_stronger_retry=False,
        mpc_backoff_s=0.1,
        min_segment_s=0.5,
    ),
)


def test_outcomes_are_counted_by_corrector_and_extent(humanoid):
    whole, _ = outcome_of(humanoid)
    piece, _ = outcome_of(humanoid, last=20)
    failed = Outcome(source_id="c")
    piece.corrector = "mpc"
    whole.metrics = {"body_global_m": 0.1, "tpl": math.nan, "contact_f1": 1.0}
    piece.metrics = {"body_global_m": 0.3, "tpl": 2.0}
    try_ = {"corrector": "mpc", "start_frame": 0, "wanted": 45}
    piece.attempts = [Attempt(**try_, frames=20, cpu_s=3.0), Attempt(**try_, frames=40, cpu_s=5.0)]
    whole.attempts = [Attempt(corrector="tracker", start_frame=0, frames=45, wanted=45)]
    found = metrics_of([whole, piece, failed], 12.5)
    assert found["attempted"] == 3
    assert found["corrected"] == 2
    assert found["corrected_share"] == pytest.approx(2 / 3)
    assert (found["corrected_tracker"], found["corrected_mpc"]) == (1, 1)
    assert (found["corrected_whole"], found["corrected_segment"]) == (1, 1)
    assert found["seconds"] == 12.5
    assert (found["mpc_attempts"], found["mpc_cpu_s"]) == (2, 8.0)
    assert found["mpc_cpu_s_per_motion_s"] == pytest.approx(8.0 / (60 / 30))
    assert found["body_global_m"] == pytest.approx(0.2)
    assert found["tpl"] == 2.0  # what is not a number is no part of a mean
    assert found["contact_f1"] == 1.0
    assert math.isnan(found["hjf_frames_percent"])


def test_no_motions_give_no_share():
    found = metrics_of([], 0.0)
    assert found["attempted"] == found["corrected"] == 0
    assert math.isnan(found["corrected_share"])
    assert math.isnan(found["mpc_cpu_s_per_motion_s"])


@pytest.fixture
def here(monkeypatch):
    """Work items run in this process, without Ray."""
    original = module.run_items

    def inline(directory, items, make_worker, arguments, pool, label):
        alone = replace(pool, actors=0)
        return original(directory, items, make_worker, arguments, alone, label)

    monkeypatch.setattr(module, "run_items", inline)


def test_the_stage_keeps_what_can_be_followed_and_says_why_not(tmp_path, humanoid, here):
    clips = [stand_clip(humanoid, 16, "stand"), sway_clip(humanoid, 31, "flee", speed=8.0)]
    motions = put_clips(tmp_path, "it_01/generate", clips, humanoid)
    result = run_body(tmp_path, "record", STAGE.body, {"motions": motions}, CONFIG, 1)
    assert (result.metrics["attempted"], result.metrics["corrected"]) == (2, 1)
    assert result.metrics["corrected_mpc"] == result.metrics["corrected_whole"] == 1
    records = json.loads((tmp_path / "it_01/record/records.json").read_text())
    stand, flee = records
    assert (stand["source_id"], stand["clip_id"]) == ("stand", "stand_mpc")
    assert flee["clip_id"] is None
    assert "0.5 s are needed" in flee["reasons"][0]
    assert flee["attempts"][0]["reason"].startswith("root ")
    home = tmp_path / "it_01/record"
    failures = pd.read_csv(home / "failures.csv")
    assert failures["source"].tolist() == ["flee"]
    assert failures["frame"].tolist() == [flee["attempts"][0]["failed_frame"]]
    assert failures["rule"].tolist() == ["ended"]
    clips = pd.read_csv(home / "corrections.csv", keep_default_na=False).set_index("source")
    assert clips["corrector"].to_dict() == {"stand": "mpc", "flee": "none"}
    by = pd.read_csv(home / "correctors.csv", keep_default_na=False).set_index("corrector")
    assert by["motions"].to_dict() == {"tracker": 0, "mpc": 1, "none": 1}
    assert float(by.loc["mpc", "cpu_s"]) == pytest.approx(result.metrics["mpc_cpu_s"])
    assert result.metrics["failed/ended"] == 1.0
    storage = Storage.from_uri(tmp_path)
    (clip,) = read_clips(storage, Manifest.load(storage, "it_01/record/manifest.json"))
    assert clip.provenance.parents == ("stand",)
    assert clip.provenance.maker == "mpc"
    assert clip.replay is not None
    states = replay_clip(humanoid, clip.replay, CONFIG.sim)
    assert (states.root_pos + clip.replay.offset).equal(clip.frames.root_pos)


def test_recordings_belong_to_motions_not_to_their_order(tmp_path, humanoid, here):
    clips = [stand_clip(humanoid, 16, "one"), sway_clip(humanoid, 16, "two", amplitude=0.05)]
    for name, order in (("a", clips), ("b", clips[::-1])):
        motions = put_clips(tmp_path / name, "it_01/generate", order, humanoid)
        run_body(tmp_path / name, "record", STAGE.body, {"motions": motions}, CONFIG, 1)
    found = []
    for name in "ab":
        storage = Storage.from_uri(tmp_path / name)
        recorded = read_clips(storage, Manifest.load(storage, "it_01/record/manifest.json"))
        found.append({c.clip_id: c.frames.root_pos for c in recorded})
    assert found[0].keys() == found[1].keys() != set()
    assert all(found[0][key].equal(found[1][key]) for key in found[0])


def test_what_the_gate_refuses_is_kept_apart(tmp_path, humanoid, here):
    motions = put_clips(tmp_path, "it_01/generate", [stand_clip(humanoid, 16)], humanoid)
    gate = replace(CONFIG.correction.gate, max_mean_body_error_m=0.0)
    config = replace(CONFIG, correction=replace(CONFIG.correction, gate=gate))
    result = run_body(tmp_path, "record", STAGE.body, {"motions": motions}, config, 1)
    assert result.metrics["corrected"] == 0
    assert result.metrics["failed/body_error"] == 1.0
    storage = Storage.from_uri(tmp_path)
    assert Manifest.load(storage, "it_01/record/manifest.json").rows == 0
    (refused,) = read_clips(storage, Manifest.load(storage, "it_01/record/refused.json"))
    assert refused.clip_id == "stand_mpc_refused"
    (record,) = json.loads((tmp_path / "it_01/record/records.json").read_text())
    assert record["refused_id"] == refused.clip_id
    assert record["failures"][0]["rule"] == "body_error"
