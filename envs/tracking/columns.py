"""Rotations and kinematics on columns: components lead, environments come last.

A batch of quaternions stored as (..., 4) makes every operation walk through memory in steps of
four numbers. Where the component axis leads instead, every operand is a contiguous row of N
numbers, and NumPy spends little on each call: for the few hundred environments of one process this
is several times faster. The conventions, and up to rounding the results, are those of
``parc_ray.character``. Everything is elementwise along N, so that no result depends on how many
others are computed beside it (PyTorch's arc tangent does, in its last digit).

Shapes: N environments, J joints, B bodies, D degrees of freedom; all float32.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parc_ray.character.skeleton import Skeleton, skeleton_constants

Columns = NDArray[np.float32]
_TINY = np.float32(1e-30)


def columns(x: Tensor) -> Columns:
    """(M, N) contiguous, of (N, M)."""
    return np.ascontiguousarray(x.numpy().T)


def product(a: Columns, b: Columns) -> Columns:
    """Hamilton product (4, ..., N) of ``a`` and ``b`` of one shape; ``b`` is applied first."""
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    out = np.empty_like(b)
    out[0] = aw * bx + ax * bw + ay * bz - az * by
    out[1] = aw * by - ax * bz + ay * bw + az * bx
    out[2] = aw * bz + ax * by - ay * bx + az * bw
    out[3] = aw * bw - ax * bx - ay * by - az * bz
    return out


def rotate(q: Columns, v: Columns) -> Columns:
    """Vectors (3, ..., N): ``v`` (3, ..., N or 1) turned by unit quaternions ``q`` (4, ..., N)."""
    x, y, z, w = q
    vx, vy, vz = v
    tx, ty, tz = y * vz - z * vy, z * vx - x * vz, x * vy - y * vx
    tx, ty, tz = tx + tx, ty + ty, tz + tz
    out = np.empty((3, *q.shape[1:]), dtype=np.float32)
    out[0] = vx + w * tx + y * tz - z * ty
    out[1] = vy + w * ty + z * tx - x * tz
    out[2] = vz + w * tz + x * ty - y * tx
    return out


def from_exp(v: Columns) -> Columns:
    """Quaternions (4, ..., N) of rotation vectors (3, ..., N)."""
    x, y, z = v
    half = np.sqrt(x * x + y * y + z * z + _TINY) * np.float32(0.5)
    out = np.empty((4, *v.shape[1:]), dtype=np.float32)
    np.multiply(v, np.sin(half) / (half + half), out=out[:3])
    np.cos(half, out=out[3])
    return out


def to_exp(q: Columns) -> Columns:
    """Rotation vectors (3, ..., N), angle in [0, pi], of quaternions (4, ..., N)."""
    x, y, z, w = q
    norm = np.sqrt(x * x + y * y + z * z + _TINY)
    half = np.arctan2(norm, np.abs(w))
    return q[:3] * np.copysign((half + half) / norm, w)


def six(q: Columns) -> Columns:
    """Images of x and z, (6, ..., N), under unit quaternions (4, ..., N)."""
    x, y, z, w = q
    out = np.empty((6, *q.shape[1:]), dtype=np.float32)
    xx, yy, xz, wy = x * x, y * y, x * z, w * y
    out[0] = 1.0 - 2.0 * (yy + z * z)
    out[1] = 2.0 * (x * y + w * z)
    out[2] = 2.0 * (xz - wy)
    out[3] = 2.0 * (xz + wy)
    out[4] = 2.0 * (y * z - w * x)
    out[5] = 1.0 - 2.0 * (xx + yy)
    return out


def slerp(a: Columns, b: Columns, t: Columns) -> Columns:
    """Shortest-path interpolation (4, ..., N) from ``a`` (t = 0) to ``b`` (t = 1); t is (N,)."""
    dot = (a * b).sum(0)
    b = np.where(dot < 0.0, -b, b)
    near, far = np.square(b - a).sum(0), np.square(b + a).sum(0)
    angle = np.float32(2.0) * np.arctan2(np.sqrt(near), np.sqrt(far))
    small = angle < 1e-3
    angle = np.where(small, np.float32(1.0), angle)
    below = np.where(small, 1.0 - t, np.sin((1.0 - t) * angle) / np.sin(angle))
    above = np.where(small, t, np.sin(t * angle) / np.sin(angle))
    out = below * a + above * b
    out /= np.copysign(np.sqrt(np.square(out).sum(0)), out[3])
    return out


def chord_angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle (...,) in [0, pi] between unit quaternions (..., 4): exactly zero where equal.

    Components come last here. The chord between two unit quaternions is 2 sin(angle / 4); of the
    two representatives of ``b`` the nearer one counts.
    """
    one, other = (a - b).square_().sum(-1), (a + b).square_().sum(-1)
    near, far = torch.minimum(one, other).sqrt_(), torch.maximum(one, other).sqrt_()
    return torch.atan2(near, far).mul_(4.0)


