"""PPO's loss terms for diagonal Gaussian policies: pure functions on (M, A) minibatches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_2PI = math.log(2.0 * math.pi)


def log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Log density of ``action`` (..., A) under N(mean, diag std^2), summed over actions."""
    scaled = (action - mean) * torch.exp(-log_std)
    per_action = -0.5 * scaled.square() - log_std - 0.5 * _LOG_2PI
    return per_action.sum(-1)


def gaussian_kl(mean_0: Tensor, log_std_0: Tensor, mean_1: Tensor, log_std_1: Tensor) -> Tensor:
    """KL(N_0 || N_1) in nats, summed over the last axis."""
    variance_ratio = torch.exp(2.0 * (log_std_0 - log_std_1))
    shift = ((mean_1 - mean_0) * torch.exp(-log_std_1)).square()
    return (0.5 * (variance_ratio + shift - 1.0) + (log_std_1 - log_std_0)).sum(-1)


def entropy(log_std: Tensor) -> Tensor:
    """Entropy in nats of a diagonal Gaussian with ``log_std`` (..., A), summed over actions."""
    return (log_std + 0.5 * (1.0 + _LOG_2PI)).sum(-1)


def surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Clipped policy loss, -E[min(rho A, clip(rho, 1 +- clip) A)], from log rho (M,)."""
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def bound_loss(mean: Tensor, bound: float = 1.0) -> Tensor:
    """E[sum_a relu(|mean_a| - bound)^2]: mean actions stay where the PD targets are not clamped."""
    return torch.relu(mean.abs() - bound).square().sum(-1).mean()


def adapt_lr(lr: float, kl: float, target: float, low: float, high: float) -> float:
    """One move of the KL controller: factor 1.5 down above 2 x target, up below half of it.

    Args:
        lr: present rate.
        kl: measured KL between the sampling policy and the present one, nats.
        target: KL aimed at.
        low: lowest rate.
        high: highest rate.

    Returns:
        The next rate within [low, high].
    """
    if kl > 2.0 * target:
        lr = lr / 1.5
    elif kl < 0.5 * target:
        lr = lr * 1.5
    return min(max(lr, low), high)
