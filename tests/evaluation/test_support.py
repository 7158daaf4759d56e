"""Floating, contact scores and effort, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from parc_ray.character.surface import SurfacePoints
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.evaluation.support import (
    body_centres,
    contact_scores,
    effort_use,
    floating,
)
from tests.evaluation.test_metrics import still_clip

FPS = 30.0


def falling(frames: int, gravity: float = 9.81) -> torch.Tensor:
    t = torch.arange(frames, dtype=torch.float64) / FPS
    height = 2.0 + 1.0 * t - 0.5 * gravity * t**2
    return torch.stack((0 * t, 0 * t, height), dim=-1)


def test_hanging_in_the_air_floats_and_falling_does_not():
    gap = torch.full((10,), 0.2)
    assert floating(gap, torch.zeros(10, 3), FPS) == (pytest.approx(0.2), 100.0)
    assert floating(gap, falling(10), FPS)[1] == 0.0
    assert floating(gap, falling(10, gravity=4.0), FPS)[1] == 100.0


def test_a_frame_floats_from_five_centimetres_on():
    gap = torch.tensor([0.9, 0.04, 0.06, 0.06, 0.9])
    mean, percent = floating(gap, torch.zeros(5, 3), FPS)
    assert mean == pytest.approx(gap.mean().item())
    assert percent == pytest.approx(100 * 2 / 3)  # of the three frames with two neighbours


def test_too_short_to_accelerate():
    assert floating(torch.full((2,), 1.0), torch.zeros(2, 3), FPS) == (1.0, 0.0)


def test_scores_of_contacts():
    labels = torch.tensor([True, True, True, False, False])
    truth = torch.tensor([True, False, False, True, False])
    found = contact_scores(labels, truth)
    assert found.precision == pytest.approx(1 / 3)
    assert found.recall == pytest.approx(1 / 2)
    assert found.f1 == pytest.approx(2 / 5)
    nothing = torch.zeros(3, dtype=torch.bool)
    empty = contact_scores(nothing, nothing)
    assert (empty.precision, empty.recall, empty.f1) == (1.0, 1.0, 1.0)
    missed = contact_scores(nothing, ~nothing)
    assert (missed.precision, missed.recall, missed.f1) == (1.0, 0.0, 0.0)


def test_centre_of_mass_weighs_bodies_and_leaves_out_those_without_points():
    bodies = SurfacePoints(torch.tensor([0, 0, 2]), torch.zeros(3, 3), 3)
    points = torch.tensor([[[0.0, 0, 0], [2.0, 0, 0], [4.0, 0, 3.0]]])
    centre = body_centres(points, bodies, torch.tensor([3.0, 100.0, 1.0]))
    torch.testing.assert_close(centre, torch.tensor([[(3 * 1 + 4) / 4, 0.0, 0.75]]))


def test_power_and_torque_use():
    gains = (torch.tensor([10.0, 10.0]), torch.tensor([1.0, 0.0]), torch.tensor([20.0, 4.0]))
    pos, vel = torch.zeros(2, 2), torch.tensor([[2.0, 1.0], [0.0, -1.0]])
    target = torch.tensor([[1.0, 1.0], [0.5, 0.1]])
    # Step 1: 10 - 2 = 8 of 20 at 2 rad/s; 10 clipped to 4 at 1 rad/s. Step 2: 5 at rest; 1 at -1.
    found = effort_use(pos, vel, target, gains)
    assert found["power_w"] == pytest.approx(((8 * 2 + 4 * 1) + (0 + 1)) / 2)
    assert found["torque_use"] == pytest.approx((8 / 20 + 1 + 5 / 20 + 1 / 4) / 4)
    assert found["torque_limit_percent"] == 25.0
    none = effort_use(pos[:0], vel[:0], target[:0], gains)
    assert set(none.values()) == {0.0}


def test_metrics_of_a_clip_that_hangs_above_the_ground(humanoid):
    clip = still_clip(humanoid, offset=(0.0, 0.0, 0.2))
    found = clip_metrics(clip, humanoid)
    assert found["float_m"] == pytest.approx(0.2, abs=1e-3)
    assert found["floating_percent"] == 100.0
    assert found["contact_f1"] == 1.0  # nothing is labelled and nothing touches
    clip.frames.contacts[:, humanoid.feet[0]] = 1.0
    assert clip_metrics(clip, humanoid)["contact_precision"] == 0.0


def test_metrics_of_a_clip_that_stands(humanoid):
    clip = still_clip(humanoid)
    clip.frames.contacts[:, humanoid.feet[0]] = 1.0
    for mode in ("code", "paper"):
        found = clip_metrics(clip, humanoid, mode)
        assert found["float_m"] == pytest.approx(0.0, abs=1e-3)
        assert found["floating_percent"] == 0.0
        assert found["contact_precision"] == 1.0
        assert found["contact_recall"] == 0.5  # of two feet one is labelled
        assert found["contact_f1"] == pytest.approx(2 / 3)
        assert not math.isnan(found["contact_f1"])
