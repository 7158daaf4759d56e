"""Foreign skeletons made of a character, so that the right answer of a retargeting is known."""

from __future__ import annotations

import numpy as np
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof
from parc_ray.data.retarget.joint_map import JointMap
from parc_ray.data.retarget.source import SourceMotion


def motion_of(character, frames=40, share=0.5, seed=0):
    """Smooth root position, root rotation and dofs within ``share`` of the joint ranges."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0.0, 2.0 * np.pi, frames)[:, None]
    low, high = character.skeleton.dof_limits.double().numpy().T
    wave = np.sin(t + rng.uniform(0, 6, len(low))) * rng.uniform(0.3, 1.0, len(low))
    dof = (low + high) / 2 * share + wave * share * (high - low) / 2
    root = np.concatenate([0.3 * t, 0.1 * np.sin(t), 0.8 + 0.05 * np.cos(t)], axis=1)
    turn = np.concatenate([0.1 * np.sin(t), 0.1 * np.cos(t), 0.3 * t], axis=1)
    quat = rot.quat_positive(rot.quat_from_exp(torch.from_numpy(turn)))
    return torch.from_numpy(root), quat, torch.from_numpy(dof)


def as_source(character, root_pos, root_rot, dof, *, size=1.0, frames_turn=None, fps=60.0):
    """The character's motion as a foreign one: larger, and with other rest frames.

    ``frames_turn`` (B, 4) turns the frame of each joint: R'_j = R_j F_j^-1.
    """
    skeleton = character.skeleton
    count = skeleton.num_bodies
    identity = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    turn = identity.repeat(count, 1) if frames_turn is None else frames_turn
    joints = dof_to_joint_rot(skeleton, dof)
    local = torch.cat((root_rot[:, None], joints), dim=1)
    rest = skeleton.rest_rot.double()
    offsets = skeleton.offsets.double() * size
    parents = [max(p, 0) for p in skeleton.parents]
    above = turn[parents].clone()
    above[0] = identity
    local = rot.quat_mul(rest.expand_as(local), local)
    local = rot.quat_mul(rot.quat_mul(above.expand_as(local), local), rot.quat_conj(turn))
    at_rest = rot.quat_mul(rot.quat_mul(above, rest), rot.quat_conj(turn))
    return SourceMotion(
        name="made",
        joint_names=tuple(f"j_{name}" for name in skeleton.body_names),
        parents=skeleton.parents,
        offsets=rot.quat_rotate(above, offsets),
        root_pos=root_pos * size,
        local_rot=local,
        fps=fps,
        rest_rot=at_rest,
    )


def own_map(character, **changes):
    """Every body follows the joint of its name."""
    bodies = {name: (f"j_{name}",) for name in character.skeleton.body_names}
    return JointMap(name="own", bodies=bodies, **changes)


def positions(character, frames):
    return fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)[0]
