"""Cross-entropy search over knot sequences: pure tensor functions."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=32)
def knot_weights(knots: int, horizon: int) -> Tensor:
    """Linear interpolation matrix (H, K): residual = weights @ knots.

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


def sample_knots(
    mean: Tensor, std: Tensor, samples: int, limit: float, rng: torch.Generator
) -> Tensor:
    """Draw candidate knots (M, K, D) around ``mean`` (K, D); candidate 0 is the mean itself."""
    noise = torch.randn((samples, *mean.shape), generator=rng)
    noise[0] = 0.0
    return (mean + std * noise).clamp(-limit, limit)


def elite_statistics(knots: Tensor, cost: Tensor, num_elites: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (K, D) of the cheapest candidates.

    Args:
        knots: (M, K, D) candidates.
        cost: (M,) their costs; not-a-number counts as infinite.
        num_elites: how many candidates to keep.
    """
    order = torch.nan_to_num(cost, nan=torch.inf).argsort(stable=True)[:num_elites]
    elites = knots[order]
    return elites.mean(dim=0), elites.std(dim=0, unbiased=False)


def shift_knots(mean: Tensor, horizon: int, steps: int) -> Tensor:
    """Warm start (K, D) of the next plan: the present plan, moved on by ``steps`` control steps.

    The plan is evaluated at the control step that each knot will stand for; past its end the last
    value is held.
    """
    knots = mean.shape[0]
    plan = knot_weights(knots, horizon).to(mean) @ mean
    at = torch.linspace(0.0, horizon - 1.0, knots) + steps
    index = at.round().long().clamp(max=horizon - 1)
    return plan[index]
