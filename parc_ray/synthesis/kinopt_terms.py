"""The terms of the kinematic optimisation, each summed per motion.

Velocities are differences per frame, not divided by the time step; sums run over frames and
bodies without averaging. Padding is excluded by masks.

Legend: N motions, T frames, B bodies, J joints, D dofs, M held or planted bodies, Q points.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SLIDE_SOFT_SQ = 0.0009
_SLIDE_SOFT = 0.03
_REST_M = 0.002


def rotation_gap(a: Tensor, b: Tensor) -> Tensor:
    """Geodesic angle (...) between unit quaternions (..., 4), smooth at 0 and exact when small."""
    with torch.no_grad():
        sign = torch.where((a * b).sum(-1, keepdim=True) < 0, -1.0, 1.0)
    chord = ((a - sign * b).square().sum(-1) + 1e-14).sqrt()
    return 4.0 * torch.asin((chord / 2.0).clamp(max=0.7072))


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum (N,) of ``values`` (N, T, ...) over the frames of ``mask`` (N, T)."""
    per_frame = values.flatten(2).sum(-1) if values.ndim > 2 else values
    return (per_frame * mask).sum(1)


def window_mask(mask: Tensor, frames: int) -> Tensor:
    """Mask (N, T - frames + 1) of the windows of ``frames`` that are inside (N, T) bool."""
    length = mask.shape[1] - frames + 1
    out = mask[:, :length]
    for k in range(1, frames):
        out = out & mask[:, k : k + length]
    return out


def root_position(root_pos: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """Squared distance of root positions (N, T, 3) to the source, (N,)."""
    return masked_sum((root_pos - source).square(), mask)


def rotation(quat: Tensor, source: Tensor, mask: Tensor) -> Tensor:
    """Squared angle of rotations (N, T, ..., 4) to the source, (N,)."""
    return masked_sum(rotation_gap(quat, source).square(), mask)


def smoothness(
    step: Tensor, turn: Tensor, src_step: Tensor, src_turn: Tensor, pair: Tensor
) -> Tensor:
    """Squared change of body steps (N, T-1, B, 3) and turns (N, T-1, B) against the source."""
    linear = (step - src_step).square().sum(-1)
    return masked_sum(linear + (turn - src_turn).square(), pair)


def sliding(
    step: Tensor, turn: Tensor, src_step: Tensor, src_turn: Tensor, weight: Tensor, pair: Tensor
) -> Tensor:
    """Pseudo-Huber change of body steps and turns, weighted by contact (N, T-1, B), (N,)."""
    moved = ((step - src_step).square().sum(-1) + _SLIDE_SOFT_SQ).sqrt() - _SLIDE_SOFT
    turned = ((turn - src_turn).square() + _SLIDE_SOFT_SQ).sqrt() - _SLIDE_SOFT
    return masked_sum((moved + turned) * weight, pair)


def jerk_excess(body_pos: Tensor, limit_m: float, mask: Tensor) -> Tensor:
    """Third differences of (N, T, B, 3) beyond ``limit_m`` (jerk limit * dt^3), metres, (N,)."""
    if body_pos.shape[1] < 4:
        return body_pos.new_zeros(body_pos.shape[0])
    third = body_pos[:, 3:] - 3.0 * body_pos[:, 2:-1] + 3.0 * body_pos[:, 1:-2] - body_pos[:, :-3]
    size = (third.square().sum(-1) + 1e-14).sqrt()
    return masked_sum(torch.relu(size - limit_m), window_mask(mask, 4))


def joint_limit(dof: Tensor, limits: Tensor, mask: Tensor) -> Tensor:
    """Joint coordinates (N, T, D) beyond ``limits`` (D, 2), rad, (N,)."""
    over = torch.relu(dof - limits[:, 1]) + torch.relu(limits[:, 0] - dof)
    return masked_sum(over, mask)


def body_constraint(
    points: Tensor, real: Tensor, target: Tensor, radius: Tensor, round_: Tensor
) -> Tensor:
    """Distance of held hands and feet from the surface point they hold on to, (M,).

    A round body pays | ||c - centre|| - r |, any other the sum over its sole points of
    max(||c - p|| - r, 0).

    Args:
        points: (M, Q, 3) world metres: the centre, or the sole points.
        real: (M, Q) bool, False for padding.
        target: (M, 3) surface points.
        radius: (M,) metres.
        round_: (M,) bool.

    Returns:
        (M,) metres.
    """
    apart = (points - target[:, None]).square().sum(-1)
    dist = (apart + 1e-14).sqrt() - radius[:, None]
    cost = torch.where(round_[:, None], dist.abs(), dist.clamp(min=0.0)) * real
    return cost.sum(-1)


def planted_slide(first: Tensor, second: Tensor, real: Tensor) -> Tensor:
    """How far planted soles move from one frame to the next, (M,) metres.

    A sole moves as its slowest point does, so that rolling over heel or toe is no slide; smoothed
    within 2 mm of rest.

    Args:
        first: (M, Q, 3) sole points, world metres.
        second: (M, Q, 3) the same a frame later.
        real: (M, Q) bool, False for padding.
    """
    moved = (second - first).square().sum(-1)
    slowest = torch.where(real, moved, torch.inf).amin(-1)
    return (slowest + _REST_M**2).sqrt() - _REST_M
