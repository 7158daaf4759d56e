"""Rotation algebra on unit quaternions, all pure functions on tensors.

Quaternions are ordered (x, y, z, w) and stored with w >= 0. Angles are radians. Every function
broadcasts over leading dimensions, works in the dtype of its input and has finite gradients where
the rotation itself is smooth (in particular at the identity).
Conventions: docs/design/architecture.md, Units and frames.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL_EXP_SQ = 1e-6
_SMALL_VEC_SQ = 1e-7
_TINY_SQ = {torch.float32: 1e-30, torch.float64: 1e-200}


def _tiny(x: Tensor) -> float:
    return _TINY_SQ.get(x.dtype, 1e-6)


def _safe_norm(x: Tensor) -> Tensor:
    """Euclidean norm (...,) of (..., n) whose gradient at zero is zero instead of NaN."""
    sq = (x * x).sum(-1)
    zero = sq < _tiny(x)
    return torch.where(zero, torch.zeros_like(sq), torch.where(zero, 1.0, sq).sqrt())


def quat_mul(a: Tensor, b: Tensor) -> Tensor:
    """Hamilton product ``a b``: the rotation that applies ``b`` first. (..., 4) each."""
    ax, ay, az, aw = a.unbind(-1)
    bx, by, bz, bw = b.unbind(-1)
    return torch.stack(
        (
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
        ),
        dim=-1,
    )


def quat_conj(q: Tensor) -> Tensor:
    """Conjugate, the inverse rotation of a unit quaternion (..., 4)."""
    return torch.cat((-q[..., :3], q[..., 3:]), dim=-1)


def quat_rotate(q: Tensor, v: Tensor) -> Tensor:
    """Rotate vectors ``v`` (..., 3) by unit quaternions ``q`` (..., 4)."""
    x, y, z, w = q.unbind(-1)
    vx, vy, vz = v.unbind(-1)
    tx = 2.0 * (y * vz - z * vy)
    ty = 2.0 * (z * vx - x * vz)
    tz = 2.0 * (x * vy - y * vx)
    return torch.stack(
        (
            vx + w * tx + y * tz - z * ty,
            vy + w * ty + z * tx - x * tz,
            vz + w * tz + x * ty - y * tx,
        ),
        dim=-1,
    )


def quat_rotate_inv(q: Tensor, v: Tensor) -> Tensor:
    """Rotate vectors ``v`` (..., 3) by the inverse of unit quaternions ``q`` (..., 4)."""
    return quat_rotate(quat_conj(q), v)


def quat_normalize(q: Tensor) -> Tensor:
    """Scale quaternions (..., 4) to unit length; the zero quaternion becomes the identity."""
    norm = _safe_norm(q)[..., None]
    zero = norm == 0
    identity = torch.zeros_like(q)
    identity[..., 3] = 1.0
    return torch.where(zero, identity, q / torch.where(zero, torch.ones_like(norm), norm))


def quat_positive(q: Tensor) -> Tensor:
    """The representative of the same rotation with w >= 0, (..., 4)."""
    return torch.where(q[..., 3:] < 0, -q, q)


def quat_from_exp(v: Tensor) -> Tensor:
    """Quaternion (..., 4) of rotation vectors ``v`` (..., 3), axis times angle.

    Smooth everywhere, the zero vector included. w is negative for angles above pi.
    """
    sq = (v * v).sum(-1, keepdim=True)
    small = sq < _SMALL_EXP_SQ
    angle = torch.where(small, torch.ones_like(sq), sq).sqrt()
    factor = torch.where(small, 0.5 - sq / 48.0, torch.sin(0.5 * angle) / angle)
    w = torch.where(small, 1.0 - sq / 8.0, torch.cos(0.5 * angle))
    return torch.cat((v * factor, w), dim=-1)


def quat_to_exp(q: Tensor) -> Tensor:
    """Rotation vector (..., 3) of quaternions (..., 4), angle in [0, pi].

    Smooth at the identity; at angle pi the sign of the axis follows w >= 0.
    """
    q = quat_positive(q)
    vec, w = q[..., :3], q[..., 3:]
    sq = (vec * vec).sum(-1, keepdim=True)
    small = sq < _SMALL_VEC_SQ
    norm = torch.where(small, torch.ones_like(sq), sq).sqrt()
    w_safe = torch.where(small, w, torch.ones_like(w))
    near = 2.0 / w_safe - 2.0 * sq / (3.0 * w_safe**3)
    far = 2.0 * torch.atan2(norm, w) / norm
    return vec * torch.where(small, near, far)


def quat_from_axis_angle(axis: Tensor, angle: Tensor) -> Tensor:
    """Quaternion (..., 4) of a rotation by ``angle`` (...,) about unit ``axis`` (..., 3)."""
    half = 0.5 * angle[..., None]
    return torch.cat((axis * torch.sin(half), torch.cos(half)), dim=-1)


def quat_to_matrix(q: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) of unit quaternions (..., 4)."""
    x, y, z, w = q.unbind(-1)
    rows = (
        1.0 - 2.0 * (y * y + z * z),
        2.0 * (x * y - w * z),
        2.0 * (x * z + w * y),
        2.0 * (x * y + w * z),
        1.0 - 2.0 * (x * x + z * z),
        2.0 * (y * z - w * x),
        2.0 * (x * z - w * y),
        2.0 * (y * z + w * x),
        1.0 - 2.0 * (x * x + y * y),
    )
    return torch.stack(rows, dim=-1).unflatten(-1, (3, 3))


