"""Rotations as features: exponential maps as in the published code, or six numbers each.

The exponential map jumps at angle pi and stretches distances before it; the rotated x and z axes
are continuous everywhere (Zhou and others 2019), at twice the numbers. Hinges keep their angle in
both forms: their limits keep them off the jump.

Shapes: D degrees of freedom, S spherical joints, H hinges, J joints.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import dof_to_joint_rot, joint_rot_to_dof
from parc_ray.character.skeleton import Skeleton, skeleton_constants

RotationForm = Literal["exp", "6d"]
"""``exp``: exponential maps, 3 numbers (PARC). ``6d``: rotated x axis, then z axis, 6 numbers."""


def root_size(form: RotationForm) -> int:
    """Numbers of the root's rotation."""
    return 3 if form == "exp" else 6


def joints_size(skeleton: Skeleton, form: RotationForm) -> int:
    """Numbers of all joints: D, or 6 S + H."""
    spherical = sum(kind == "spherical" for kind in skeleton.joint_kinds)
    return skeleton.num_dofs + (0 if form == "exp" else 3 * spherical)


def encode_root(quat: Tensor, form: RotationForm) -> Tensor:
    """Features (..., 3 or 6) of quaternions (..., 4)."""
    return rot.quat_to_exp(quat) if form == "exp" else rot.quat_to_6d(quat)


def decode_root(values: Tensor, form: RotationForm) -> Tensor:
    """Quaternions (..., 4) of features, orthonormalised where six numbers are not a rotation."""
    return rot.quat_from_exp(values) if form == "exp" else rot.quat_from_6d(values)


def encode_joints(skeleton: Skeleton, dof: Tensor, form: RotationForm) -> Tensor:
    """Features of degrees of freedom (..., D): themselves, or spherical joints as 6-D, then hinges.

    Returns:
        (..., D) or (..., 6 S + H).
    """
    if form == "exp":
        return dof
    c = skeleton_constants(skeleton, dof.device, dof.dtype)
    balls = dof.index_select(-1, c.spherical_dof).unflatten(-1, (-1, 3))
    six = rot.quat_to_6d(rot.quat_from_exp(balls)).flatten(-2)
    return torch.cat((six, dof.index_select(-1, c.hinge_dof)), dim=-1)


def decode_joint_rot(skeleton: Skeleton, values: Tensor, form: RotationForm) -> Tensor:
    """Joint rotations (..., J, 4) of features; differentiable."""
    if form == "exp":
        return dof_to_joint_rot(skeleton, values)
    c = skeleton_constants(skeleton, values.device, values.dtype)
    balls = 6 * c.spherical_joint.numel()
    parts = [
        rot.quat_from_6d(values[..., :balls].unflatten(-1, (-1, 6))),
        rot.quat_from_axis_angle(c.hinge_axes, values[..., balls:]),
    ]
    if c.num_fixed:
        identity = values.new_zeros(*values.shape[:-1], c.num_fixed, 4)
        identity[..., 3] = 1.0
        parts.append(identity)
    return torch.cat(parts, dim=-2).index_select(-2, c.joint_slot)


def decode_dof(skeleton: Skeleton, values: Tensor, form: RotationForm) -> Tensor:
    """Degrees of freedom (..., D) rad of features; exponential maps are taken as they are."""
    if form == "exp":
        return values
    return joint_rot_to_dof(skeleton, decode_joint_rot(skeleton, values, form))
