"""Motions at other times: interpolation, resampling and unrolling of loops.

Positions and contacts are interpolated linearly, rotations by slerp. A looped motion goes on past
its end by the planar rigid motion (xy and heading) that takes its first frame to its last, so a
walk keeps walking.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import dof_to_joint_rot, joint_rot_to_dof
from parc_ray.character.skeleton import Skeleton
from parc_ray.errors import InputError
from parc_ray.motion.clip import LoopMode, MotionClip
from parc_ray.motion.frames import MotionFrames

PARC_FPS = 30.0
_FPS_TOLERANCE = 1e-6


def blend_frames(
    skeleton: Skeleton, a: MotionFrames, b: MotionFrames, weight: Tensor
) -> MotionFrames:
    """Frames between ``a`` (weight 0) and ``b`` (weight 1).

    Args:
        skeleton: the kinematic tree.
        a: frames (..., T).
        b: frames (..., T).
        weight: (..., T) in [0, 1].
    """
    joint_weight = weight[..., None].expand(*weight.shape, skeleton.num_joints)
    joints = rot.slerp(
        dof_to_joint_rot(skeleton, a.dof), dof_to_joint_rot(skeleton, b.dof), joint_weight
    )
    return MotionFrames(
        root_pos=torch.lerp(a.root_pos, b.root_pos, weight[..., None]),
        root_rot=rot.slerp(a.root_rot, b.root_rot, weight),
        dof=joint_rot_to_dof(skeleton, joints),
        contacts=torch.lerp(a.contacts, b.contacts, weight[..., None].to(a.contacts)),
    )


def sample_frames(
    skeleton: Skeleton,
    frames: MotionFrames,
    fps: float,
    times: Tensor,
    loop: LoopMode = "clamp",
) -> MotionFrames:
    """Frames of one motion at any times.

    Args:
        skeleton: the kinematic tree.
        frames: (T, ...) frames, T >= 1.
        fps: their frames per second.
        times: (...,) s from the first frame; below zero means zero.
        loop: past the end, "clamp" holds the last frame, "wrap" starts again from there.

    Returns:
        Frames of the shape of ``times``.
    """
    count = frames.num_frames
    position = times.double().clamp(min=0.0) * fps
    cycle = torch.zeros_like(position, dtype=torch.long)
    if loop == "wrap" and count > 1:
        cycle = torch.div(position, count - 1, rounding_mode="floor").long()
        position = position - cycle * (count - 1)
    position = position.clamp(0.0, count - 1.0)
    lower = position.floor().long().clamp(max=max(count - 2, 0))
    upper = (lower + 1).clamp(max=count - 1)
    weight = (position - lower).to(frames.root_pos.dtype)
    result = blend_frames(skeleton, frames[lower], frames[upper], weight)
    return _advance(frames, result, cycle) if bool(cycle.any()) else result


def _advance(frames: MotionFrames, result: MotionFrames, cycle: Tensor) -> MotionFrames:
    """Move ``result`` on by ``cycle`` (...,) repetitions of the loop's planar motion."""
    first, last = frames[0], frames[-1]
    turn = rot.wrap_angle(rot.heading_angle(last.root_rot) - rot.heading_angle(first.root_rot))
    step = last.root_pos[:2] - rot.rotate_xy(first.root_pos[:2], turn)
    shifts = [torch.zeros_like(step)]
    for _ in range(int(cycle.max())):
        shifts.append(rot.rotate_xy(shifts[-1], turn) + step)
    angle = cycle.to(turn.dtype) * turn
    xy = rot.rotate_xy(result.root_pos[..., :2], angle) + torch.stack(shifts)[cycle]
    return MotionFrames(
        root_pos=torch.cat((xy, result.root_pos[..., 2:]), dim=-1),
        root_rot=rot.quat_positive(rot.quat_mul(rot.yaw_quat(angle), result.root_rot)),
        dof=result.dof,
        contacts=result.contacts,
    )


def resample(skeleton: Skeleton, clip: MotionClip, fps: float = PARC_FPS) -> MotionClip:
    """``clip`` at ``fps``; the clip itself where it has that rate.

    Clamped clips keep their speed and lose less than one frame at the end. Looped clips keep
    their exact period: it is divided into a whole number of frames. A replay does not survive.
    """
    if abs(clip.fps - fps) <= _FPS_TOLERANCE * fps:
        return clip
    if clip.loop == "wrap":
        count = max(round(clip.duration_s * fps), 1) + 1
        times = torch.linspace(0.0, clip.duration_s, count, dtype=torch.float64)
    else:
        count = math.floor(clip.duration_s * fps + 1e-6) + 1
        times = torch.arange(count, dtype=torch.float64) / fps
    frames = sample_frames(skeleton, clip.frames, clip.fps, times, "clamp")
    return replace(clip, frames=frames, fps=fps, replay=None)


def close_loop(skeleton: Skeleton, frames: MotionFrames) -> MotionFrames:
    """Spread the mismatch between last and first pose of a loop evenly over the cycle.

    Joints, root tilt and root height then agree at both ends; xy and heading are left alone.

    Args:
        skeleton: the kinematic tree.
        frames: (T, ...) frames of one cycle, T >= 2, whose last frame is the next cycle's first.
    """
    share = 0.5 - torch.linspace(0.0, 1.0, frames.num_frames).to(frames.root_pos)
    joints = dof_to_joint_rot(skeleton, frames.dof)
    heading = rot.heading_quat(frames.root_rot)
    tilt = rot.quat_mul(rot.quat_conj(heading), frames.root_rot)
    rise = share * (frames.root_pos[-1, 2] - frames.root_pos[0, 2])
    return MotionFrames(
        root_pos=torch.cat((frames.root_pos[:, :2], (frames.root_pos[:, 2] + rise)[:, None]), -1),
        root_rot=rot.quat_positive(rot.quat_mul(heading, _spread(tilt, share[:, None]))),
        dof=joint_rot_to_dof(skeleton, _spread(joints, share[:, None, None])),
        contacts=frames.contacts,
    )


def _spread(quat: Tensor, share: Tensor) -> Tensor:
    """Rotations (T, ..., 4) corrected by ``share`` of the rotation from the first to the last."""
    mismatch = rot.quat_to_exp(rot.quat_mul(rot.quat_conj(quat[0]), quat[-1]))
    return rot.quat_mul(quat, rot.quat_from_exp(share * mismatch))


def unroll_loop(skeleton: Skeleton, clip: MotionClip, min_s: float) -> MotionClip:
    """Repeat a looped clip until it lasts ``min_s`` seconds; the result is a clamped clip.

    Meant for flat ground: the terrain is kept as it is and must reach far enough.

    Raises:
        InputError: where the clip is not a loop or has a single frame.
    """
    if clip.loop != "wrap" or clip.num_frames < 2:
        raise InputError(
            f"clip {clip.clip_id!r}: only looped clips (loop = wrap) of two frames or more can "
            "be unrolled; set its loop mode or leave it as it is"
        )
    cycle = close_loop(skeleton, clip.frames)
    cycles = max(1, math.ceil(min_s / clip.duration_s - 1e-9))
    times = torch.arange(cycles * (clip.num_frames - 1) + 1, dtype=torch.float64) / clip.fps
    frames = sample_frames(skeleton, cycle, clip.fps, times, "wrap")
    return replace(clip, frames=frames, loop="clamp", replay=None)
