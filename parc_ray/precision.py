"""Where bfloat16 is worth its rounding: processors that multiply it in hardware.

On a CPU without such instructions PyTorch multiplies matrices in bfloat16 seventy times slower than
in float32 (measured on one with AVX2: 1.05 against 70 GFlop/s). So ``auto`` asks first.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal

import torch

logger = logging.getLogger(__name__)

Precision = Literal["float32", "bfloat16", "auto"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "auto")


@cache
def bf16_is_native(device_type: str) -> bool:
    """Whether this machine's devices of a type (``cpu``, ``cuda``) multiply bfloat16 natively."""
    if device_type == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if device_type != "cpu":
        return False
    # Of PyTorch's own, undocumented: a release without them means float32, never a slow bfloat16.
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    found = any(getattr(torch.cpu, name, bool)() for name in probes)
    if not found:
        logger.info("this processor has no bfloat16 arithmetic: float32 is used where it may be")
    return found


def low_precision(precision: Precision, device: torch.device) -> bool:
    """Whether to compute in bfloat16 on ``device``: asked for, or ``auto`` and native there."""
    return precision == "bfloat16" or (precision == "auto" and bf16_is_native(device.type))
