"""Figures of clips: level changes under the feet and the largest jerk."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, sole_points
from parc_ray.motion.clip import MotionClip

_CONTACT = 0.5
_NEAR_M = 0.1


def level_change(clip: MotionClip, character: Character) -> float:
    """Highest minus lowest ground that the feet stand on, metres.

    A foot stands where it is labelled in contact and its sole is within 10 cm of the ground under
    it; the level is the median of the ground under the points of the sole. 0 where no foot stands.
    """
    f = clip.frames
    points = sole_points(character)
    pos, quat = fk_from_dof(character.skeleton, f.root_pos, f.root_rot, f.dof)
    place = place_points(points, pos, quat)
    ground = clip.terrain.height_at(place[..., :2])
    levels = []
    for foot in character.feet:
        span = points.point_ranges[foot]
        level = ground[:, span].median(-1).values
        near = place[:, span, 2].amin(-1) - level < _NEAR_M
        levels.append(level[(f.contacts[:, foot] > _CONTACT) & near])
    stood = torch.cat(levels)
    return float(stood.max() - stood.min()) if len(stood) else 0.0


def seconds_with_level_change(
    clips: Sequence[MotionClip], character: Character, threshold_m: float = 0.1
) -> tuple[float, float]:
    """Seconds of the clips whose feet cross ``threshold_m`` or more, and of all clips."""
    crossing = sum(c.duration_s for c in clips if level_change(c, character) >= threshold_m - 1e-4)
    return crossing, sum(c.duration_s for c in clips)


def largest_jerk(clip: MotionClip, character: Character) -> float:
    """Largest third difference of a body position times fps^3, m/s^3; 0 below four frames."""
    if clip.num_frames < 4:
        return 0.0
    f = clip.frames
    pos, _ = fk_from_dof(character.skeleton, f.root_pos, f.root_rot, f.dof)
    third = pos[3:] - 3.0 * pos[2:-1] + 3.0 * pos[1:-2] - pos[:-3]
    return float(third.norm(dim=-1).max()) * clip.fps**3
