"""Positions and rotations of bodies and their derivatives by root and joint coordinates.

Coordinates of a frame, N = 6 + D: root position (3), rotation vector of the root relative to a
reference rotation (3), degrees of freedom (D). World frame, metres, radians.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.skeleton import Skeleton, skeleton_constants


def right_jacobian(v: Tensor) -> Tensor:
    """(..., 3, 3) such that exp(v + d) = exp(v) exp(J d) to first order, of vectors (..., 3)."""
    angle_sq = (v * v).sum(-1)
    small = angle_sq < 1e-8
    safe = torch.where(small, torch.ones_like(angle_sq), angle_sq)
    angle = safe.sqrt()
    a = torch.where(small, 0.5 - angle_sq / 24.0, (1.0 - torch.cos(angle)) / safe)
    b = torch.where(
        small, 1.0 / 6.0 - angle_sq / 120.0, (angle - torch.sin(angle)) / (safe * angle)
    )
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    hat = torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), -1).unflatten(-1, (3, 3))
    eye = torch.eye(3, dtype=v.dtype, device=v.device)
    return eye - a[..., None, None] * hat + b[..., None, None] * (hat @ hat)


@dataclass(frozen=True, eq=False)
class Kinematics:
    """Index tensors of one skeleton.

    Attributes:
        skeleton: the kinematic tree.
        owner: (N - 3,) body that each rotational coordinate moves, root first.
        moves: (B, N - 3) 1 where a coordinate moves a body.
    """

    skeleton: Skeleton
    owner: Tensor
    moves: Tensor

    @classmethod
    def of(cls, skeleton: Skeleton) -> Kinematics:
        """Kinematics of ``skeleton``."""
        owner = [0, 0, 0]
        for body, dofs in enumerate(skeleton.dof_slices):
            owner += [body] * (dofs.stop - dofs.start)
        order = [0, 1, 2]
        flat = [d + 3 for dofs in skeleton.dof_slices for d in range(dofs.start, dofs.stop)]
        by_column = dict(zip(order + flat, owner, strict=True))
        columns = [by_column[k] for k in range(len(owner))]
        above: list[set[int]] = []
        for body, parent in enumerate(skeleton.parents):
            above.append({body} | (above[parent] if parent >= 0 else set()))
        moves = [[float(o in above[b]) for o in columns] for b in range(skeleton.num_bodies)]
        return cls(skeleton, torch.tensor(columns), torch.tensor(moves, dtype=torch.float64))

    def place(self, x: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (T, B, 3) and rotations (T, B, 4) at coordinates (T, N)."""
        root = rot.quat_mul(reference, rot.quat_from_exp(x[:, 3:6]))
        return fk_from_dof(self.skeleton, x[:, :3], root, x[:, 6:])

    def axes(self, x: Tensor, quat: Tensor) -> Tensor:
        """Angular velocity (T, N - 3, 3) that one unit per second of each coordinate gives."""
        c = skeleton_constants(self.skeleton, x.device, x.dtype)
        local = x.new_zeros(*x[:, 3:].shape, 3)
        local[:, :3] = right_jacobian(x[:, 3:6]).transpose(-1, -2)
        spherical = x[:, 6:][:, c.spherical_dof].unflatten(-1, (c.spherical_joint.numel(), 3))
        columns = right_jacobian(spherical).transpose(-1, -2)
        local[:, 3 + c.spherical_dof] = columns.flatten(1, 2)
        local[:, 3 + c.hinge_dof] = c.hinge_axes
        return rot.quat_rotate(quat[:, self.owner], local)

    def jacobians(self, axes: Tensor, pos: Tensor, bodies: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives (T, K, 3, N) of positions and rotations of ``bodies`` (K,)."""
        arm = pos[:, bodies, None] - pos[:, None, self.owner]
        moves = self.moves[bodies][None, :, :, None]
        turn = axes[:, None] * moves
        shift = torch.linalg.cross(axes[:, None].expand_as(arm), arm) * moves
        eye = torch.eye(3, dtype=pos.dtype).expand(*turn.shape[:2], 3, 3)
        shift = torch.cat((eye, shift), dim=2).transpose(-1, -2)
        turn = torch.cat((torch.zeros_like(eye), turn), dim=2).transpose(-1, -2)
        return shift, turn
