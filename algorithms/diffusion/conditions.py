"""What the network is told about one batch of windows, and what it is not told."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from algorithms.diffusion.config import ConditioningConfig


@dataclass(frozen=True)
class Conditions:
    """Conditions of N windows in their canonical frames. Never written in place.

    Attributes:
        heights: (N, GX, GY) terrain height minus reference root height, m.
        target: (N, 2) direction to move in, unit length, or zero for "stand".
        clean_past: (N,) bool, the past frames are given clean (indicator token).
        past_visible: (N,) bool, other tokens can read the past-frame tokens.
        terrain_visible: (N,) bool.
        target_visible: (N,) bool.
    """

    heights: Tensor
    target: Tensor
    clean_past: Tensor
    past_visible: Tensor
    terrain_visible: Tensor
    target_visible: Tensor

    def to(self, device: torch.device) -> Conditions:
        """Move every tensor."""
        return Conditions(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def draw_visibility(
    rng: torch.Generator, cfg: ConditioningConfig, n: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw which conditions the samples of a training batch see.

    Returns:
        clean_past, past_visible, terrain_visible, target_visible, each (n,) bool.
    """
    u = torch.rand(4, n, generator=rng)
    past_visible = u[1] >= cfg.mask_past_chance
    clean_past = u[0] < cfg.clean_past_chance
    if cfg.noised_when_masked:
        clean_past = clean_past & past_visible
    terrain_visible = u[2] >= cfg.drop_terrain_chance
    target_visible = u[3] >= cfg.drop_target_chance
    return clean_past, past_visible, terrain_visible, target_visible


def target_direction(
    offset_h: Tensor, heading_h: Tensor, stand_distance: float, turn_angle: float
) -> Tensor:
    """Direction to move in, from a future root position, as in the published code.

    Far targets give the unit vector towards them; near ones with a changed heading give the future
    heading ("turn in place"), to either side; near ones without give zero ("stand").

    Args:
        offset_h: (N, 2) future root position in the canonical frame, m.
        heading_h: (N,) future heading in the canonical frame, in (-pi, pi].
        stand_distance: m.
        turn_angle: rad.

    Returns:
        (N, 2).
    """
    distance = offset_h.norm(dim=-1, keepdim=True)
    forward = offset_h / distance.clamp_min(1e-9)
    facing = torch.stack([heading_h.cos(), heading_h.sin()], dim=-1)
    turning = (heading_h.abs() >= turn_angle)[:, None]
    near = torch.where(turning, facing, torch.zeros_like(facing))
    return torch.where(distance < stand_distance, near, forward)
