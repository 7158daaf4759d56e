"""Early termination of tracking episodes (PARC, App. F): pure functions, world frame, SI."""

from __future__ import annotations

import torch
from torch import Tensor


def body_distance(body_pos: Tensor, ref_body_pos: Tensor) -> Tensor:
    """Root-relative distance (N, B-1) of every body but the root, from positions (N, B, 3)."""
    offset = ref_body_pos - body_pos
    return (offset[:, 1:] - offset[:, :1]).square().sum(-1).sqrt()


def body_too_far(body_pos: Tensor, ref_body_pos: Tensor, limits: Tensor) -> Tensor:
    """Bool (N,): some body is further from its reference than its limit (B-1,)."""
    return (body_distance(body_pos, ref_body_pos) > limits).any(-1)


def root_too_far(root_pos: Tensor, ref_root_pos: Tensor, limit: float) -> Tensor:
    """Bool (N,): the root (N, 3) is further than ``limit`` metres from its reference."""
    return (ref_root_pos - root_pos).square().sum(-1).sqrt() > limit


def not_finite(*tensors: Tensor) -> Tensor:
    """Bool (N,): some number of an environment is NaN or infinite (or their sum overflows)."""
    total = tensors[0].flatten(1).sum(-1)
    for tensor in tensors[1:]:
        total = total + tensor.flatten(1).sum(-1)
    return ~torch.isfinite(total)
