"""From normalised actions to PD targets: PARC's absolute ones or residuals on the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from envs.tracking.config import ControlConfig
from parc_ray.character.kinematics import dof_to_joint_rot, joint_rot_to_dof
from parc_ray.character.rotations import quat_mul

if TYPE_CHECKING:
    from parc_ray.character.character import Character


def pd_targets(
    config: ControlConfig, character: Character, action: Tensor, ref_joint_rot: Tensor
) -> Tensor:
    """PD targets (N, D) in rad.

    Args:
        config: mode and scale.
        character: gives PARC's offsets and scales in absolute mode.
        action: (N, D) normalised.
        ref_joint_rot: (N, J, 4) reference one control step ahead (residual mode); the residual
            turns it in each joint's child frame.
    """
    if config.mode == "absolute":
        return character.action_offset + character.action_scale * action.clamp(-1.0, 1.0)
    residual = config.residual_scale_rad * action.clamp(-config.max_action, config.max_action)
    turned = quat_mul(ref_joint_rot, dof_to_joint_rot(character.skeleton, residual))
    return joint_rot_to_dof(character.skeleton, turned)
