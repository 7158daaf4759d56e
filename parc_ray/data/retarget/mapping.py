"""The mapped pose: every body turned as the joint it is mapped to, the root where the hips are.

T frames, B bodies, D degrees of freedom; metres, radians, world frame, float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.skeleton import Skeleton
from parc_ray.data.retarget.align import leg_tops, mapped_children, rest_pose

_STRAIGHT = 0.15
_PERPENDICULAR = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedPose:
    """Start and reference of the inverse kinematics."""

    root_pos: Tensor
    """(T, 3) m."""
    root_rot: Tensor
    """(T, 4)."""
    dof: Tensor
    """(T, D) rad, continuous in time, not yet within the joint ranges."""
    wanted_rot: Tensor
    """(T, B, 4), world rotation that each mapped body should have."""


def map_pose(
    place: Tensor,
    turn: Tensor,
    align: Tensor,
    mapped: Mapping[int, int],
    character: Character,
) -> MappedPose:
    """Pose of the character that follows the joints' rotations.

    Works down the tree. Ball joints take the rotation whole; hinges what lies about their axis,
    after the bone above has turned about itself so that the hinge's plane is the limb's. What a
    hinge leaves over is made up for further down.

    Args:
        place: (T, J, 3) scaled positions of the source's joints.
        turn: (T, J, 4) their rotations.
        align: (B, 4) from ``align_rest``.
        mapped: joint of each mapped body.
        character: the target.
    """
    skeleton = character.skeleton
    wanted = {b: rot.quat_mul(turn[:, j], align[b].expand(len(turn), 4)) for b, j in mapped.items()}
    for body, child in _hinged_limbs(skeleton, mapped):
        wanted[body] = _turn_into_plane(skeleton, mapped, wanted, body, child)
    actual = [wanted[0]]
    dof = place.new_zeros(len(place), skeleton.num_dofs)
    rest_rot = skeleton.rest_rot.to(place)
    for body in range(1, skeleton.num_bodies):
        base = rot.quat_mul(actual[skeleton.parents[body]], rest_rot[body].expand_as(wanted[0]))
        kind, dofs = skeleton.joint_kinds[body], skeleton.dof_slices[body]
        local = torch.zeros_like(base)
        local[:, 3] = 1.0
        if body in wanted and kind == "spherical":
            local = rot.quat_mul(rot.quat_conj(base), wanted[body])
            dof[:, dofs] = continuous_exp(local)
        elif body in wanted and kind == "hinge":
            axis = skeleton.hinge_axes[body].to(place)
            angle = _hinge_angle(rot.quat_mul(rot.quat_conj(base), wanted[body]), axis)
            dof[:, dofs.start] = angle
            local = rot.quat_from_axis_angle(axis, angle)
        actual.append(rot.quat_mul(base, local))
    world = torch.stack([wanted.get(b, actual[b]) for b in range(skeleton.num_bodies)], dim=1)
    return MappedPose(
        root_pos=_root_pos(place, wanted[0], mapped, character),
        root_rot=wanted[0],
        dof=dof,
        wanted_rot=world,
    )


def continuous_exp(q: Tensor) -> Tensor:
    """Rotation vectors (T, 3) without jumps at angle pi, of rotations (T, 4) over time."""
    same = (q[1:] * q[:-1]).sum(-1) >= 0.0
    sign = torch.cat((q.new_ones(1), torch.where(same, 1.0, -1.0).to(q))).cumprod(0)
    q = q * sign[:, None]
    q = q * torch.where(q[:, 3].median() < 0.0, -1.0, 1.0)
    norm = q[:, :3].norm(dim=-1)
    factor = 2.0 * torch.atan2(norm, q[:, 3]) / norm.clamp(min=1e-12)
    near = (norm < 1e-9) & (q[:, 3] > 0.0)
    return q[:, :3] * torch.where(near, torch.full_like(norm, 2.0), factor)[:, None]


def _hinge_angle(q: Tensor, axis: Tensor) -> Tensor:
    """Angle (T,) rad of rotations (T, 4) about ``axis`` (3,), continuous in time."""
    angle = 2.0 * torch.atan2((q[:, :3] * axis).sum(-1), q[:, 3])
    angle = rot.wrap_angle(angle)
    jumps = rot.wrap_angle(angle.diff()) - angle.diff()
    angle = torch.cat((angle[:1], angle[1:] + jumps.cumsum(0)))
    return angle - 2.0 * torch.pi * torch.round(angle.median() / (2.0 * torch.pi))


def _hinged_limbs(skeleton: Skeleton, mapped: Mapping[int, int]) -> list[tuple[int, int]]:
    """Pairs of a ball-jointed bone and the hinged bone right below it, both mapped."""
    return [
        (skeleton.parents[body], body)
        for body in sorted(mapped)
        if skeleton.joint_kinds[body] == "hinge"
        and skeleton.parents[body] in mapped
        and skeleton.joint_kinds[skeleton.parents[body]] == "spherical"
    ]


def _turn_into_plane(
    skeleton: Skeleton,
    mapped: Mapping[int, int],
    wanted: Mapping[int, Tensor],
    body: int,
    child: int,
) -> Tensor:
    """World rotation (T, 4) of ``body``, turned about its bone so that the hinge bends the child.

    A limb that is nearly straight tells nothing about its plane; there the turn fades to none.
    """
    like = wanted[body]
    below = mapped_children(skeleton, mapped)[child]
    if not below:
        return like
    place, _ = rest_pose(skeleton)
    rest = skeleton.rest_rot[child].to(like)
    axis = skeleton.hinge_axes[child].to(like)
    bone = rot.quat_rotate_inv(rest, skeleton.offsets[child].to(like))
    next_bone = rot.quat_rotate_inv(rest_pose(skeleton)[1][child], place[below[0]] - place[child])
    if min(float(bone.norm()), float(next_bone.norm())) < 1e-6:
        return like
    bone, next_bone = bone / bone.norm(), next_bone / next_bone.norm()
    if max(abs(float(bone @ axis)), abs(float(next_bone @ axis))) > _PERPENDICULAR:
        return like
    limits = skeleton.dof_limits[skeleton.dof_slices[child].start]
    sense = 1.0 if float(limits.sum()) >= 0.0 else -1.0
    bend = torch.linalg.cross(axis, bone) * sense
    bend = bend / bend.norm()
    side = torch.linalg.cross(bone, bend)
    base = rot.quat_mul(like, rest.expand_as(like))
    seen = rot.quat_rotate_inv(base, rot.quat_rotate(wanted[child], next_bone.expand(len(like), 3)))
    angle = torch.atan2((seen * side).sum(-1), (seen * bend).sum(-1) + _STRAIGHT)
    own_bone = rot.quat_rotate(rest, bone)
    return rot.quat_mul(like, rot.quat_from_axis_angle(own_bone, angle))


def _root_pos(
    place: Tensor, root_rot: Tensor, mapped: Mapping[int, int], character: Character
) -> Tensor:
    """Root (T, 3) such that the middle between the hips is the source's; else the root itself."""
    tops = list(leg_tops(character, mapped).values())
    if not tops:
        return place[:, mapped[0]]
    centre = place[:, [mapped[b] for b in tops]].mean(1)
    own = rest_pose(character.skeleton)[0][tops].mean(0)
    return centre - rot.quat_rotate(root_rot, own.expand_as(centre))
