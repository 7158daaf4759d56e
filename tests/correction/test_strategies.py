"""Judging recordings, choosing between correctors, and what is kept of both."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from envs.tracking.config import PRESETS
from parc_ray.correction.config import CorrectionConfig, GateConfig
from parc_ray.correction.measures import measure
from parc_ray.correction.outcome import Attempt, Failure, Outcome
from parc_ray.correction.strategies import (
    better,
    correct_by_tracker,
    judge,
    needs_mpc,
    record_config,
    source_seed,
)
from tests.correction.helpers import outcome_of, recording_of
from tests.envs.helpers import stand_clip, sway_clip

CONFIG = CorrectionConfig(min_segment_s=0.5)


def following_metrics(clip, source, start, humanoid):
    return measure(clip, source, start, humanoid).figures()


def failure(reason, corrector="tracker", frame=3):
    return Failure(corrector=corrector, rule="ended", frame=frame, reason=reason)


def test_errors_against_the_source_worked_numbers(humanoid):
    source = sway_clip(humanoid, 46)
    clip = recording_of(source, humanoid, first=10, last=30, shift=(0.3, 0.4, 0.0))
    found = following_metrics(clip, source, 10, humanoid)
    assert found["body_global_m"] == pytest.approx(0.5, abs=1e-5)
    assert found["root_pos_m"] == pytest.approx(0.5, abs=1e-5)
    assert found["root_max_m"] == pytest.approx(0.5, abs=1e-5)
    for name in ("body_local_m", "root_rot_rad", "joint_rad"):
        assert found[name] == pytest.approx(0.0, abs=2e-3)
    assert found["contact_f1"] == found["contact_agreement"] == 1.0


def test_the_first_frame_does_not_dilute_the_means(humanoid):
    source = sway_clip(humanoid, 46)
    clip = recording_of(source, humanoid, last=1, shift=(0.2, 0.0, 0.0))
    assert following_metrics(clip, source, 0, humanoid)["root_pos_m"] == pytest.approx(
        0.2, abs=1e-5
    )


def test_contact_figures_worked_numbers(humanoid):
    source = sway_clip(humanoid, 31)
    clip = recording_of(source, humanoid)
    contacts = torch.zeros_like(clip.frames.contacts)
    contacts[:, humanoid.feet[0]] = 1.0  # one of two feet
    contacts[:, humanoid.hands[0]] = 1.0  # and a hand that should not touch
    clip = replace(clip, frames=replace(clip.frames, contacts=contacts))
    found = following_metrics(clip, source, 0, humanoid)
    assert found["contact_f1"] == pytest.approx(2 * 1 / (2 + 2))
    bodies = humanoid.skeleton.num_bodies
    assert found["contact_agreement"] == pytest.approx((bodies - 2) / bodies)


def test_where_nothing_touches_contacts_agree(humanoid):
    source = sway_clip(humanoid, 31)
    source.frames.contacts.zero_()
    clip = recording_of(source, humanoid)
    assert following_metrics(clip, source, 0, humanoid)["contact_f1"] == 1.0


def test_a_kinematic_clip_follows_nothing(humanoid):
    source = sway_clip(humanoid, 31)
    with pytest.raises(ValueError, match="recordings"):
        following_metrics(source, source, 0, humanoid)


def test_a_good_recording_keeps_its_figures(humanoid):
    outcome, source = outcome_of(humanoid, shift=(0.05, 0.0, 0.0))
    judge(outcome, source, humanoid, CONFIG)
    assert outcome.clip is not None
    assert not outcome.reasons
    assert outcome.clip.metrics["body_global_m"] == pytest.approx(0.05, abs=1e-4)
    assert outcome.clip.metrics.items() >= outcome.metrics.items()


WIDE = {"max_mean_body_error_m": 9.0, "max_slide_mps": 99.0}


@pytest.mark.parametrize(
    ("gate", "shift", "rule", "reason"),
    [
        (GateConfig(max_slide_mps=99.0), (0.5, 0.0, 0.0), "body_error", "mean body error"),
        (GateConfig(**WIDE), (0.8, 0.0, 0.0), "root_error", "largest root error"),
        (GateConfig(**WIDE), (0.0, 0.0, -0.3), "penetration", "mean depth"),
        (GateConfig(**WIDE, max_high_jerk_share=0.0), (0.5, 0.0, 0.0), "jerk", "high-jerk"),
    ],
)
def test_a_refused_recording_is_kept_apart_with_its_reason(humanoid, gate, shift, rule, reason):
    outcome, source = outcome_of(humanoid, shift=shift, first=5)
    judge(outcome, source, humanoid, replace(CONFIG, gate=gate))
    assert outcome.clip is None
    assert outcome.corrector is None
    assert not outcome.whole
    (failed,) = outcome.failures
    assert (failed.corrector, failed.rule) == ("tracker", rule)
    assert failed.frame is not None
    assert failed.frame >= 5  # a frame of the source, which the recording starts at 5
    assert failed.reason.startswith("tracker recording refused: ")
    assert reason in failed.reason
    assert outcome.refused is not None
    assert outcome.refused.clip_id == "sway_rec_refused"
    assert outcome.clips() == [outcome.refused]


def test_nothing_recorded_is_nothing_to_judge(humanoid):
    outcome = Outcome(source_id="a", failures=[failure("the tracker fell")])
    judge(outcome, sway_clip(humanoid, 31), humanoid, CONFIG)
    assert outcome.reasons == ["the tracker fell"]
    assert outcome.metrics == {}


def test_mpc_tries_what_was_not_recorded_whole():
    both, alone = CorrectionConfig(), CorrectionConfig(strategy="tracker")
    assert needs_mpc(Outcome(source_id="a"), both)
    assert needs_mpc(Outcome(source_id="a", whole=False, corrector="tracker"), both)
    assert not needs_mpc(Outcome(source_id="a", whole=True), both)
    assert not needs_mpc(Outcome(source_id="a"), alone)
    assert needs_mpc(Outcome(source_id="a"), CorrectionConfig(strategy="mpc"))


def attempt(name, frames=3):
    return Attempt(corrector=name, start_frame=0, frames=frames, wanted=9)


def test_the_longer_recording_wins_and_all_attempts_stay(humanoid):
    short, _ = outcome_of(humanoid, last=20)
    long, _ = outcome_of(humanoid, last=40)
    short.attempts, long.attempts = [attempt("tracker")], [attempt("mpc")]
    short.failures = [failure("x")]
    for a, b in ((short, long), (long, short)):
        best = better(a, b)
        assert best.clip is long.clip
        assert best.attempts == a.attempts + b.attempts
        assert best.reasons == []


def test_of_equal_recordings_the_trackers_stays(humanoid):
    first, _ = outcome_of(humanoid, last=20)
    second, _ = outcome_of(humanoid, last=20)
    assert better(first, second).clip is first.clip


def test_two_failures_keep_both_reasons(humanoid):
    a, b = (Outcome(source_id="a", failures=[failure(text)]) for text in "xy")
    assert better(a, b).reasons == ["x", "y"]
    clip, _ = outcome_of(humanoid)
    assert better(a, clip).clip is clip.clip
    assert better(clip, a).clip is clip.clip


def test_figures_and_frames_are_those_of_the_refused_recording(humanoid):
    ended = Outcome(source_id="a", failures=[failure("x")], end_frame=4, metrics={"jerk": 1.0})
    clip, _ = outcome_of(humanoid, last=20)
    refused = replace(clip, clip=None, refused=clip.clip, end_frame=20, metrics={"jerk": 2.0})
    for pair in ((ended, refused), (refused, ended)):
        best = better(*pair)
        assert best.refused is refused.refused
        assert (best.end_frame, best.metrics) == (20, {"jerk": 2.0})


def test_outcomes_survive_json(humanoid):
    outcome, source = outcome_of(humanoid, last=20)
    outcome.attempts = [attempt("tracker"), attempt("mpc", 7)]
    judge(outcome, source, humanoid, CONFIG)
    outcome.metrics["undefined"] = math.nan
    record = json.loads(json.dumps(outcome.record(), allow_nan=False))
    back = Outcome.from_record(record, {c.clip_id: c for c in outcome.clips()})
    assert math.isnan(back.metrics.pop("undefined"))
    outcome.metrics.pop("undefined")
    assert back == outcome
    assert record["seconds"] == pytest.approx(20 / 30)


def test_failed_outcomes_survive_json(humanoid):
    outcome = Outcome(
        source_id="a", failures=[failure("because", "mpc")], attempts=[attempt("mpc")]
    )
    record = json.loads(json.dumps(outcome.record()))
    assert record["clip_id"] is None
    assert record["seconds"] == 0.0
    assert record["reasons"] == ["because"]
    assert Outcome.from_record(record, {}) == outcome
    kept, source = outcome_of(humanoid, shift=(0.9, 0.0, 0.0))
    judge(kept, source, humanoid, CONFIG)
    record = json.loads(json.dumps(kept.record()))
    back = Outcome.from_record(record, {c.clip_id: c for c in kept.clips()})
    assert back.refused is kept.refused is not None
    assert back.failures == kept.failures


def test_seeds_belong_to_motions_not_to_places():
    seeds = [source_seed(5, name) for name in ("a", "b", "ab", "ba")]
    assert len(set(seeds)) == 4
    assert seeds == [source_seed(5, name) for name in ("a", "b", "ab", "ba")]
    assert source_seed(6, "a") != source_seed(5, "a")
    assert all(0 <= s < 2**31 for s in seeds)


def test_recorder_settings_follow_the_correction():
    config = record_config(replace(CONFIG, start_fractions=(0.0, 0.25)), seed=3)
    assert config.fractions == (0.0, 0.25)
    assert (config.min_remaining_s, config.segment_min_s, config.seed) == (0.5, 0.5, 3)
    assert config.accept_segments
    assert config.attempts == 3
    assert record_config(replace(CONFIG, perturbed_starts=0), seed=3).attempts == 1


class ZeroPolicy:
    """Plays the reference back through the PD controllers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(obs), self.size)


