"""Tracking cost and termination of simulated states against a reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.mpc.config import MpcConfig, MpcCostConfig
from algorithms.mpc.reference import ReferenceTrack
from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot, forward_kinematics
from parc_ray.character.rotations import quat_angle
from parc_ray.protocols import SimState


@dataclass(frozen=True)
class TrackingError:
    """Errors of simulated states (..., leading shape) against the reference.

    Attributes:
        root_pos: (...,) m.
        root_rot: (...,) rad.
        joint: (..., J) rad.
        relative: (..., B) m, body positions relative to the root.
        absolute: (..., B) m, body positions in the world.
        root_vel, root_ang_vel, dof_vel: (...,) squared norms.
    """

    root_pos: Tensor
    root_rot: Tensor
    joint: Tensor
    relative: Tensor
    absolute: Tensor
    root_vel: Tensor
    root_ang_vel: Tensor
    dof_vel: Tensor


def tracking_error(character: Character, state: SimState, ref: ReferenceTrack) -> TrackingError:
    """Compare states (..., ) with reference frames that broadcast against them."""
    skeleton = character.skeleton
    joint_rot = dof_to_joint_rot(skeleton, state.dof_pos)
    body_pos, _ = forward_kinematics(skeleton, state.root_pos, state.root_rot, joint_rot)
    relative = (body_pos - state.root_pos.unsqueeze(-2)) - (
        ref.body_pos - ref.state.root_pos.unsqueeze(-2)
    )
    return TrackingError(
        root_pos=(state.root_pos - ref.state.root_pos).norm(dim=-1),
        root_rot=quat_angle(state.root_rot, ref.state.root_rot),
        joint=quat_angle(joint_rot, ref.joint_rot),
        relative=relative.norm(dim=-1),
        absolute=(body_pos - ref.body_pos).norm(dim=-1),
        root_vel=(state.root_lin_vel - ref.state.root_lin_vel).square().sum(-1),
        root_ang_vel=(state.root_ang_vel - ref.state.root_ang_vel).square().sum(-1),
        dof_vel=(state.dof_vel - ref.state.dof_vel).square().sum(-1),
    )


def exceeded(
    character: Character, error: TrackingError, config: MpcConfig, share: float = 1.0
) -> Tensor:
    """Whether the published code's termination rules end a track, (...,) bool.

    Args:
        character: carries the distance limit of every non-root body.
        error: errors against the reference.
        config: carries the root limits.
        share: factor on every limit; below one leaves a margin.
    """
    bodies = (error.relative[..., 1:] > share * character.termination_distance).any(dim=-1)
    root = error.root_pos > share * config.root_pos_limit
    turn = error.root_rot > share * config.root_rot_limit
    broken = ~torch.isfinite(error.absolute).all(dim=-1)
    return bodies | root | turn | broken


def step_cost(character: Character, error: TrackingError, weights: MpcCostConfig) -> Tensor:
    """Cost of each state, (...,): weighted squared errors, without failures and action rate."""
    joint = (character.joint_weights * error.joint.square()).sum(-1)
    key = error.relative[..., list(character.key_bodies)].square().sum(-1)
    return (
        weights.root_pos * error.root_pos.square()
        + weights.root_rot * error.root_rot.square()
        + weights.joint * joint
        + weights.key_body * key
        + weights.root_vel * error.root_vel
        + weights.root_ang_vel * error.root_ang_vel
        + weights.dof_vel * error.dof_vel
    )


def plan_cost(
    character: Character,
    states: SimState,
    ref: ReferenceTrack,
    residuals: Tensor,
    last_residual: Tensor,
    config: MpcConfig,
) -> Tensor:
    """Cost (M,) of M simulated plans.

    Args:
        character: weights and limits.
        states: leading dimensions (M, H), the states after each control step.
        ref: reference with leading dimension H at the same times.
        residuals: (M, H, D) residual targets, rad.
        last_residual: (D,) residual executed last, for the action rate.
        config: weights and limits.
    """
    error = tracking_error(character, states, ref)
    failed = exceeded(character, error, config, config.safety).int().cummax(dim=1).values
    cost = step_cost(character, error, config.cost)
    terminal = config.cost.terminal - 1.0
    root = config.cost.root_pos * error.root_pos[:, -1].square()
    turn = config.cost.root_rot * error.root_rot[:, -1].square()
    before = torch.cat([last_residual.expand(residuals.shape[0], 1, -1), residuals[:, :-1]], dim=1)
    rate = (residuals - before).square().sum(-1)
    per_step = torch.where(failed.bool(), config.cost.failure, cost.clamp(max=config.cost.failure))
    total = (per_step + config.cost.action_rate * rate).sum(dim=1) + terminal * (root + turn)
    return torch.nan_to_num(total, nan=1e9, posinf=1e9)
