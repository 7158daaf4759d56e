"""Motions and terrains of the synthesis benchmark, made from a seed alone.

They stand for what a generator hands to the optimiser: a walk that does not quite fit its ground,
with trembling joints, small steps at the seams of windows, and contact labels of its own.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, sole_points
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.generators import TerrainSpec, make_terrain
from parc_ray.terrain.heightfield import Heightfield

FPS = 30.0
SPEED_MPS, RADIUS_M, GAIT_HZ, LEG_M = 1.2, 2.0, 1.0, 0.8
DIFFICULTY = 0.15
"""Of the random-walk terrain: heights of -0.3 to 0.3 m."""
SEAM_FRAMES, SEAM_M = 7, 0.012
"""A generator's windows add seven frames each; the root steps a little where they meet."""
NOISE_RAD, NOISE_M = 0.05, 0.01
SMOOTH_S = 0.3


def rough_terrain(kind: str, cells: int, seed: int, difficulty: float = 1.0) -> Heightfield:
    """A terrain of the loop's families with ``cells`` cells along each side."""
    spec = TerrainSpec(kind=kind, cells=(cells, cells), path_count=10, difficulty=difficulty)
    return make_terrain(spec, np.random.default_rng(seed))


def flawed_walk(character: Character, seed: int, frames: int = 300, cells: int = 32) -> MotionClip:
    """A walk along a circle over a rough terrain of ``cells`` x ``cells``, with flaws.

    Args:
        character: the humanoid.
        seed: of terrain and flaws.
        frames: length at 30 frames a second.
        cells: size of the terrain; 16 or more.
    """
    generator = torch.Generator().manual_seed(seed)
    terrain = rough_terrain("paths", cells, seed, DIFFICULTY)
    walk = _level_walk(character, frames)
    flat = Heightfield.flat((cells, cells))
    contacts = label_contacts(character, walk, flat)
    low = _smoothed(terrain.height_at(walk.root_pos[:, :2])[:, None], SMOOTH_S * FPS)
    wobble = NOISE_M * _noise((frames, 3), generator)
    steps = SEAM_M * torch.randn(frames // SEAM_FRAMES + 1, 3, generator=generator)
    seams = steps.repeat_interleave(SEAM_FRAMES, 0)[:frames]
    lift = torch.cat([torch.zeros(frames, 2), low], dim=-1)
    tremble = NOISE_RAD * _noise(tuple(walk.dof.shape), generator)
    return MotionClip(
        clip_id=f"flawed_walk_{seed}",
        frames=MotionFrames(
            root_pos=walk.root_pos + lift + wobble + seams,
            root_rot=walk.root_rot,
            dof=walk.dof + tremble,
            contacts=contacts,
        ),
        fps=FPS,
        terrain=terrain,
        provenance=Provenance(source="synthetic", class_name="walk", seeds={"walk": seed}),
    )


def _level_walk(character: Character, frames: int) -> MotionFrames:
    """A stylised walk along a circle on flat ground at z = 0, lowest sole on the ground."""
    skeleton = character.skeleton
    t = torch.arange(frames) / FPS
    dof = torch.zeros(frames, skeleton.num_dofs)
    for side, shift in (("right", 0.0), ("left", 0.5)):
        thigh, shin, foot = (
            skeleton.dof_slices[skeleton.body_index(f"{side}_{part}")]
            for part in ("thigh", "shin", "foot")
        )
        phase = torch.remainder(GAIT_HZ * t + shift, 1.0)
        stride = torch.where(phase < 0.5, torch.cos(2 * math.pi * phase), 4.0 * phase - 3.0)
        swing = torch.asin(stride * SPEED_MPS / GAIT_HZ / 4 / LEG_M)
        bend = 0.9 * torch.sin(2 * math.pi * phase).clamp(min=0.0) + 0.1
        dof[:, thigh.start + 1] = swing - bend / 2
        dof[:, shin] = bend[:, None]
        dof[:, foot.start + 1] = -(swing - bend / 2) - bend
    angle = SPEED_MPS / RADIUS_M * t
    xy = RADIUS_M * torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)
    root_pos = torch.cat([xy, torch.zeros(frames, 1)], dim=-1)
    root_rot = rot.yaw_quat(angle + math.pi / 2)
    body_pos, body_rot = fk_from_dof(skeleton, root_pos, root_rot, dof)
    low = place_points(sole_points(character), body_pos, body_rot)[..., 2].amin(-1)
    root_pos[:, 2] = -low
    contacts = torch.zeros(frames, skeleton.num_bodies)
    return MotionFrames(root_pos=root_pos, root_rot=root_rot, dof=dof, contacts=contacts)


def _noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Smooth noise (T, C) of unit deviation that changes over about a fifth of a second."""
    rough = _smoothed(torch.randn(shape, generator=generator), 0.2 * FPS)
    return rough / rough.std(dim=0, keepdim=True)


def _smoothed(values: Tensor, sigma: float) -> Tensor:
    """Values (T, C) under a Gaussian window of ``sigma`` frames; the ends go on."""
    reach = math.ceil(3 * sigma)
    at = torch.arange(-reach, reach + 1)
    window = torch.exp(-0.5 * (at / sigma) ** 2)
    padded = torch.cat([values[:1].expand(reach, -1), values, values[-1:].expand(reach, -1)])
    return padded.unfold(0, len(at), 1) @ (window / window.sum())