def test_the_tracker_records_what_stands_and_says_why_not_otherwise(humanoid):
    """A standing clip is held by the springs alone; one that glides away is not."""
    factory = backend_factory("mujoco_cpu", humanoid, SimConfig())
    stand = stand_clip(humanoid, 25)
    flee = sway_clip(humanoid, 25, "flee", speed=6.0)
    stand_outcome, flee_outcome = correct_by_tracker(
        humanoid,
        factory,
        [stand, flee],
        ZeroPolicy(humanoid.skeleton.num_dofs),
        replace(CONFIG, start_fractions=(0.0,)),
        PRESETS["quick"](),
        7,
        {"tracker": "t"},
        2,
    )
    assert stand_outcome.whole
    assert stand_outcome.corrector == "tracker"
    assert (stand_outcome.start_frame, stand_outcome.end_frame) == (0, 24)
    assert stand_outcome.clip is not None
    assert stand_outcome.clip.provenance.hashes["tracker"] == "t"
    assert stand_outcome.clip.provenance.iteration == 2
    assert flee_outcome.clip is None
    (failed,) = flee_outcome.failures
    assert failed.frame == flee_outcome.attempts[0].failed_frame
    assert failed.frame == flee_outcome.attempts[0].frames + 1
    assert f"fell at frame {failed.frame}" in failed.reason
    assert flee_outcome.attempts[0].cpu_s > 0
    assert flee_outcome.attempts[0].frames < flee_outcome.attempts[0].wanted
