"""Mirror motions about the xz plane: y becomes -y, left becomes right.

Positions change the sign of y, quaternions (x, y, z, w) become (-x, y, -z, w), bodies exchange
sides, the terrain and the path are flipped.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot, joint_rot_to_dof
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames

MIRROR_SUFFIX = "_mirror"
_SYMMETRY_TOLERANCE = 1e-4


def mirror_points(points: Tensor) -> Tensor:
    """Points or vectors (..., 3) with y negated."""
    return points * points.new_tensor([1.0, -1.0, 1.0])


def mirror_quat(q: Tensor) -> Tensor:
    """Rotations (..., 4) seen in the mirror."""
    return q * q.new_tensor([-1.0, 1.0, -1.0, 1.0])


def check_symmetry(character: Character) -> None:
    """Raise InputError unless each body's counterpart is its mirror image."""
    skeleton, swap = character.skeleton, list(character.mirror_bodies)
    offset_error = (mirror_points(skeleton.offsets[swap]) - skeleton.offsets).abs().amax(-1)
    rest_error = rot.quat_angle(mirror_quat(skeleton.rest_rot[swap]), skeleton.rest_rot)
    for body, name in enumerate(skeleton.body_names):
        other = swap[body]
        parent, other_parent = skeleton.parents[body], skeleton.parents[other]
        same_parent = other_parent == (swap[parent] if parent >= 0 else -1)
        same_kind = skeleton.joint_kinds[body] == skeleton.joint_kinds[other]
        error = float(torch.maximum(offset_error[body], rest_error[body]))
        if error > _SYMMETRY_TOLERANCE or not same_parent or not same_kind:
            raise InputError(
                f"character {character.name}: body {name} is not the mirror image of "
                f"{skeleton.body_names[other]}; only symmetric characters can be mirrored"
            )


def mirror_frames(character: Character, frames: MotionFrames) -> MotionFrames:
    """Mirror image of frames (..., T); InputError where the character is not symmetric."""
    check_symmetry(character)
    skeleton = character.skeleton
    bodies = torch.tensor(character.mirror_bodies, device=frames.root_pos.device)
    joints = mirror_quat(dof_to_joint_rot(skeleton, frames.dof)).index_select(-2, bodies[1:] - 1)
    return MotionFrames(
        root_pos=mirror_points(frames.root_pos),
        root_rot=mirror_quat(frames.root_rot),
        dof=joint_rot_to_dof(skeleton, joints),
        contacts=frames.contacts.index_select(-1, bodies),
    )


def mirror_clip(character: Character, clip: MotionClip) -> MotionClip:
    """Mirror image of a clip with terrain (bounds included) and path; id plus "_mirror".

    The replay is dropped: a simulator does not reproduce a mirrored run bit for bit. Metrics and
    weight are kept, they do not depend on the side.
    """
    provenance = replace(clip.provenance, parents=(clip.clip_id,))
    return replace(
        clip,
        clip_id=clip.clip_id + MIRROR_SUFFIX,
        frames=mirror_frames(character, clip.frames),
        terrain=clip.terrain.mirrored(),
        path_nodes=None if clip.path_nodes is None else mirror_points(clip.path_nodes),
        provenance=provenance,
        replay=None,
        metrics=dict(clip.metrics),
    )
