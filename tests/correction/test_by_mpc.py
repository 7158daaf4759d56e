"""MPC on one clip: retries, pieces, and recordings that simulate to what was stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms.mpc.config import MpcConfig
from envs.recorder import RecordConfig, replay_frames
from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from envs.sims.replay import replay_clip
from envs.tracking.config import PRESETS
from parc_ray.correction.by_mpc import correct_by_mpc, settings
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.measures import measure
from parc_ray.correction.strategies import record_config
from tests.envs.helpers import stand_clip, sway_clip

MPC = MpcConfig(samples=8, horizon=5, knots=2, iterations=1, rewinds=0)
CONFIG = CorrectionConfig(
    mpc=MPC, mpc_retries=0, mpc_stronger_retry=False, min_segment_s=0.5, mpc_backoff_s=0.1
)


def correct(humanoid, clip, config=CONFIG, seed=3):
    return correct_by_mpc(
        humanoid,
        backend_factory("mujoco_cpu", humanoid, SimConfig()),
        clip,
        config,
        PRESETS["quick"](),
        record_config(config, seed),
        seed,
        4,
    )


@pytest.fixture(scope="module")
def standing(humanoid):
    clip = stand_clip(humanoid, 21)
    return clip, correct(humanoid, clip)


def test_a_standing_clip_is_recorded_whole(standing):
    outcome = standing[1]
    assert outcome.whole
    assert (outcome.corrector, outcome.start_frame, outcome.end_frame) == ("mpc", 0, 20)
    (attempt,) = outcome.attempts
    assert (attempt.frames, attempt.wanted, attempt.reason) == (20, 20, "")
    assert attempt.cpu_s > 0
    made = outcome.clip
    assert made is not None
    assert (made.clip_id, made.num_frames, made.fps) == ("stand_mpc", 21, pytest.approx(30.0))
    assert made.provenance.parents == ("stand",)
    assert made.provenance.iteration == 4
    assert made.provenance.seeds["mpc"] == attempt.seed
    assert len(made.provenance.hashes["mpc"]) >= 8
    assert "frames 0 to 20 of 21" in made.provenance.notes


def test_it_simulates_to_what_was_stored(humanoid, standing):
    made = standing[1].clip
    again = replay_frames(replay_clip(humanoid, made.replay), made.replay, RecordConfig())
    for name in ("root_pos", "root_rot", "dof", "contacts"):
        assert torch.equal(getattr(again, name), getattr(made.frames, name)), name


def test_its_errors_are_those_of_the_two_clips(humanoid, standing):
    clip, outcome = standing
    found = measure(outcome.clip, clip, 0, humanoid).figures()
    for name, value in outcome.metrics.items():
        assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_equal_seeds_make_equal_recordings(humanoid, standing):
    clip, first = standing
    same, other = correct(humanoid, clip), correct(humanoid, clip, seed=4)
    targets = [o.clip.replay.pd_targets for o in (first, same, other)]
    assert torch.equal(targets[0], targets[1])
    assert not torch.equal(targets[0], targets[2])


def test_only_the_first_seconds_of_a_long_clip_are_tried(humanoid):
    outcome = correct(humanoid, stand_clip(humanoid, 41), replace(CONFIG, mpc_max_s=0.5))
    assert outcome.clip is not None
    assert outcome.clip.num_frames == 16
    assert not outcome.whole


def test_the_stretch_before_a_failure_is_kept_without_its_last_moments(humanoid):
    """The reference leaps away by 3 m at frame 24: nothing can follow it there."""
    clip = stand_clip(humanoid, 41)
    clip.frames.root_pos[24:, 0] += 3.0
    outcome = correct(humanoid, clip)
    (attempt,) = outcome.attempts
    assert attempt.frames == 23
    assert attempt.failed_frame == 24
    assert attempt.reason.startswith("root ")
    assert attempt.reason.endswith("m off (allowed 0.6 m)")
    assert outcome.clip is not None
    assert (outcome.end_frame, outcome.whole) == (20, False)
    assert outcome.clip.num_frames == 21
    strict = correct(humanoid, clip, replace(CONFIG, min_segment_s=0.7))
    assert strict.clip is None
    (failed,) = strict.failures
    assert (failed.corrector, failed.rule, failed.frame) == ("mpc", "ended", 24)
    assert failed.reason.startswith("MPC fell at frame 24 in the longest of 1 attempts: root ")
    assert "0.77 s were tracked, 0.7 s are needed before the 0.1 s" in failed.reason


def test_failures_are_retried_with_other_seeds_then_more_look_ahead(humanoid):
    clip = sway_clip(humanoid, 25, "flee", speed=8.0)
    outcome = correct(humanoid, clip, replace(CONFIG, mpc_retries=1, mpc_stronger_retry=True))
    assert len(outcome.attempts) == 3
    assert len({a.seed for a in outcome.attempts}) == 3
    assert outcome.clip is None
    assert outcome.corrector is None
    assert "0.5 s are needed" in outcome.reasons[0]


def test_settings_in_turn():
    tried = list(settings(replace(CONFIG, mpc_retries=2, mpc_stronger_retry=True)))
    assert [number for _, number in tried] == [0, 1, 2, 3]
    assert [mpc for mpc, _ in tried[:3]] == [MPC] * 3
    assert tried[3][0] == replace(MPC, samples=12, horizon=6, execute=1)
    assert len(list(settings(CONFIG))) == 1
