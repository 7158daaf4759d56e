"""Reward terms of motion tracking (PARC, App. F): pure functions, one number per environment.

Shapes: N environments, B bodies, J joints, D degrees of freedom, K key bodies. World frame, SI,
quaternions xyzw. Every term lies in [0, 1] and is exactly 1 where state and reference are equal,
apart from contact matching, which is signed, and the costs, which are 0 or more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from envs.tracking.columns import chord_angle


def pose_term(joint_rot: Tensor, ref_joint_rot: Tensor, weights: Tensor, scale: float) -> Tensor:
    """exp(-scale sum_j w_j theta_j^2) of joint rotations (N, J, 4); weights (J,)."""
    angle = chord_angle(joint_rot, ref_joint_rot)
    return torch.exp(-scale * (weights * angle * angle).sum(-1))


def velocity_term(dof_vel: Tensor, ref_dof_vel: Tensor, weights: Tensor, scale: float) -> Tensor:
    """exp(-scale sum_d w_d (difference)^2) of joint velocities (N, D) rad/s; weights (D,)."""
    error = ref_dof_vel - dof_vel
    return torch.exp(-scale * (weights * error * error).sum(-1))


def root_error_sq(root_pos: Tensor, ref_pos: Tensor, angle: Tensor) -> Tensor:
    """|p^ - p|^2 + 0.1 theta^2 (N,), of positions (N, 3) and the angle theta (N,) between them."""
    return (ref_pos - root_pos).square().sum(-1) + 0.1 * angle * angle


def root_term(error_sq: Tensor, scale: float, tight_share: float, tight_scale: float) -> Tensor:
    """exp(-scale e) of `root_error_sq`, a share of it with a second, tighter scale."""
    wide = torch.exp(-scale * error_sq)
    if tight_share == 0.0:
        return wide
    return (1.0 - tight_share) * wide + tight_share * torch.exp(-tight_scale * error_sq)


def root_velocity_term(
    lin_vel: Tensor, ang_vel: Tensor, ref_lin_vel: Tensor, ref_ang_vel: Tensor, scale: float
) -> Tensor:
    """exp(-scale (|v^ - v|^2 + 0.1 |w^ - w|^2)) of world-frame velocities (N, 3)."""
    error = (ref_lin_vel - lin_vel).square().sum(-1)
    error = error + 0.1 * (ref_ang_vel - ang_vel).square().sum(-1)
    return torch.exp(-scale * error)


def key_term(body_pos: Tensor, ref_body_pos: Tensor, key_bodies: Tensor, scale: float) -> Tensor:
    """exp(-scale sum_k |difference|^2) of key positions relative to the root, world axes.

    Args:
        body_pos: (N, B, 3), body 0 is the root.
        ref_body_pos: (N, B, 3).
        key_bodies: (K,) long, indices of the key bodies.
        scale: 1/m^2.
    """
    offset = ref_body_pos - body_pos
    apart = offset.index_select(1, key_bodies) - offset[:, :1]
    return torch.exp(-scale * apart.square().sum((-1, -2)))


def contact_strength(force_sq: Tensor, mode: str, threshold: float) -> Tensor:
    """How much each body touches, (N, B) in [0, 1], from squared terrain forces (N, B) in N^2.

    `binary`: force above the threshold (paper eq. 21); `ramp`: force clamped to 1 N (code).
    """
    if mode == "binary":
        return (force_sq > threshold * threshold).to(force_sq.dtype)
    return force_sq.sqrt().clamp(max=1.0)


def contact_term(strength: Tensor, ref_contacts: Tensor) -> Tensor:
    """Mean over bodies of (2 c^ - 1) s, (N,) in [-1, 1] (paper eq. 21-22)."""
    return ((2.0 * ref_contacts - 1.0) * strength).mean(-1)


def action_rate_cost(action: Tensor, previous: Tensor) -> Tensor:
    """Mean squared change of the normalised action (N, D)."""
    return (action - previous).square().mean(-1)


def power_cost(
    dof_pos: Tensor, dof_vel: Tensor, target: Tensor, gains: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Mean absolute joint power in watt (N,), torques estimated as clipped PD.

    Args:
        dof_pos: (N, D) rad.
        dof_vel: (N, D) rad/s.
        target: (N, D) PD targets, rad.
        gains: stiffness, damping and effort limit, (D,) each.
    """
    kp, kd, effort = gains
    torque = kp * (target - dof_pos) - kd * dof_vel
    torque = torch.minimum(torch.maximum(torque, -effort), effort)
    return (torque * dof_vel).abs().mean(-1)
