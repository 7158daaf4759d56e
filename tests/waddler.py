"""The second character of the tests and a walk for it; nothing here knows the humanoid."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, sole_points
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield

WADDLER = Path(__file__).parent / "assets" / "waddler.xml"


def waddle(
    character: Character, clip_id: str, seconds: float = 2.0, speed: float = 0.35
) -> MotionClip:
    """A walk along x on flat ground; the lower sole is on the ground in every frame."""
    skeleton = character.skeleton
    t = torch.arange(round(seconds * 30) + 1) / 30.0
    dof = torch.zeros(len(t), skeleton.num_dofs)
    for side, shift in (("left", 0.0), ("right", math.pi)):
        phase = 2 * math.pi * t / 0.8 + shift
        hip = skeleton.dof_slices[skeleton.body_index(f"{side}_leg")]
        knee = skeleton.dof_slices[skeleton.body_index(f"{side}_shank")]
        toe = skeleton.dof_slices[skeleton.body_index(f"{side}_sole")]
        bend = 0.2 + 0.5 * torch.cos(phase).clamp(min=0.0)
        swing = -0.25 * torch.sin(phase) - bend / 2
        dof[:, hip.start + 1] = swing
        dof[:, knee] = bend[:, None]
        dof[:, toe] = -(swing + bend)[:, None]
    root = torch.stack([speed * t, 0 * t, 0 * t], dim=-1)
    turn = torch.tensor([0.0, 0.0, 0.0, 1.0]).repeat(len(t), 1)
    body_pos, body_rot = fk_from_dof(skeleton, root, turn, dof)
    root[:, 2] = -place_points(sole_points(character), body_pos, body_rot)[..., 2].amin(-1)
    terrain = Heightfield.flat((16, 10), origin=(-2.0, -1.8))
    frames = MotionFrames(
        root_pos=root,
        root_rot=turn,
        dof=dof,
        contacts=torch.zeros(len(t), skeleton.num_bodies),
    )
    frames.contacts = label_contacts(character, frames, terrain)
    return MotionClip(
        clip_id=clip_id,
        frames=frames,
        fps=30.0,
        terrain=terrain,
        provenance=Provenance(source="tests", class_name="waddle", take=clip_id),
    )
