"""Synthetic motions and fake generators for the tests of the synthesis package."""

from __future__ import annotations

import math

import torch

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, sole_points
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames, cat_time
from parc_ray.protocols import SampleRequest
from parc_ray.terrain.heightfield import Heightfield


def standing(character: Character, root_pos: torch.Tensor, heading: torch.Tensor) -> MotionFrames:
    """Zero joint rotations at root positions (..., T, 3) and headings (..., T)."""
    shape = root_pos.shape[:-1]
    feet = torch.zeros(character.skeleton.num_bodies)
    feet[list(character.feet)] = 1.0
    return MotionFrames(
        root_pos=root_pos.clone(),
        root_rot=rot.yaw_quat(heading).expand(*shape, 4).clone(),
        dof=torch.zeros(*shape, character.skeleton.num_dofs),
        contacts=feet.expand(*shape, -1).clone(),
    )


def walk_frames(character: Character, seconds: float = 3.0, speed: float = 1.2) -> MotionFrames:
    """A stylised walk along x on flat ground at z = 0, lowest sole on the ground."""
    skeleton = character.skeleton
    t = torch.arange(round(seconds * 30) + 1) / 30.0
    phase = 2 * math.pi * t / 1.0
    dof = torch.zeros(len(t), skeleton.num_dofs)
    for side, shift in (("right", 0.0), ("left", math.pi)):
        thigh = skeleton.dof_slices[skeleton.body_index(f"{side}_thigh")]
        shin = skeleton.dof_slices[skeleton.body_index(f"{side}_shin")]
        foot = skeleton.dof_slices[skeleton.body_index(f"{side}_foot")]
        swing = -0.4 * torch.sin(phase + shift)
        bend = 0.9 * torch.cos(phase + shift).clamp(min=0.0) + 0.1
        dof[:, thigh.start + 1] = swing - bend / 2
        dof[:, shin] = bend[:, None]
        dof[:, foot.start + 1] = -(swing - bend / 2) - bend
    pos = torch.stack([speed * t, 0.0 * t, 0.0 * t], dim=-1)
    frames = standing(character, pos, torch.zeros(len(t)))
    frames.dof = dof
    points = sole_points(character)
    body_pos, body_rot = fk_from_dof(skeleton, frames.root_pos, frames.root_rot, dof)
    low = place_points(points, body_pos, body_rot)[..., 2].amin(-1)
    frames.root_pos[:, 2] = -low
    return frames


def flat_under(frames: MotionFrames, height: float = 0.0, margin: float = 2.0) -> Heightfield:
    """Flat terrain around a motion."""
    xy = frames.root_pos[:, :2]
    return Heightfield.flat((4, 4), height=height).cropped(xy.amin(0), xy.amax(0), margin)


def walk_clip(character: Character, clip_id: str = "walk_0", **kwargs: float) -> MotionClip:
    """The stylised walk with terrain and contact labels."""
    frames = walk_frames(character, **kwargs)
    terrain = flat_under(frames)
    frames.contacts = label_contacts(character, frames, terrain)
    return MotionClip(
        clip_id=clip_id,
        frames=frames,
        fps=30.0,
        terrain=terrain,
        provenance=Provenance(source="synthetic", class_name="walk"),
    )


class Glider:
    """Moves a standing pose towards the target; some candidates can be made to misbehave."""

    num_frames = 15
    num_past = 2
    fps = 30.0

    def __init__(self, character: Character, speed: float = 1.5) -> None:
        self.character = character
        self.speed = speed
        self.calls: list[int] = []
        self.nan_after: int | None = None
        self.drift: torch.Tensor | None = None

    def sample(self, request: SampleRequest, rng: torch.Generator) -> MotionFrames:
        n = len(request.anchor_pos)
        self.calls.append(n)
        to = request.target_w - request.anchor_pos[:, :2]
        unit = to / to.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        if self.drift is not None:
            unit = self.drift.expand_as(unit)
        new = self.num_frames - (self.num_past if request.past is not None else 0)
        step = torch.arange(new) + (1.0 if request.past is not None else 0.0)
        reach = (step[None] * self.speed / self.fps)[..., None]
        if self.drift is None:
            reach = torch.minimum(reach, to.norm(dim=-1)[:, None, None])
        xy = request.anchor_pos[:, None, :2] + reach * unit[:, None]
        z = request.terrain.height_at(xy) + self.character.stand_height
        heading = request.anchor_heading[:, None].expand(n, new)
        out = standing(self.character, torch.cat([xy, z[..., None]], -1), heading)
        if self.nan_after is not None and len(self.calls) > self.nan_after:
            out.root_pos[0] = torch.nan
        return out if request.past is None else cat_time([request.past, out])
