"""Reference-state starts: copy, disturb, lift out of the ground."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from envs.tracking.motion_bank import Reference, TerrainBank
from parc_ray.character.surface import place_points, surface_points
from parc_ray.protocols import SimState

if TYPE_CHECKING:
    from parc_ray.character.character import Character


def reference_state(ref: Reference) -> SimState:
    """The simulated state that equals a reference (K, ...), without contact forces."""
    return SimState(
        root_pos=ref.root_pos.clone(),
        root_rot=ref.root_rot.clone(),
        root_lin_vel=ref.root_lin_vel.clone(),
        root_ang_vel=ref.root_ang_vel.clone(),
        dof_pos=ref.dof.clone(),
        dof_vel=ref.dof_vel.clone(),
        contact_force=torch.zeros_like(ref.body_pos),
    )


def disturb(
    state: SimState, pos_noise: float, vel_noise: float, shift: float, rng: torch.Generator
) -> SimState:
    """Add uniform noise to root position, all velocities, and a horizontal shift, in place.

    Args:
        state: (K, ...) states.
        pos_noise: metres, each axis of the root's position.
        vel_noise: m/s and rad/s, root and joint velocities.
        shift: metres, horizontal.
        rng: source of the noise.
    """

    def noise(like: Tensor, size: float) -> Tensor:
        return (2.0 * torch.rand(like.shape, generator=rng) - 1.0) * size

    if pos_noise > 0:
        state.root_pos += noise(state.root_pos, pos_noise)
    if shift > 0:
        state.root_pos[:, :2] += noise(state.root_pos[:, :2], shift)
    if vel_noise > 0:
        state.root_lin_vel += noise(state.root_lin_vel, vel_noise)
        state.root_ang_vel += noise(state.root_ang_vel, vel_noise)
        state.dof_vel += noise(state.dof_vel, vel_noise)
    return state


def lift_out(
    character: Character,
    terrain: TerrainBank,
    terrain_ids: Tensor,
    body_pos: Tensor,
    body_rot: Tensor,
    max_lift: float,
) -> Tensor:
    """Heights (K,) by which to raise characters so that no surface point lies under the ground.

    Points deeper than ``max_lift`` are beside a wall rather than under a floor and are left alone.

    Args:
        character: gives the surface points.
        terrain: the grounds.
        terrain_ids: (K,) long.
        body_pos: (K, B, 3) m.
        body_rot: (K, B, 4).
        max_lift: metres.
    """
    points = place_points(surface_points(character, "full"), body_pos, body_rot)
    depth = terrain.height_at(terrain_ids, points[..., :2]) - points[..., 2]
    depth = torch.where(depth <= max_lift, depth, torch.zeros_like(depth))
    return depth.amax(-1).clamp(min=0.0)
