"""Features: layout, canonical frames, round trips, gradients, statistics."""

from __future__ import annotations

import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.motion.features import (
    FeatureLayout,
    canonical_frame,
    compute_stats,
    from_canonical,
    pack,
    project,
    to_canonical,
    unpack,
)
from parc_ray.motion.frames import stack
from tests.motion.motions import largest_difference, smooth_frames


@pytest.fixture
def windows(character):
    return stack([smooth_frames(character, 15, seed) for seed in range(6)])


def test_humanoid_layout_is_the_published_one(person):
    layout = FeatureLayout(person.skeleton)
    assert layout.size == 91
    assert (layout.root_pos, layout.root_rot) == (slice(0, 3), slice(3, 6))
    assert (layout.joint_pos, layout.dof) == (slice(6, 48), slice(48, 76))
    assert layout.contacts == slice(76, 91)


def test_reference_frame_is_at_the_origin_and_faces_x(windows):
    canonical = to_canonical(windows, canonical_frame(windows))
    assert float(canonical.root_pos[:, 1].abs().max()) < 1e-6
    assert float(rot.heading_angle(canonical.root_rot[:, 1]).abs().max()) < 1e-6
    assert float(rot.heading_angle(canonical.root_rot[:, 5]).abs().min()) > 1e-3


def test_world_round_trip(windows):
    frame = canonical_frame(windows)
    assert largest_difference(from_canonical(to_canonical(windows, frame), frame), windows) < 5e-6


def test_features_do_not_depend_on_where_the_motion_happens(character, windows):
    """Turning and moving the world leaves canonical features alone."""
    angle, shift = torch.tensor(2.2), torch.tensor([5.0, -3.0, 1.5])
    moved = windows.clone()
    moved.root_pos = rot.quat_rotate(rot.yaw_quat(angle), windows.root_pos) + shift
    moved.root_rot = rot.quat_mul(rot.yaw_quat(angle), windows.root_rot)
    x, y = (pack(character.skeleton, to_canonical(w, canonical_frame(w))) for w in (windows, moved))
    assert torch.allclose(x, y, atol=1e-5)


def test_joint_positions_are_body_positions_in_the_canonical_frame(character, windows):
    layout = FeatureLayout(character.skeleton)
    frame = canonical_frame(windows)
    x = pack(character.skeleton, to_canonical(windows, frame))
    _, joint_pos = unpack(layout, x)
    body_w, _ = fk_from_dof(character.skeleton, windows.root_pos, windows.root_rot, windows.dof)
    for body in range(1, character.skeleton.num_bodies):
        expected = frame.point_to_canonical(body_w[..., body, :])
        assert torch.allclose(joint_pos[..., body - 1, :], expected, atol=1e-5)
        assert torch.allclose(frame.point_to_world(expected), body_w[..., body, :], atol=1e-5)


def test_unpack_inverts_pack(character, windows):
    layout = FeatureLayout(character.skeleton)
    frames, _ = unpack(layout, pack(character.skeleton, windows))
    assert largest_difference(frames, windows) < 5e-6


def test_target_points_rotate_into_the_heading_frame(windows):
    frame = canonical_frame(windows)
    ahead = torch.stack((torch.cos(frame.heading), torch.sin(frame.heading)), -1) * 3.0
    local = frame.xy_to_canonical(frame.origin[:, :2] + ahead)
    assert torch.allclose(local, torch.tensor([3.0, 0.0]).expand(6, 2), atol=1e-5)


def test_projection_makes_features_consistent_and_is_idempotent(character, windows):
    skeleton, layout = character.skeleton, FeatureLayout(character.skeleton)
    x = pack(skeleton, windows)
    assert torch.allclose(project(skeleton, layout, x), x, atol=1e-5)
    noisy = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    once = project(skeleton, layout, noisy)
    assert torch.allclose(project(skeleton, layout, once), once, atol=1e-4)
    frames, joint_pos = unpack(layout, once)
    body, _ = fk_from_dof(skeleton, frames.root_pos, frames.root_rot, frames.dof)
    assert torch.allclose(joint_pos, body[..., 1:, :], atol=1e-5)
    assert float(once[..., layout.contacts].min()) >= 0.0
    assert float(once[..., layout.contacts].max()) <= 1.0


def test_gradients_are_finite_at_zero_and_match_differences(character):
    skeleton, layout = character.skeleton, FeatureLayout(character.skeleton)
    x = torch.zeros(1, 1, layout.size, dtype=torch.float64, requires_grad=True)

    def positions(features):
        frames, _ = unpack(layout, features)
        return fk_from_dof(skeleton, frames.root_pos, frames.root_rot, frames.dof)[0]

    assert torch.autograd.gradcheck(positions, (x,), atol=1e-6)
    float32 = torch.zeros(2, 3, layout.size, requires_grad=True)
    project(skeleton, layout, float32).square().sum().backward()
    assert bool(torch.isfinite(float32.grad).all())


def test_statistics_normalise_and_leave_contacts_alone(character, windows):
    layout = FeatureLayout(character.skeleton)
    x = pack(character.skeleton, to_canonical(windows, canonical_frame(windows)))
    stats = compute_stats(layout, x)
    assert stats.mean.shape == x.shape[1:]
    y = stats.normalise(x)
    free = stats.std > 1e-3
    free[:, layout.contacts] = False
    assert float(y.mean(0)[free].abs().max()) < 1e-3
    assert torch.allclose(y.std(0, correction=0)[free], torch.tensor(1.0), atol=1e-3)
    assert torch.equal(y[..., layout.contacts], x[..., layout.contacts])
    assert float(stats.std.min()) == pytest.approx(1e-5)  # the reference root never moves
    assert torch.allclose(stats.denormalise(y), x, atol=1e-5)
