"""Joint targets near a reference pose."""

from __future__ import annotations

from torch import Tensor

from parc_ray.character.kinematics import dof_to_joint_rot, joint_rot_to_dof
from parc_ray.character.rotations import quat_mul
from parc_ray.character.skeleton import Skeleton


def compose_residual(skeleton: Skeleton, reference: Tensor, residual: Tensor) -> Tensor:
    """Turn a reference pose by a residual in each joint's child frame.

    Args:
        skeleton: the character's tree.
        reference: (..., D) rad, degrees of freedom of the reference pose.
        residual: (..., D) rad, exponential maps (spherical) and angles (hinges).

    Returns:
        (..., D) rad: log(exp(reference) exp(residual)) for spherical joints, the sum for hinges.
    """
    turned = quat_mul(dof_to_joint_rot(skeleton, reference), dof_to_joint_rot(skeleton, residual))
    return joint_rot_to_dof(skeleton, turned)
