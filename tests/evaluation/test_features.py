"""Distances of sets of motions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.character.rotations import quat_mul, rotate_xy, yaw_quat
from parc_ray.evaluation.features import (
    FeatureSpace,
    frame_features,
    frechet_distance,
    nearest_distance,
    own_distance,
    pairwise_diversity,
    window_features,
    windows_of,
)
from tests.envs.helpers import sway_clip


def test_frechet_of_gaussians_by_hand():
    """|2|^2 + (sqrt 4 - sqrt 1)^2 along the first axis, nothing along the second."""
    a = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    b = a * [2.0, 1.0] + [2.0, 0.0]
    assert frechet_distance(a, b) == pytest.approx(4.0 + 1.0)
    assert frechet_distance(a, a) == pytest.approx(0.0, abs=1e-12)
    assert frechet_distance(b, a) == pytest.approx(5.0)
    assert math.isnan(frechet_distance(a[:1], a))


def test_nearest_by_hand():
    a, b = np.array([[0.0, 0.0], [4.0, 0.0]]), np.array([[0.0, 3.0], [4.0, 1.0]])
    assert nearest_distance(a, b) == pytest.approx((3 + 1) / 2 / math.sqrt(2))
    assert own_distance([a[:1], a[1:]]) == pytest.approx(4 / math.sqrt(2))
    assert math.isnan(nearest_distance(a, b[:0]))
    assert math.isnan(own_distance([a]))


def test_diversity_by_hand():
    still, moved = torch.zeros(3, 2, 3), torch.zeros(5, 2, 3)
    moved[:, 1, 0] = 2.0  # one of two bodies, 2 m away, over the three common frames
    assert pairwise_diversity([still, moved]) == pytest.approx(1.0)
    assert pairwise_diversity([still, still]) == 0.0
    assert pairwise_diversity([still, moved, still]) == pytest.approx(2 / 3)
    assert math.isnan(pairwise_diversity([still]))


def test_the_space_of_a_set_has_mean_zero_and_deviation_one():
    rng = np.random.default_rng(0)
    windows = rng.normal(size=(200, 6)) * [1.0, 5.0, 0.1, 2.0, 1.0, 0.0] + 3.0
    windows[:, 4] = windows[:, 3] * 2  # a direction less
    space = FeatureSpace.fit(windows)
    points = space.project(windows)
    assert points.shape == (200, 4)
    np.testing.assert_allclose(points.mean(0), 0.0, atol=1e-9)
    np.testing.assert_allclose(np.cov(points, rowvar=False, bias=True), np.eye(4), atol=1e-9)
    assert FeatureSpace.fit(windows, 2).project(windows).shape == (200, 2)


def test_features_do_not_see_where_a_motion_is_or_heads(humanoid):
    clip = sway_clip(humanoid, 40, speed=0.7)
    turn = torch.tensor(1.1)
    frames = clip.frames
    pos = torch.cat((rotate_xy(frames.root_pos[:, :2], turn.expand(40)), frames.root_pos[:, 2:]), 1)
    moved = replace(
        frames,
        root_pos=pos + torch.tensor([2.0, -1.0, 0.0]),
        root_rot=quat_mul(yaw_quat(turn).expand(40, 4), frames.root_rot),
    )
    other = replace(clip, frames=moved)
    torch.testing.assert_close(
        frame_features(clip, humanoid), frame_features(other, humanoid), atol=2e-4, rtol=0
    )
    speed = frame_features(clip, humanoid)[:, 1:4].norm(dim=-1)
    torch.testing.assert_close(speed, torch.full((39,), 0.7), atol=1e-3, rtol=0)


def test_windows(humanoid):
    clip = sway_clip(humanoid, 41)
    assert window_features(clip, humanoid).shape == (6, 2 * (5 + 3 * 14))
    assert window_features(sway_clip(humanoid, 4), humanoid).shape[0] == 1
    assert len(windows_of([clip, sway_clip(humanoid, 2)], humanoid)) == 2


def test_other_motions_are_further_away(humanoid):
    near = windows_of([sway_clip(humanoid, 61, amplitude=a) for a in (0.1, 0.15, 0.2)], humanoid)
    space = FeatureSpace.fit(np.concatenate(near))
    points = [space.project(w) for w in near]
    same = space.project(window_features(sway_clip(humanoid, 61, amplitude=0.12), humanoid))
    fast = space.project(
        window_features(sway_clip(humanoid, 61, amplitude=0.6, speed=3.0), humanoid)
    )
    whole = np.concatenate(points)
    assert nearest_distance(same, whole) < 2 * own_distance(points)
    assert nearest_distance(fast, whole) > 5 * own_distance(points)
    assert frechet_distance(fast, whole) > 5 * frechet_distance(same, whole)
