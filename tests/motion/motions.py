"""Seeded motions for the tests of this folder."""

from __future__ import annotations

import torch

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield


def smooth_frames(character: Character, count: int, seed: int = 0) -> MotionFrames:
    """A smooth random motion inside the joint limits, float32."""
    g = torch.Generator().manual_seed(seed)
    skeleton = character.skeleton
    t = torch.linspace(0.0, 1.0, count)[:, None]

    def wave(width: int, size: float) -> torch.Tensor:
        phase = 6.0 * torch.rand(width, generator=g)
        return size * torch.sin(3.0 * torch.rand(width, generator=g) * t + phase)

    low, high = skeleton.dof_limits.T
    dof = 0.5 * (low + high) + 0.5 * (high - low) * wave(skeleton.num_dofs, 0.5)
    heading = rot.yaw_quat(4.0 * t[:, 0] - 1.0)
    tilt = rot.quat_from_exp(wave(3, 0.3))
    return MotionFrames(
        root_pos=torch.cat((wave(2, 3.0), 0.8 + wave(1, 0.1)), -1),
        root_rot=rot.quat_positive(rot.quat_mul(heading, tilt)),
        dof=dof,
        contacts=(wave(skeleton.num_bodies, 1.0) > 0).float(),
    )


def make_clip(character: Character, count: int = 31, **changes) -> MotionClip:
    values = {
        "clip_id": "clip",
        "frames": smooth_frames(character, count),
        "fps": 30.0,
        "terrain": Heightfield.flat((20, 24)),
    }
    return MotionClip(**{**values, **changes})


def standing(character: Character, count: int, height: float = 0.0) -> MotionFrames:
    """The rest pose with its soles at ``height``."""
    skeleton = character.skeleton
    pos = torch.tensor([0.0, 0.0, character.stand_height + height]).expand(count, 3).clone()
    return MotionFrames(
        root_pos=pos,
        root_rot=torch.tensor([0.0, 0, 0, 1]).expand(count, 4).clone(),
        dof=torch.zeros(count, skeleton.num_dofs),
        contacts=torch.zeros(count, skeleton.num_bodies),
    )


def largest_difference(a: MotionFrames, b: MotionFrames) -> float:
    """Greatest difference of any number; rotations compared by angle."""
    return max(
        float((a.root_pos - b.root_pos).abs().max()),
        float(rot.quat_angle(a.root_rot, b.root_rot).max()),
        float((a.dof - b.dof).abs().max()),
        float((a.contacts - b.contacts).abs().max()),
    )
