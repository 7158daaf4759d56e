"""Windows that begin beside the data and return to it.

A roll-out feeds a generator its own mistakes: a root some centimetres too high, a knee too bent.
Trained on perfect pasts only, it has never seen how to come back. Here training windows are moved
aside at their past frames and led back smoothly, so that pose and height above the ground are
regained within a window. PARC has nothing of this kind.

Shapes: N windows, T frames, D dofs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algorithms.diffusion.config import ConditioningConfig
from parc_ray.character.rotations import quat_from_exp, quat_mul, quat_positive
from parc_ray.motion.frames import MotionFrames

RETURN_SHARE = 0.7
"""Share of the new frames after which a window is back."""


def return_weights(num_frames: int, reference: int) -> Tensor:
    """What is left of the displacement, (T,): 1 up to the reference, half a cosine down to 0."""
    length = max(1, round(RETURN_SHARE * (num_frames - 1 - reference)))
    ahead = (torch.arange(num_frames) - reference).clamp(0, length) / length
    return 0.5 * (1.0 + torch.cos(math.pi * ahead))


def drifts(cfg: ConditioningConfig) -> bool:
    """Whether any displacement is switched on."""
    return max(cfg.drift_height, cfg.drift_turn, cfg.drift_tilt, cfg.drift_joint) > 0.0


def add_drift(
    rng: torch.Generator, frames: MotionFrames, cfg: ConditioningConfig, reference: int
) -> MotionFrames:
    """Displace world windows (N, T, ...) by normal amounts that fade along the window.

    Args:
        rng: source of the amounts.
        frames: windows; contacts stay.
        cfg: standard deviations.
        reference: last past frame.
    """
    n, t = frames.root_pos.shape[:2]
    w = return_weights(t, reference)[:, None]
    lift = cfg.drift_height * torch.randn(n, 1, 1, generator=rng)
    spread = torch.tensor([cfg.drift_tilt, cfg.drift_tilt, cfg.drift_turn])
    turn = spread * torch.randn(n, 1, 3, generator=rng)
    bend = cfg.drift_joint * torch.randn(n, 1, frames.dof.shape[-1], generator=rng)
    up = torch.tensor([0.0, 0.0, 1.0])
    return MotionFrames(
        root_pos=frames.root_pos + w * lift * up,
        root_rot=quat_positive(quat_mul(quat_from_exp(w * turn), frames.root_rot)),
        dof=frames.dof + w * bend,
        contacts=frames.contacts,
    )
