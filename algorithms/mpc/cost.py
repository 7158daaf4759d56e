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


RULES = ("body", "root_pos", "root_rot", "diverged")
"""Names of the termination rules, in the order of `broken_rules`."""


def broken_rules(
    character: Character, error: TrackingError, config: MpcConfig, share: float = 1.0
) -> Tensor:
    """Which of the published code's termination rules end a track, (..., len(RULES)) bool.

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
    return torch.stack((bodies, root, turn, broken), dim=-1)


def why_ended(character: Character, error: TrackingError, config: MpcConfig) -> str:
    """Which rule ended the track of one environment (leading shape (1,)), with its figures."""
    rules = broken_rules(character, error, config)[0]
    if bool(rules[3]):
        return "the simulation diverged"
    if bool(rules[1]):
        return f"root {float(error.root_pos[0]):.2f} m off (allowed {config.root_pos_limit:g} m)"
    if bool(rules[2]):
        turn = float(error.root_rot[0])
        return f"root turned {turn:.2f} rad off (allowed {config.root_rot_limit:.4g} rad)"
    over = error.relative[0, 1:] - character.termination_distance
    body = int(over.argmax())
    name = character.skeleton.body_names[body + 1]
    limit = float(character.termination_distance[body])
    return f"{name} {float(error.relative[0, body + 1]):.2f} m off (allowed {limit:g} m)"


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


@dataclass(frozen=True)
class PartialCost:
    """Cost of the first part of a plan, to be gone on from.

    Attributes:
        total: (M,) sum so far.
        failed: (M,) bool, whether a rule was broken so far.
        terminal: (M,) what the last state costs once more if it ends the plan.
    """

    total: Tensor
    failed: Tensor
    terminal: Tensor

    def index(self, rows: Tensor) -> PartialCost:
        """Some of the plans."""
        return PartialCost(self.total[rows], self.failed[rows], self.terminal[rows])


def add_cost(
    character: Character,
    states: SimState,
    ref: ReferenceTrack,
    residuals: Tensor,
    before: Tensor,
    config: MpcConfig,
    earlier: PartialCost | None = None,
) -> PartialCost:
    """Cost of M plans over h further control steps.

    Args:
        character: weights and limits.
        states: leading dimensions (M, h), the states after each control step.
        ref: reference with leading dimension h at the same times.
        residuals: (M, h, D) residual targets, rad.
        before: (D,) or (M, D) residual executed before the first, for the action rate.
        config: weights and limits.
        earlier: cost of the steps before.
    """
    error = tracking_error(character, states, ref)
    broken = broken_rules(character, error, config, config.safety).any(dim=-1)
    if earlier is not None:
        broken[:, 0] |= earlier.failed
    failed = broken.int().cummax(dim=1).values.bool()
    cost = step_cost(character, error, config.cost).clamp(max=config.cost.failure)
    cost = torch.where(failed, config.cost.failure, cost)
    last = before.expand(residuals.shape[0], -1).unsqueeze(1)
    rate = (residuals - torch.cat([last, residuals[:, :-1]], dim=1)).square().sum(-1)
    total = (cost + config.cost.action_rate * rate).sum(dim=1)
    if earlier is not None:
        total = total + earlier.total
    root = config.cost.root_pos * error.root_pos[:, -1].square()
    turn = config.cost.root_rot * error.root_rot[:, -1].square()
    return PartialCost(
        total=torch.nan_to_num(total, nan=1e9, posinf=1e9),
        failed=failed[:, -1],
        terminal=(config.cost.terminal - 1.0) * torch.nan_to_num(root + turn, nan=1e9, posinf=1e9),
    )
