"""The reference that the controller follows, at control steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import (
    dof_to_joint_rot,
    finite_velocities,
    forward_kinematics,
)
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import SimState


@dataclass(frozen=True)
class ReferenceTrack:
    """Reference states at T control steps.

    Attributes:
        state: leading dimension T; contact forces are zero.
        joint_rot: (T, J, 4) joint rotations.
        body_pos: (T, B, 3) world positions of the bodies.
    """

    state: SimState
    joint_rot: Tensor
    body_pos: Tensor

    @property
    def num_frames(self) -> int:
        """Number of control steps, the start included."""
        return self.state.root_pos.shape[0]

    def at(self, index: Tensor) -> ReferenceTrack:
        """Select frames; indices past the end repeat the last frame."""
        index = index.clamp(max=self.num_frames - 1)
        return ReferenceTrack(self.state.index(index), self.joint_rot[index], self.body_pos[index])


def reference_track(character: Character, clip: MotionClip) -> ReferenceTrack:
    """Reference states of a clip whose frame rate is the control rate.

    Velocities are forward differences, as in the published code.
    """
    skeleton = character.skeleton
    frames = clip.frames
    lin, ang, dof_vel = finite_velocities(
        skeleton, frames.root_pos, frames.root_rot, frames.dof, clip.fps
    )
    joint_rot = dof_to_joint_rot(skeleton, frames.dof)
    body_pos, _ = forward_kinematics(skeleton, frames.root_pos, frames.root_rot, joint_rot)
    force = torch.zeros(*frames.root_pos.shape[:1], skeleton.num_bodies, 3)
    state = SimState(frames.root_pos, frames.root_rot, lin, ang, frames.dof, dof_vel, force)
    return ReferenceTrack(state, joint_rot, body_pos)
