"""From normalised actions to PD targets: PARC's absolute ones or residuals on the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from envs.tracking.columns import Posing
from envs.tracking.config import ControlConfig
from envs.tracking.motion_bank import Reference

if TYPE_CHECKING:
    from parc_ray.character.character import Character


def pd_targets(
    config: ControlConfig, character: Character, posing: Posing, action: Tensor, ahead: Reference
) -> Tensor:
    """PD targets (N, D) in rad.

    Args:
        config: mode and scale.
        character: gives PARC's offsets and scales in absolute mode.
        posing: the character's kinematics.
        action: (N, D) normalised.
        ahead: reference one control step ahead, (N, ...) (residual mode); the residual turns it
            in each joint's child frame.
    """
    if config.mode == "absolute":
        return character.action_offset + character.action_scale * action.clamp(-1.0, 1.0)
    residual = action.clamp(-config.max_action, config.max_action).mul_(config.residual_scale_rad)
    return posing.turned(ahead.dof, ahead.joint_rot, residual)
