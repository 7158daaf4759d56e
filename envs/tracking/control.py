"""From normalised actions to PD targets (tracker.md 1.4 and 12 A)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from envs.tracking.config import ControlConfig
from parc_ray.character.targets import compose_residual

if TYPE_CHECKING:
    from parc_ray.character.character import Character


def pd_targets(
    config: ControlConfig, character: Character, action: Tensor, ref_dof: Tensor
) -> Tensor:
    """PD targets (N, D) in rad.

    Args:
        config: mode and scale.
        character: gives PARC's offsets and scales in absolute mode.
        action: (N, D) normalised.
        ref_dof: (N, D) rad, reference one control step ahead (residual mode).
    """
    if config.mode == "absolute":
        return character.action_offset + character.action_scale * action.clamp(-1.0, 1.0)
    residual = config.residual_scale_rad * action.clamp(-config.max_action, config.max_action)
    return compose_residual(character.skeleton, ref_dof, residual)
