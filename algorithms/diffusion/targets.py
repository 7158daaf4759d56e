"""Where a window shall lead: PARC's direction, and more where it is switched on.

PARC tells the network a unit direction: not how far, not how fast, and nothing of what comes after.
Further numbers, in this order: direction to a second, later point; distances to the points; speed.

Shapes: N windows, G numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algorithms.diffusion.conditions import target_direction
from algorithms.diffusion.config import ConditioningConfig
from parc_ray.character.rotations import rotate_xy

DISTANCE_UNIT_M = 3.0
"""Distances are divided by this, m: about the look-ahead of a roll-out."""
SPEED_UNIT_MPS = 3.0
"""Speeds are divided by this, m/s: about a run."""


def num_directions(cfg: ConditioningConfig) -> int:
    """Directions in front of a target vector."""
    return 2 if cfg.second_target else 1


def target_size(cfg: ConditioningConfig) -> int:
    """G: two numbers per direction, one per distance, one for the speed."""
    points = num_directions(cfg)
    return 2 * points + (points if cfg.target_distance else 0) + int(cfg.target_speed)


def target_features(
    cfg: ConditioningConfig,
    directions: Sequence[Tensor],
    distances: Sequence[Tensor],
    speed: Tensor,
) -> Tensor:
    """Put a target vector together.

    Args:
        cfg: which numbers are wanted; what is not is ignored.
        directions: (N, 2) each, unit length or zero.
        distances: (N,) m each.
        speed: (N,) m/s.

    Returns:
        (N, G).
    """
    points = num_directions(cfg)
    parts = list(directions[:points])
    if cfg.target_distance:
        parts += [d[:, None] / DISTANCE_UNIT_M for d in distances[:points]]
    if cfg.target_speed:
        parts.append(speed[:, None] / SPEED_UNIT_MPS)
    return torch.cat(parts, dim=-1)


def future_target(
    cfg: ConditioningConfig,
    offsets: Sequence[Tensor],
    headings: Sequence[Tensor],
    seconds: Tensor,
) -> Tensor:
    """Target vectors (N, G) of training windows, from where the motion really went.

    Args:
        cfg: switches and thresholds.
        offsets: (N, 2) m each, noisy future root positions in the canonical frame.
        headings: (N,) rad each, headings then, relative to the reference's.
        seconds: (N,) s from the reference to the first of them.
    """
    directions = [
        target_direction(offset, heading, cfg.stand_distance, cfg.turn_angle)
        for offset, heading in zip(offsets, headings, strict=True)
    ]
    distances = [offset.norm(dim=-1) for offset in offsets]
    return target_features(cfg, directions, distances, distances[0] / seconds.clamp_min(1e-3))


def wanted_target(cfg: ConditioningConfig, offsets: Sequence[Tensor], speed_mps: float) -> Tensor:
    """Target vectors (N, G) of a roll-out: always unit directions, never "stand", as in PARC.

    Args:
        cfg: switches.
        offsets: (N, 2) m each, points of the path in the canonical frame.
        speed_mps: how fast to get to the first.
    """
    distances = [offset.norm(dim=-1) for offset in offsets]
    directions = [
        offset / distance.clamp_min(1e-9)[:, None]
        for offset, distance in zip(offsets, distances, strict=True)
    ]
    return target_features(cfg, directions, distances, torch.full_like(distances[0], speed_mps))


def turn_target(cfg: ConditioningConfig, target: Tensor, angle: Tensor) -> Tensor:
    """Target vectors (N, G) with all directions turned by (N,) rad; distances and speed stay."""
    ends = 2 * num_directions(cfg)
    turned = [rotate_xy(target[:, k : k + 2], angle) for k in range(0, ends, 2)]
    return torch.cat([*turned, target[:, ends:]], dim=-1)


def mirror_target(cfg: ConditioningConfig, target: Tensor) -> Tensor:
    """Target vectors (N, G) of the mirror image: every direction's y changes its sign."""
    sign = torch.ones(target.shape[-1])
    sign[1 : 2 * num_directions(cfg) : 2] = -1.0
    return target * sign.to(target)
