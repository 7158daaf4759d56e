"""Forward kinematics and velocities; pure, batched, differentiable.

Shapes: (..., T, ...) any leading dimensions, B bodies, J = B - 1 joints, D degrees of freedom.
World frame, metres, quaternions xyzw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.skeleton import Skeleton, skeleton_constants


def dof_to_joint_rot(skeleton: Skeleton, dof: Tensor) -> Tensor:
    """Joint rotations (..., J, 4), child relative to parent, of degrees of freedom (..., D) rad."""
    c = skeleton_constants(skeleton, dof.device, dof.dtype)
    spherical = dof.index_select(-1, c.spherical_dof)
    parts = [
        rot.quat_from_exp(spherical.unflatten(-1, (c.spherical_joint.numel(), 3))),
        rot.quat_from_axis_angle(c.hinge_axes, dof.index_select(-1, c.hinge_dof)),
    ]
    if c.num_fixed:
        identity = dof.new_zeros(*dof.shape[:-1], c.num_fixed, 4)
        identity[..., 3] = 1.0
        parts.append(identity)
    return torch.cat(parts, dim=-2).index_select(-2, c.joint_slot)


def joint_rot_to_dof(skeleton: Skeleton, joint_rot: Tensor) -> Tensor:
    """Degrees of freedom (..., D) rad of joint rotations (..., J, 4).

    Exponential map for spherical joints; for hinges the twist about the axis in (-pi, pi], any
    rotation off the axis is dropped; fixed joints are ignored.
    """
    c = skeleton_constants(skeleton, joint_rot.device, joint_rot.dtype)
    spherical = rot.quat_to_exp(joint_rot.index_select(-2, c.spherical_joint))
    hinge = rot.quat_positive(joint_rot.index_select(-2, c.hinge_joint))
    angle = 2.0 * torch.atan2((hinge[..., :3] * c.hinge_axes).sum(-1), hinge[..., 3])
    return torch.cat((spherical.flatten(-2), angle), dim=-1).index_select(-1, c.dof_slot)


def forward_kinematics(
    skeleton: Skeleton, root_pos: Tensor, root_rot: Tensor, joint_rot: Tensor
) -> tuple[Tensor, Tensor]:
    """Place every body: R_b = R_parent R_rest R_joint, p_b = p_parent + R_parent offset_b.

    Works through the tree level by level, all bodies of one depth at once.

    Args:
        skeleton: the kinematic tree.
        root_pos: (..., 3) m, world.
        root_rot: (..., 4) xyzw.
        joint_rot: (..., J, 4) xyzw, child relative to parent.

    Returns:
        Body origins (..., B, 3) m and body rotations (..., B, 4), world.
    """
    c = skeleton_constants(skeleton, root_pos.device, root_pos.dtype)
    pos, quat = root_pos[..., None, :], root_rot[..., None, :]
    all_pos, all_quat = [pos], [quat]
    for offset, rest, slot, joints in zip(
        c.offsets, c.rest_rot, c.parent_slots, c.joints, strict=True
    ):
        parent_quat = quat.index_select(-2, slot)
        local = joint_rot.index_select(-2, joints)
        if rest is not None:
            local = rot.quat_mul(rest, local)
        pos = pos.index_select(-2, slot) + rot.quat_rotate(parent_quat, offset)
        quat = rot.quat_mul(parent_quat, local)
        all_pos.append(pos)
        all_quat.append(quat)
    body_pos = torch.cat(all_pos, dim=-2).index_select(-2, c.body_order)
    body_rot = torch.cat(all_quat, dim=-2).index_select(-2, c.body_order)
    return body_pos, body_rot


def fk_from_dof(
    skeleton: Skeleton, root_pos: Tensor, root_rot: Tensor, dof: Tensor
) -> tuple[Tensor, Tensor]:
    """Body origins (..., B, 3) and rotations (..., B, 4), world, from dofs (..., D)."""
    return forward_kinematics(skeleton, root_pos, root_rot, dof_to_joint_rot(skeleton, dof))


def _forward_difference(values: Tensor) -> Tensor:
    """Repeat the last of the differences along dim -2, so that the length is kept."""
    return torch.cat((values, values[..., -1:, :]), dim=-2)


def finite_velocities(
    skeleton: Skeleton, root_pos: Tensor, root_rot: Tensor, dof: Tensor, fps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Velocities of a motion by forward differences; the last frame repeats the one before.

    Args:
        skeleton: the kinematic tree.
        root_pos: (..., T, 3) m, world, T >= 2.
        root_rot: (..., T, 4) xyzw.
        dof: (..., T, D) rad.
        fps: frames per second.

    Returns:
        Root linear velocity (..., T, 3) m/s and angular velocity (..., T, 3) rad/s, both world
        frame, and dof velocity (..., T, D) rad/s: for spherical joints the angular velocity in
        the child frame, log(q_t^-1 q_{t+1}) fps.
    """
    dt = 1.0 / fps
    lin = (root_pos[..., 1:, :] - root_pos[..., :-1, :]) / dt
    ang = rot.angular_velocity_w(root_rot[..., :-1, :], root_rot[..., 1:, :], dt)
    joint = dof_to_joint_rot(skeleton, dof)
    step = rot.quat_mul(rot.quat_conj(joint[..., :-1, :, :]), joint[..., 1:, :, :])
    dof_vel = joint_rot_to_dof(skeleton, step) / dt
    return _forward_difference(lin), _forward_difference(ang), _forward_difference(dof_vel)
