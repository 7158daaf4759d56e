"""Motions as vectors: canonical windows and their normalisation.

A window is seen from the root of a reference frame: its position becomes the origin and its
heading the x axis. A frame's vector is root position 3, root rotation as exponential map 3,
positions of the other bodies 3 (B - 1) in the same canonical frame, joint dofs D, contacts B.
Everything is differentiable. Order as in the published code. Rotations may have another form
(``rotation_features``); then theirs are the only sizes that change.

Shapes: (..., T, n), T frames, F features, B bodies, D degrees of freedom, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof, joint_rot_to_dof
from parc_ray.character.skeleton import Skeleton
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.rotation_features import (
    RotationForm,
    decode_dof,
    decode_root,
    encode_joints,
    encode_root,
    joints_size,
    root_size,
)

REFERENCE_FRAME = 1
STD_FLOOR = 1e-5


@dataclass(frozen=True, init=False)
class FeatureLayout:
    """Where each part of a frame's feature vector lies.

    Attributes:
        root_pos: slice of the root position, 3.
        root_rot: slice of the root rotation, 3 (exponential map) or 6.
        joint_pos: slice of the positions of bodies 1..B-1, 3 (B - 1), xyz per body.
        dof: slice of the joints, D (dofs) or 6 per spherical joint and 1 per hinge.
        contacts: slice of the contact labels, B.
        size: number of features F.
        skeleton: whose features they are.
        form: of rotations.
    """

    root_pos: slice
    root_rot: slice
    joint_pos: slice
    dof: slice
    contacts: slice
    size: int
    skeleton: Skeleton = field(repr=False, compare=False)
    form: RotationForm

    def __init__(self, skeleton: Skeleton, form: RotationForm = "exp") -> None:
        """Lay out the features of ``skeleton`` with rotations of a form."""
        object.__setattr__(self, "skeleton", skeleton)
        object.__setattr__(self, "form", form)
        parts = {
            "root_pos": 3,
            "root_rot": root_size(form),
            "joint_pos": 3 * skeleton.num_joints,
            "dof": joints_size(skeleton, form),
            "contacts": skeleton.num_bodies,
        }
        start = 0
        for name, width in parts.items():
            object.__setattr__(self, name, slice(start, start + width))
            start += width
        object.__setattr__(self, "size", start)


@dataclass
class CanonicalFrame:
    """Where a window's canonical frame stands in the world.

    Attributes:
        origin: (..., 3) m, root position of the reference frame.
        heading: (...,) rad, heading of its root.
    """

    origin: Tensor
    heading: Tensor

    def point_to_canonical(self, point_w: Tensor) -> Tensor:
        """World points (..., K, 3) in the canonical frame."""
        return rot.quat_rotate(
            rot.yaw_quat(-self.heading)[..., None, :], point_w - self.origin[..., None, :]
        )

    def point_to_world(self, point: Tensor) -> Tensor:
        """Canonical points (..., K, 3) in the world."""
        turn = rot.yaw_quat(self.heading)[..., None, :]
        return rot.quat_rotate(turn, point) + self.origin[..., None, :]

    def xy_to_canonical(self, xy_w: Tensor) -> Tensor:
        """World plane points (..., 2), one per window, in the canonical frame."""
        return rot.rotate_xy(xy_w - self.origin[..., :2], -self.heading)


def canonical_frame(frames: MotionFrames, ref_index: int = REFERENCE_FRAME) -> CanonicalFrame:
    """Canonical frame of windows (..., T) at frame ``ref_index`` (PARC: the second frame)."""
    return CanonicalFrame(
        origin=frames.root_pos[..., ref_index, :],
        heading=rot.heading_angle(frames.root_rot[..., ref_index, :]),
    )


def to_canonical(frames: MotionFrames, frame: CanonicalFrame) -> MotionFrames:
    """World windows (..., T) seen from ``frame`` (...); joints and contacts do not change."""
    turn = rot.yaw_quat(-frame.heading)[..., None, :]
    return MotionFrames(
        root_pos=frame.point_to_canonical(frames.root_pos),
        root_rot=rot.quat_positive(rot.quat_mul(turn, frames.root_rot)),
        dof=frames.dof,
        contacts=frames.contacts,
    )


def from_canonical(frames: MotionFrames, frame: CanonicalFrame) -> MotionFrames:
    """Canonical windows (..., T) placed in the world; the inverse of :func:`to_canonical`."""
    turn = rot.yaw_quat(frame.heading)[..., None, :]
    return MotionFrames(
        root_pos=frame.point_to_world(frames.root_pos),
        root_rot=rot.quat_positive(rot.quat_mul(turn, frames.root_rot)),
        dof=frames.dof,
        contacts=frames.contacts,
    )


def pack(
    skeleton: Skeleton,
    frames: MotionFrames,
    form: RotationForm = "exp",
    *,
    body_pos: Tensor | None = None,
) -> Tensor:
    """Feature vectors (..., T, F) of frames, body positions by forward kinematics.

    The frames are taken as they are: call :func:`to_canonical` first for a canonical window.

    Args:
        skeleton: the kinematic tree.
        frames: the frames.
        form: of rotations.
        body_pos: (..., T, B, 3) m, where the kinematics of these frames are known already.
    """
    if body_pos is None:
        body_pos, _ = fk_from_dof(skeleton, frames.root_pos, frames.root_rot, frames.dof)
    return torch.cat(
        (
            frames.root_pos,
            encode_root(frames.root_rot, form),
            body_pos[..., 1:, :].flatten(-2),
            encode_joints(skeleton, frames.dof, form),
            frames.contacts,
        ),
        dim=-1,
    )


def unpack(layout: FeatureLayout, x: Tensor) -> tuple[MotionFrames, Tensor]:
    """Frames (..., T) and body positions (..., T, B-1, 3) stored in feature vectors (..., T, F).

    The positions are the stored ones, which need not agree with the rotations; contacts are not
    clamped.
    """
    frames = MotionFrames(
        root_pos=x[..., layout.root_pos],
        root_rot=rot.quat_positive(decode_root(x[..., layout.root_rot], layout.form)),
        dof=decode_dof(layout.skeleton, x[..., layout.dof], layout.form),
        contacts=x[..., layout.contacts],
    )
    return frames, x[..., layout.joint_pos].unflatten(-1, (-1, 3))


def project(skeleton: Skeleton, layout: FeatureLayout, x: Tensor) -> Tensor:
    """The consistent feature vector (..., T, F) nearest in meaning to ``x``.

    Rotations are wrapped into [0, pi] (hinges into (-pi, pi]) or orthonormalised, body positions
    replaced by forward kinematics, contacts clamped to [0, 1], as the published code does after
    each denoising step.
    """
    frames, _ = unpack(layout, x)
    frames.dof = joint_rot_to_dof(skeleton, dof_to_joint_rot(skeleton, frames.dof))
    frames.contacts = frames.contacts.clamp(0.0, 1.0)
    return pack(skeleton, frames, form=layout.form)


@dataclass
class FeatureStats:
    """Mean and standard deviation per frame index and feature.

    Attributes:
        mean: (T, F).
        std: (T, F), at least 1e-5; a few features never vary (the reference root position).
    """

    mean: Tensor
    std: Tensor

    def normalise(self, x: Tensor) -> Tensor:
        """Features (..., T, F) with zero mean and unit variance."""
        return (x - self.mean) / self.std

    def denormalise(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`normalise`."""
        return x * self.std + self.mean

    def to(self, device: torch.device | str) -> FeatureStats:
        """The same statistics on another device."""
        return FeatureStats(mean=self.mean.to(device), std=self.std.to(device))


def compute_stats(layout: FeatureLayout, x: Tensor) -> FeatureStats:
    """Statistics of canonical feature vectors ``x`` (W, T, F), W >= 2 windows.

    Contacts keep mean 0 and standard deviation 1. Sums run in float64, frame by frame, so that no
    wide copy of all windows is made.
    """
    found = [torch.std_mean(frame.double(), dim=0, correction=0) for frame in x.unbind(1)]
    std, mean = (torch.stack(part) for part in zip(*found, strict=True))
    std = std.clamp(min=STD_FLOOR)
    mean[:, layout.contacts] = 0.0
    std[:, layout.contacts] = 1.0
    return FeatureStats(mean=mean.to(x.dtype), std=std.to(x.dtype))
