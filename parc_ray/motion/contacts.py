"""Contact labels from geometry, and how far feet slide.

A body touches the ground where one of its surface points comes within 2 cm of it. Labels from
distances do not depend on a simulator's solver. Shapes: T frames, B bodies, P points.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, sole_points, surface_points
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.distance import outside_distance
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch

CONTACT_DISTANCE_M = 0.02
DEBOUNCE_FRAMES = 2


def body_ground_distance(
    character: Character, frames: MotionFrames, terrain: Heightfield, window: int = 2
) -> Tensor:
    """Least distance (T, B) in m of each body's surface points to the terrain, 0 when buried.

    Exact below ``window`` cells, an upper bound beyond. Edge cells extend outside the grid.
    Bodies without points are infinitely far.
    """
    points = surface_points(character, "full")
    body_pos, body_rot = fk_from_dof(
        character.skeleton, frames.root_pos, frames.root_rot, frames.dof
    )
    placed = place_points(points, body_pos, body_rot)
    batch = HeightfieldBatch.stack([terrain])
    distance = outside_distance(placed[None], batch, window, off_grid="extend")[0]
    nearest = [
        distance[:, span].amin(-1)
        if span.stop > span.start
        else distance.new_full(distance.shape[:1], torch.inf)
        for span in points.point_ranges
    ]
    return torch.stack(nearest, dim=-1)


def debounce(labels: Tensor, min_frames: int = DEBOUNCE_FRAMES) -> Tensor:
    """Remove runs of True, then of False, that are shorter than ``min_frames``.

    Args:
        labels: (T, B) bool.
        min_frames: least length of a run; runs that touch the first or last frame stay.
    """
    if min_frames <= 1:
        return labels
    return ~_drop_short(~_drop_short(labels, min_frames), min_frames)


def _drop_short(labels: Tensor, length: int) -> Tensor:
    """Keep only the True entries that belong to a run of at least ``length`` frames."""
    edge = length - 1
    padded = torch.cat((labels[:1].expand(edge, -1), labels, labels[-1:].expand(edge, -1)))
    whole = padded.unfold(0, length, 1).all(-1)
    return whole.unfold(0, length, 1).any(-1)


def label_contacts(
    character: Character,
    frames: MotionFrames,
    terrain: Heightfield,
    *,
    distance_m: float = CONTACT_DISTANCE_M,
    min_frames: int = DEBOUNCE_FRAMES,
) -> Tensor:
    """Contact labels (T, B), 0 or 1: surface within ``distance_m`` of the ground, debounced.

    Args:
        character: the character.
        frames: (T, ...) world frames over ``terrain``; their own contacts are not read.
        terrain: the ground.
        distance_m: greatest distance that counts as touching.
        min_frames: shortest contact and shortest gap in frames.
    """
    distance = body_ground_distance(character, frames, terrain)
    return debounce(distance <= distance_m, min_frames).to(frames.root_pos.dtype)


def with_contacts(clip: MotionClip, character: Character) -> MotionClip:
    """The clip itself, or labelled by distance if none of its frames carries a label."""
    if bool((clip.frames.contacts > 0).any()):
        return clip
    contacts = label_contacts(character, clip.frames, clip.terrain)
    return replace(clip, frames=replace(clip.frames, contacts=contacts))


def foot_slide(character: Character, frames: MotionFrames, fps: float) -> Tensor:
    """Sliding speed (..., T-1, feet) in m/s of feet that stay in contact, 0 elsewhere.

    It is the speed of the slowest point of the sole, so a foot that rolls over its toes does not
    slide. A foot is in contact where both frames are labelled above one half.
    """
    points = sole_points(character)
    body_pos, body_rot = fk_from_dof(
        character.skeleton, frames.root_pos, frames.root_rot, frames.dof
    )
    placed = place_points(points, body_pos, body_rot)
    speed = (placed[..., 1:, :, :] - placed[..., :-1, :, :]).norm(dim=-1) * fps
    ranges = points.point_ranges
    feet = torch.stack([speed[..., ranges[foot]].amin(-1) for foot in character.feet], dim=-1)
    label = frames.contacts[..., list(character.feet)] > 0.5
    return feet * (label[..., 1:, :] & label[..., :-1, :])
