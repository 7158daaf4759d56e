"""Interpolation against scipy, resampling, loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation, Slerp

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof
from parc_ray.errors import InputError
from parc_ray.motion.resample import close_loop, resample, sample_frames, unroll_loop
from tests.motion.motions import largest_difference, make_clip, smooth_frames


def test_sampling_at_frame_times_returns_the_frames(character):
    frames = smooth_frames(character, 12)
    times = torch.arange(12) / 24.0
    sampled = sample_frames(character.skeleton, frames, 24.0, times)
    assert largest_difference(sampled, frames) < 5e-6


def test_in_between_frames_agree_with_scipy(character):
    skeleton = character.skeleton
    frames = smooth_frames(character, 6)
    times = np.array([0.013, 0.11, 0.1999])
    sampled = sample_frames(skeleton, frames, 25.0, torch.from_numpy(times))
    knots = np.arange(6) / 25.0
    root = Slerp(knots, Rotation.from_quat(frames.root_rot.numpy()))(times)
    assert np.abs(rot.quat_to_matrix(sampled.root_rot).numpy() - root.as_matrix()).max() < 2e-6
    joints = dof_to_joint_rot(skeleton, frames.dof).numpy()
    ours = rot.quat_to_matrix(dof_to_joint_rot(skeleton, sampled.dof)).numpy()
    for j in range(skeleton.num_joints):
        expected = Slerp(knots, Rotation.from_quat(joints[:, j]))(times)
        assert np.abs(ours[:, j] - expected.as_matrix()).max() < 2e-5
    for axis in range(3):
        expected = np.interp(times, knots, frames.root_pos[:, axis].numpy())
        assert np.allclose(sampled.root_pos[:, axis], expected, atol=1e-5)
    foot = character.feet[0]
    expected = np.interp(times, knots, frames.contacts[:, foot].numpy())
    assert np.allclose(sampled.contacts[:, foot], expected, atol=1e-5)


def test_clamped_motions_hold_their_ends(character):
    frames = smooth_frames(character, 5)
    sampled = sample_frames(character.skeleton, frames, 30.0, torch.tensor([-1.0, 7.0]))
    assert largest_difference(sampled[0], frames[0]) < 1e-6
    assert largest_difference(sampled[1], frames[-1]) < 1e-6


def test_times_of_any_shape(character):
    frames = smooth_frames(character, 5)
    sampled = sample_frames(character.skeleton, frames, 30.0, torch.rand(2, 3) * 0.1)
    assert sampled.batch_shape == (2,)
    assert sampled.num_frames == 3


def test_wrapped_motion_repeats_with_the_planar_motion_of_the_loop(character):
    frames = smooth_frames(character, 11)
    period = 10 / 30.0
    late = torch.tensor([0.05 + 3 * period, 0.2 + 3 * period], dtype=torch.float64)
    early = sample_frames(character.skeleton, frames, 30.0, late - 3 * period, "wrap")
    again = sample_frames(character.skeleton, frames, 30.0, late, "wrap")
    assert torch.allclose(again.dof, early.dof, atol=1e-5)
    turn = rot.heading_angle(frames.root_rot[-1]) - rot.heading_angle(frames.root_rot[0])

    def step(xy):  # the loop's motion about its first frame, applied by hand
        return rot.rotate_xy(xy - frames.root_pos[0, :2], turn) + frames.root_pos[-1, :2]

    expected = step(step(step(early.root_pos[:, :2])))
    assert torch.allclose(again.root_pos[:, :2], expected, atol=1e-4)
    turned = rot.wrap_angle(rot.heading_angle(again.root_rot) - rot.heading_angle(early.root_rot))
    assert torch.allclose(turned, rot.wrap_angle(3 * turn).expand(2), atol=1e-4)
    assert torch.allclose(again.root_pos[:, 2], early.root_pos[:, 2], atol=1e-5)


@pytest.mark.parametrize("fps", [16.0, 24.0, 30.0012, 60.0, 120.0])
def test_resampled_clips_keep_their_speed(person, fps):
    clip = make_clip(person, count=round(fps) + 1, fps=fps)
    out = resample(person.skeleton, clip)
    assert out.fps == 30.0
    assert clip.duration_s - 1 / 30 < out.duration_s <= clip.duration_s + 1e-4
    middle = sample_frames(person.skeleton, clip.frames, fps, torch.tensor([0.4]))
    assert largest_difference(out.frames[12:13], middle) < 1e-4
    assert resample(person.skeleton, out) is out


def test_resampled_loops_keep_their_period_within_half_a_frame(person):
    clip = make_clip(person, count=20, fps=16.0, loop="wrap")
    out = resample(person.skeleton, clip)
    assert abs(out.duration_s - clip.duration_s) <= 0.5 / 30
    assert largest_difference(out.frames[-1], clip.frames[-1]) < 1e-6
    assert out.loop == "wrap"


def test_closing_a_loop_joins_pose_but_not_place(character):
    frames = smooth_frames(character, 25)
    closed = close_loop(character.skeleton, frames)
    assert torch.allclose(closed.dof[0], closed.dof[-1], atol=1e-4)
    assert float(closed.root_pos[0, 2] - closed.root_pos[-1, 2]) == pytest.approx(0.0, abs=1e-6)
    assert torch.equal(closed.root_pos[:, :2], frames.root_pos[:, :2])
    middle = 12
    assert largest_difference(closed[middle], frames[middle]) < 1e-5


def test_unrolled_loops_are_long_enough_and_without_jumps(character):
    clip = make_clip(character, count=25, loop="wrap")
    out = unroll_loop(character.skeleton, clip, min_s=3.0)
    assert out.loop == "clamp"
    assert out.duration_s >= 3.0
    assert out.duration_s < 3.0 + clip.duration_s
    pos, _ = fk_from_dof(
        character.skeleton, out.frames.root_pos, out.frames.root_rot, out.frames.dof
    )
    steps = (pos[1:] - pos[:-1]).norm(dim=-1).amax(-1)
    inside = steps[: clip.num_frames - 1].max()
    assert float(steps.max()) < 1.05 * float(inside)


def test_only_loops_can_be_unrolled(person):
    with pytest.raises(InputError, match="only looped clips"):
        unroll_loop(person.skeleton, make_clip(person), min_s=3.0)
