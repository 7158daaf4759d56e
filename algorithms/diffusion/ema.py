"""Running average of weights, on ``torch.optim.swa_utils``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from algorithms.diffusion.config import TrainConfig


def make_ema(model: nn.Module, cfg: TrainConfig) -> AveragedModel:
    """Average of ``model`` with the decay of ``cfg``; its ``module`` is what samples."""
    return AveragedModel(model, multi_avg_fn=_averager(cfg.ema_decay, cfg.ema_ramp))


def update_ema(ema: AveragedModel, model: nn.Module, step: int, cfg: TrainConfig) -> None:
    """Take in the weights after optimiser step ``step``; a plain copy before ``ema_start``."""
    if step <= cfg.ema_start:
        ema.n_averaged.zero_()
    ema.update_parameters(model)


def _averager(
    decay: float, ramp: bool
) -> Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]:
    @torch.no_grad()
    def average(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Tensor | int) -> None:
        n = int(count)
        d = min(decay, (1 + n) / (10 + n)) if ramp else decay
        for mean, now in zip(averaged, current, strict=True):
            mean.lerp_(now, 1.0 - d)

    return average
