"""Every limit of the gate refuses on its own, and says by how much."""

from __future__ import annotations

import math

import pytest
import torch

from parc_ray.correction.config import CorrectionConfig, GateConfig
from parc_ray.correction.gate import deepest_point, recording_metrics, refusals
from parc_ray.errors import InputError
from parc_ray.evaluation.metrics import clip_metrics
from tests.envs.helpers import sway_clip

GATE = GateConfig(min_contact_f1=0.5)
GOOD = {
    "body_global_m": 0.1,
    "root_max_m": 0.2,
    "hjf_frames_percent": 5.0,
    "deepest_m": 0.01,
    "contact_f1": 0.8,
}


def test_a_good_recording_passes():
    assert refusals(GOOD, GATE) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("body_global_m", 0.36, "mean body error 0.36 m is above 0.35"),
        ("root_max_m", 0.7, "largest root error 0.7 m is above 0.6"),
        ("hjf_frames_percent", 26.0, "share of high-jerk frames 0.26 is above 0.25"),
        ("deepest_m", 0.04, "mean depth of the deepest point 0.04 m is above 0.03"),
        ("contact_f1", 0.4, "contact F1 0.4 is below 0.5"),
    ],
)
def test_every_limit_refuses_alone(name, value, message):
    assert refusals({**GOOD, name: value}, GATE) == [message]


@pytest.mark.parametrize("name", list(GOOD))
def test_what_is_not_a_number_is_refused(name):
    assert len(refusals({**GOOD, name: math.nan}, GATE)) == 1


def test_limits_themselves_pass():
    edge = {
        "body_global_m": 0.35,
        "root_max_m": 0.6,
        "hjf_frames_percent": 25.0,
        "deepest_m": 0.03,
        "contact_f1": 0.5,
    }
    assert refusals(edge, GATE) == []


def test_reasons_add_up():
    bad = {**GOOD, "body_global_m": 1.0, "root_max_m": 2.0}
    assert len(refusals(bad, GATE)) == 2


def test_contacts_are_not_checked_unless_wanted():
    assert refusals({**GOOD, "contact_f1": 0.0}, GateConfig()) == []
    without = {k: v for k, v in GOOD.items() if k != "contact_f1"}
    assert refusals(without, GATE) == []


def test_recording_metrics_are_those_of_the_clip(humanoid):
    clip = sway_clip(humanoid, 31)
    all_of_them = clip_metrics(clip, humanoid, "paper")
    found = recording_metrics(clip, humanoid)
    deepest = found.pop("deepest_m")
    assert found == {name: all_of_them[name] for name in found}
    assert {"tpl_per_frame", "hjf_frames_percent"} <= found.keys()
    assert 0.0 <= deepest <= found["tpl_per_frame"]


def test_the_deepest_point_of_a_sunken_clip_is_its_depth(humanoid):
    clip = sway_clip(humanoid, 31)
    before = deepest_point(clip, humanoid)
    clip.frames.root_pos = clip.frames.root_pos - torch.tensor([0.0, 0.0, 0.05])
    assert deepest_point(clip, humanoid) - before == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GateConfig(max_root_error_m=-0.1), "max_root_error_m: -0.1 is negative"),
        (lambda: GateConfig(min_contact_f1=1.5), "min_contact_f1: above 1"),
        (lambda: CorrectionConfig(min_segment_s=0.4), "min_segment_s: 0.4"),
        (lambda: CorrectionConfig(start_fractions=()), "start_fractions"),
        (lambda: CorrectionConfig(start_fractions=(0.0, 1.0)), "start_fractions"),
        (lambda: CorrectionConfig(start_fractions=(0.5, 0.0)), "ascending"),
        (lambda: CorrectionConfig(mpc_retries=-1), "mpc_retries: -1"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
