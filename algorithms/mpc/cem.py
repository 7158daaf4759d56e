"""Cross-entropy search over sequences of residuals: pure tensor functions.

A plan is one residual per control step, (H, D). Noise is drawn at a few knots and interpolated, so
that candidates are smooth; plans themselves stay sequences, so that moving them on in time loses
nothing.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=32)
def knot_weights(knots: int, horizon: int) -> Tensor:
    """Linear interpolation matrix (H, K): sequence = weights @ knots.

    The first knot acts at the first control step and the last knot at the last one.
    """
    position = torch.linspace(0.0, knots - 1.0, horizon)
    index = position.floor().clamp(max=knots - 2).long()
    share = position - index
    weights = torch.zeros(horizon, knots)
    rows = torch.arange(horizon)
    weights[rows, index] = 1.0 - share
    weights[rows, index + 1] += share
    return weights


@lru_cache(maxsize=32)
def knot_steps(knots: int, horizon: int) -> Tensor:
    """(K,) control steps nearest to the knots."""
    return torch.linspace(0.0, horizon - 1.0, knots).round().long()


def sample_plans(
    mean: Tensor, std: Tensor, samples: int, limit: float, rng: torch.Generator
) -> Tensor:
    """Draw candidate plans (M, H, D) around ``mean`` (H, D); candidate 0 is the mean itself.

    Args:
        mean: (H, D) rad.
        std: (K, D) rad, deviation of the noise at the knots.
        samples: M.
        limit: bound on every component, rad.
        rng: source of the noise.
    """
    noise = torch.randn((samples, *std.shape), generator=rng)
    noise[0] = 0.0
    plans = mean + knot_weights(std.shape[0], mean.shape[0]) @ (std * noise)
    return plans.clamp(-limit, limit)


def best(cost: Tensor, count: int) -> Tensor:
    """Indices (count,) of the cheapest candidates, cheapest first; not-a-number never wins."""
    return torch.nan_to_num(cost, nan=torch.inf).argsort(stable=True)[:count]


def spread(plans: Tensor, knots: int) -> Tensor:
    """Standard deviation (K, D) of plans (E, H, D) at the knots."""
    return plans[:, knot_steps(knots, plans.shape[1])].std(dim=0, unbiased=False)


def shift(plans: Tensor, steps: int) -> Tensor:
    """Plans (..., H, D) moved on by some control steps; their last residual is held."""
    horizon = plans.shape[-2]
    index = (torch.arange(horizon) + steps).clamp(max=horizon - 1)
    return plans[..., index, :]