class Posing:
    """Forward kinematics of one character on columns.

    Joint rotations are kept in slots: spherical joints, then hinges, then fixed ones.

    Args:
        skeleton: the kinematic tree.
    """

    def __init__(self, skeleton: Skeleton) -> None:
        """Prepare index and offset arrays."""
        c = skeleton_constants(skeleton, torch.device("cpu"), torch.float32)
        slot = c.joint_slot.numpy()
        self._vectors = c.spherical_dof.numpy().reshape(-1, 3).T
        self._angles = c.hinge_dof.numpy()
        self._axes = c.hinge_axes.numpy().T[:, :, None]
        self._spherical_joint = c.spherical_joint.numpy()
        self._hinge_joint = c.hinge_joint.numpy()
        self._slot, self._order = slot, c.body_order.numpy()
        self._joint_of_slot = np.argsort(slot)
        self._levels: list[tuple[NDArray[np.int64], NDArray[np.int64], Columns | None, slice]] = []
        start, first = 0, 1
        for above, rest, joints in zip(c.parent_slots, c.rest_rot, c.joints, strict=True):
            turn = None if rest is None else rest.numpy().T[:, :, None]
            stop = first + len(joints)
            self._levels.append(
                (above.numpy() + start, slot[joints.numpy()], turn, slice(first, stop))
            )
            start, first = first, stop
        self._parents = np.concatenate([above for above, *_ in self._levels])
        self._offsets = np.concatenate([o.numpy() for o in c.offsets]).T[:, :, None]

    def joints(self, dof: Tensor) -> Columns:
        """Joint rotations (4, J, N) by slot, of degrees of freedom (N, D) rad."""
        rows = columns(dof)
        out = np.zeros((4, len(self._slot), rows.shape[-1]), dtype=np.float32)
        s = self._vectors.shape[1]
        h = s + len(self._angles)
        out[:, :s] = from_exp(rows[self._vectors])
        half = rows[self._angles] * np.float32(0.5)
        np.multiply(self._axes, np.sin(half), out=out[:3, s:h])
        np.cos(half, out=out[3, s:h])
        out[3, h:] = 1.0
        return out

    def place(self, root_pos: Tensor, root_rot: Tensor, joints: Columns) -> Tensor:
        """Body origins (N, B, 3) m, world.

        Args:
            root_pos: (N, 3) m, world.
            root_rot: (N, 4) xyzw.
            joints: (4, J, N) by slot.
        """
        count = joints.shape[-1]
        turn = np.empty((4, len(self._order), count), dtype=np.float32)
        turn[:, 0] = root_rot.numpy().T
        for above, slots, rest, level in self._levels:
            local = joints[:, slots]
            if rest is not None:
                local = product(np.broadcast_to(rest, local.shape), local)
            turn[:, level] = product(turn[:, above], local)
        reach = rotate(turn[:, self._parents], self._offsets)
        at = np.empty((3, len(self._order), count), dtype=np.float32)
        at[:, 0] = root_pos.numpy().T
        for above, _, _, level in self._levels:
            np.add(at[:, above], reach[:, level.start - 1 : level.stop - 1], out=at[:, level])
        return _rows(at[:, self._order])

    def by_joint(self, joints: Columns) -> Tensor:
        """Joint rotations (N, J, 4) in the skeleton's order, of (4, J, N) by slot."""
        return _rows(joints[:, self._slot])

    def dofs(self, joints: Columns) -> Columns:
        """Degrees of freedom (D, N) rad of joint rotations (4, J, N) in the skeleton's order."""
        out = np.empty((len(self._angles) + self._vectors.size, joints.shape[-1]), np.float32)
        out[self._vectors] = to_exp(joints[:, self._spherical_joint])
        hinge = joints[:, self._hinge_joint]
        sine = (hinge[:3] * self._axes).sum(0)
        sine, cosine = sine * np.copysign(np.float32(1.0), hinge[3]), np.abs(hinge[3])
        half = np.arctan2(sine, cosine)
        out[self._angles] = half + half
        return out

    def slots(self, joints: Columns) -> Columns:
        """Joint rotations (4, J, N) by slot, of those in the skeleton's order."""
        return joints[:, self._joint_of_slot]

    def turned(self, ref_dof: Tensor, ref_joint_rot: Tensor, residual: Tensor) -> Tensor:
        """Degrees of freedom (N, D): a reference pose turned in each joint's child frame.

        Args:
            ref_dof: (N, D) rad; the angles of hinges add up.
            ref_joint_rot: (N, J, 4), used for spherical joints.
            residual: (N, D) rad, rotation vectors and angles.
        """
        rows = columns(residual)
        ref = ref_joint_rot.numpy()[:, self._spherical_joint].transpose(2, 1, 0)
        out = np.empty_like(rows)
        turned = product(np.ascontiguousarray(ref), from_exp(rows[self._vectors]))
        out[self._vectors] = to_exp(turned)
        out[self._angles] = rows[self._angles] + ref_dof.numpy().T[self._angles]
        return torch.from_numpy(np.ascontiguousarray(out.T))


def _rows(x: Columns) -> Tensor:
    """(N, M, C) of (C, M, N)."""
    return torch.from_numpy(np.ascontiguousarray(x.transpose(2, 1, 0)))
