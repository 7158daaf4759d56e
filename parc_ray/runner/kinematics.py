"""Rotations and forward kinematics in numpy; the conventions are those of ``parc_ray.character``.

Quaternions xyzw, last axis; float32; any leading dimensions. B bodies, J joints, D dofs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
"""float32; float64 where MuJoCo's state is written."""
_TINY = 1e-12


def quat_mul(a: Floats, b: Floats) -> Floats:
    """Hamilton product; ``b`` is applied first."""
    ax, ay, az, aw = np.moveaxis(a, -1, 0)
    bx, by, bz, bw = np.moveaxis(b, -1, 0)
    return np.stack(
        (
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
            aw * bw - ax * bx - ay * by - az * bz,
        ),
        axis=-1,
    )


def quat_conj(q: Floats) -> Floats:
    """The inverse of unit quaternions."""
    return q * np.array([-1.0, -1.0, -1.0, 1.0], dtype=q.dtype)


def rotate(q: Floats, v: Floats) -> Floats:
    """Vectors (..., 3) turned by unit quaternions (..., 4)."""
    twice = 2.0 * np.cross(q[..., :3], v)
    return v + q[..., 3:] * twice + np.cross(q[..., :3], twice)


def exp_to_quat(v: Floats) -> Floats:
    """Quaternions of rotation vectors (..., 3) rad."""
    angle = np.linalg.norm(v, axis=-1, keepdims=True)
    factor = np.where(angle > _TINY, np.sin(angle / 2) / np.maximum(angle, _TINY), 0.5)
    return np.concatenate((v * factor, np.cos(angle / 2)), axis=-1).astype(v.dtype)


def quat_to_exp(q: Floats) -> Floats:
    """Rotation vectors (..., 3), angle in [0, pi]."""
    q = np.where(q[..., 3:] < 0, -q, q)
    norm = np.linalg.norm(q[..., :3], axis=-1, keepdims=True)
    angle = 2.0 * np.arctan2(norm, q[..., 3:])
    factor = np.where(norm > _TINY, angle / np.maximum(norm, _TINY), 2.0)
    return (q[..., :3] * factor).astype(q.dtype)


def six(q: Floats) -> Floats:
    """Images of x and z (..., 6)."""
    x, y, z, w = np.moveaxis(q, -1, 0)
    return np.stack(
        (
            1.0 - 2.0 * (y * y + z * z),
            2.0 * (x * y + w * z),
            2.0 * (x * z - w * y),
            2.0 * (x * z + w * y),
            2.0 * (y * z - w * x),
            1.0 - 2.0 * (x * x + y * y),
        ),
        axis=-1,
    ).astype(q.dtype)


def heading(q: Floats) -> Floats:
    """Angle (...) rad about z of the image of x."""
    axis = six(q)
    return np.arctan2(axis[..., 1], axis[..., 0])


def angle_between(a: Floats, b: Floats) -> Floats:
    """Angle (...) in [0, pi] between unit quaternions."""
    near = np.minimum(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))
    return 4.0 * np.arcsin(np.minimum(near / 2.0, 1.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """The kinematic tree.

    Attributes:
        names: of the B bodies.
        parents: (B,) index of each body's parent, -1 for the root.
        offsets: (B, 3) m, in the parent's frame.
        rest_rot: (B, 4) rotation relative to the parent at zero angles.
        kinds: "root", "spherical", "hinge" or "fixed" per body.
        dofs: (B, 2) first and last + 1 dof of each body.
        hinge_axes: (B, 3).
    """

    names: tuple[str, ...]
    parents: NDArray[np.int64]
    offsets: Floats
    rest_rot: Floats
    kinds: tuple[str, ...]
    dofs: NDArray[np.int64]
    hinge_axes: Floats

    @classmethod
    def read(cls, names: tuple[str, ...], kinds: tuple[str, ...], data: Mapping) -> Body:
        """From the arrays of a bundle."""
        keys = ("parents", "offsets", "rest_rot", "dofs", "hinge_axes")
        return cls(names=names, kinds=kinds, **{key: data[key] for key in keys})

    def joint_rot(self, dof: Floats) -> Floats:
        """Joint rotations (..., J, 4) of dofs (..., D)."""
        out = np.zeros((*dof.shape[:-1], len(self.names) - 1, 4), dtype=dof.dtype)
        out[..., 3] = 1.0
        for body, kind in enumerate(self.kinds):
            first, last = self.dofs[body]
            if kind == "spherical":
                out[..., body - 1, :] = exp_to_quat(dof[..., first:last])
            elif kind == "hinge":
                out[..., body - 1, :] = exp_to_quat(dof[..., first:last] * self.hinge_axes[body])
        return out

    def to_dof(self, joint_rot: Floats) -> Floats:
        """Dofs (..., D) of joint rotations (..., J, 4)."""
        out = np.zeros((*joint_rot.shape[:-2], int(self.dofs.max())), dtype=joint_rot.dtype)
        for body, kind in enumerate(self.kinds):
            first, last = self.dofs[body]
            quat = joint_rot[..., body - 1, :]
            if kind == "spherical":
                out[..., first:last] = quat_to_exp(quat)
            elif kind == "hinge":
                quat = np.where(quat[..., 3:] < 0, -quat, quat)
                sine = (quat[..., :3] * self.hinge_axes[body]).sum(-1)
                out[..., first] = 2.0 * np.arctan2(sine, quat[..., 3])
        return out

    def place(self, root_pos: Floats, root_rot: Floats, joint_rot: Floats) -> tuple[Floats, Floats]:
        """Origins (..., B, 3) m and rotations (..., B, 4) of all bodies, world."""
        pos, quat = [root_pos], [root_rot]
        for body in range(1, len(self.names)):
            parent = int(self.parents[body])
            pos.append(pos[parent] + rotate(quat[parent], self.offsets[body]))
            rest = np.broadcast_to(self.rest_rot[body], quat[parent].shape)
            quat.append(quat_mul(quat[parent], quat_mul(rest, joint_rot[..., body - 1, :])))
        return np.stack(pos, axis=-2), np.stack(quat, axis=-2)
