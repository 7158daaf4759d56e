"""Dropout whose random numbers are cheap on a CPU.

PyTorch draws one Bernoulli number per element there, a sixth of a training step of the published
network. Here one 64-bit draw decides four elements by 16 bits each; the keep probability is met to
2^-16 and outputs are scaled by the one that is used, so the mean is exact.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_LEVELS = 1 << 16


def keep_mask(shape: torch.Size, dropped: int) -> Tensor:
    """Bool mask on the CPU, each element False with probability ``dropped / 65536``."""
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    return words.view(torch.int16)[:count].view(shape) >= dropped - _LEVELS // 2


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        mask = keep_mask(x.shape, dropped)
        ctx.save_for_backward(mask)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (grad_outputs[0] * mask).mul_(ctx.scale), None


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero elements of ``x`` with probability ``p`` and scale the rest, in training only.

    On devices other than the CPU, and inside ``torch.compile``, this is PyTorch's own dropout.
    """
    dropped = round(p * _LEVELS)
    if not training or dropped == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p, training=True)
    result = _Dropout.apply(x, dropped)
    assert isinstance(result, Tensor)
    return result


class Dropout(nn.Module):
    """:func:`dropout` as a module without state."""

    def __init__(self, p: float) -> None:
        """Drop with probability ``p``."""
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return dropout(x, self.p, self.training)
