"""A small source of windows with the interface of ``parc_ray.data.bank.ClipBank``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.rotations import heading_angle, yaw_quat
from parc_ray.motion.frames import MotionFrames, stack
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch

FPS = 30.0


@dataclass
class FakeWindows:
    frames: MotionFrames
    terrain_ids: Tensor
    target_pos: Tensor
    target_heading: Tensor
    target_s: Tensor
    start_s: Tensor
    second_pos: Tensor
    second_heading: Tensor


class FakeBank:
    """Clips of equal length, sampled at whole frames with equal weights."""

    def __init__(self, clips: list[MotionFrames], terrains: list[Heightfield]):
        self.clips = stack(clips)
        self.terrains = HeightfieldBatch.stack(terrains)

    def sample_windows(self, rng: torch.Generator, n: int, num_frames: int) -> FakeWindows:
        count, length = self.clips.root_pos.shape[:2]
        clip = torch.randint(0, count, (n,), generator=rng)
        start = torch.randint(0, length - num_frames + 1, (n,), generator=rng)
        time = start[:, None] + torch.arange(num_frames)
        ahead = torch.randint(12, 45, (n,), generator=rng)
        later = (start + ahead).clamp(max=length - 1)
        last = (later + 15).clamp(max=length - 1)
        return FakeWindows(
            frames=self.clips.map(lambda x: x[clip[:, None], time]),
            terrain_ids=clip,
            target_pos=self.clips.root_pos[clip, later],
            target_heading=heading_angle(self.clips.root_rot[clip, later]),
            target_s=later.double() / FPS,
            start_s=start.double() / FPS,
            second_pos=self.clips.root_pos[clip, last],
            second_heading=heading_angle(self.clips.root_rot[clip, last]),
        )


def walking(character: Character, length: int, speed: float, heading: float) -> MotionFrames:
    """A character that glides along ``heading`` and swings every joint a little."""
    d, b = character.skeleton.num_dofs, character.skeleton.num_bodies
    t = torch.arange(length) / FPS
    direction = torch.tensor([heading]).cos().item(), torch.tensor([heading]).sin().item()
    root = torch.stack([speed * direction[0] * t, speed * direction[1] * t, 0.9 + 0 * t], dim=-1)
    phase = 2 * torch.pi * t[:, None] + torch.arange(d) * 0.7
    return MotionFrames(
        root_pos=root,
        root_rot=yaw_quat(torch.full((length,), heading)),
        dof=0.25 * phase.sin(),
        contacts=(phase[:, :1] + torch.arange(b)).sin().gt(0).float(),
    )


def make_bank(character: Character, clips: int = 3, length: int = 60) -> FakeBank:
    rng = torch.Generator().manual_seed(3)
    motions, terrains = [], []
    for i in range(clips):
        motions.append(walking(character, length, 0.5 + 0.5 * i, 0.6 * i))
        heights = torch.zeros(24, 24)
        heights[16:, :] = 0.3 * torch.rand(1, generator=rng)
        terrains.append(Heightfield(heights=heights, origin=torch.tensor([-3.03, -2.97])))
    return FakeBank(motions, terrains)