def quat_from_matrix(m: Tensor) -> Tensor:
    """Unit quaternions (..., 4), w >= 0, of rotation matrices (..., 3, 3).

    The outer product 4 q q^T is linear in the matrix; its row with the largest diagonal,
    normalised, is the quaternion, which is accurate for every angle.
    """
    m00, m01, m02, m10, m11, m12, m20, m21, m22 = m.flatten(-2).unbind(-1)
    outer = torch.stack(
        (
            torch.stack((1 + m00 - m11 - m22, m01 + m10, m02 + m20, m21 - m12), -1),
            torch.stack((m01 + m10, 1 - m00 + m11 - m22, m12 + m21, m02 - m20), -1),
            torch.stack((m02 + m20, m12 + m21, 1 - m00 - m11 + m22, m10 - m01), -1),
            torch.stack((m21 - m12, m02 - m20, m10 - m01, 1 + m00 + m11 + m22), -1),
        ),
        dim=-2,
    )
    best = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)
    index = best[..., None, None].expand(*best.shape, 1, 4)
    return quat_positive(quat_normalize(outer.gather(-2, index).squeeze(-2)))


def quat_to_6d(q: Tensor) -> Tensor:
    """Continuous representation (..., 6): the rotated x axis, then the rotated z axis."""
    x, y, z, w = q.unbind(-1)
    return torch.stack(
        (
            1.0 - 2.0 * (y * y + z * z),
            2.0 * (x * y + w * z),
            2.0 * (x * z - w * y),
            2.0 * (x * z + w * y),
            2.0 * (y * z - w * x),
            1.0 - 2.0 * (x * x + y * y),
        ),
        dim=-1,
    )


def quat_from_6d(r: Tensor) -> Tensor:
    """Quaternions (..., 4) of (..., 6); x is kept, z is made orthogonal to it."""
    x = torch.nn.functional.normalize(r[..., :3], dim=-1)
    z = r[..., 3:] - (x * r[..., 3:]).sum(-1, keepdim=True) * x
    z = torch.nn.functional.normalize(z, dim=-1)
    y = torch.linalg.cross(z, x)
    return quat_from_matrix(torch.stack((x, y, z), dim=-1))


def slerp(q0: Tensor, q1: Tensor, t: Tensor) -> Tensor:
    """Shortest-path spherical interpolation.

    Args:
        q0: (..., 4) unit quaternions at t = 0.
        q1: (..., 4) unit quaternions at t = 1.
        t: (...,) fractions.

    Returns:
        (..., 4) unit quaternions with w >= 0.
    """
    q1 = torch.where((q0 * q1).sum(-1, keepdim=True) < 0, -q1, q1)
    t = t[..., None]
    angle = 2.0 * torch.atan2(_safe_norm(q1 - q0), _safe_norm(q1 + q0))[..., None]
    small = angle < 1e-3
    safe = torch.where(small, torch.ones_like(angle), angle)
    a = torch.where(small, 1.0 - t, torch.sin((1.0 - t) * safe) / torch.sin(safe))
    b = torch.where(small, t + torch.zeros_like(angle), torch.sin(t * safe) / torch.sin(safe))
    return quat_positive(quat_normalize(a * q0 + b * q1))


def quat_angle(a: Tensor, b: Tensor) -> Tensor:
    """Geodesic angle (...,) in [0, pi] between rotations (..., 4); gradient zero where equal."""
    diff = quat_mul(a, quat_conj(b))
    return 2.0 * torch.atan2(_safe_norm(diff[..., :3]), diff[..., 3].abs())


def heading_angle(q: Tensor) -> Tensor:
    """Heading (...,) in (-pi, pi]: direction of the rotated x axis in the xy plane."""
    x, y, z, w = q.unbind(-1)
    return torch.atan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))


def yaw_quat(angle: Tensor) -> Tensor:
    """Rotation (..., 4) by ``angle`` (...,) about the z axis."""
    zero = torch.zeros_like(angle)
    return torch.stack((zero, zero, torch.sin(0.5 * angle), torch.cos(0.5 * angle)), dim=-1)


def heading_quat(q: Tensor) -> Tensor:
    """Rotation about z by the heading of ``q`` (..., 4)."""
    return yaw_quat(heading_angle(q))


def angular_velocity_w(q0: Tensor, q1: Tensor, dt: float) -> Tensor:
    """Mean world-frame angular velocity (..., 3) rad/s that takes ``q0`` to ``q1`` in ``dt`` s."""
    return quat_to_exp(quat_mul(q1, quat_conj(q0))) / dt


def wrap_angle(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi)."""
    return torch.remainder(angle + torch.pi, 2.0 * torch.pi) - torch.pi


def rotate_xy(v_xy: Tensor, angle: Tensor) -> Tensor:
    """Rotate plane vectors (..., 2) by ``angle`` (...,) anticlockwise."""
    c, s = torch.cos(angle), torch.sin(angle)
    x, y = v_xy.unbind(-1)
    return torch.stack((c * x - s * y, s * x + c * y), dim=-1)
