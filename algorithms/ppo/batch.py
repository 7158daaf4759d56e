"""Returns and advantages on fixed [T, N] fragments.

Legend: T control steps, N environments, K ended episodes. An environment that ends is reset in the
same step, so the observation stored at t + 1 belongs to the next episode; the value of the ended
episode's last observation comes in separately. ``terminated`` (failed) makes the future worth
zero; ``truncated`` (stopped without failing) bootstraps; where both are set, the failure wins.
TD(lambda) as in the published code; Schulman et al. 2016 for the advantage form.
"""

from __future__ import annotations

import torch
from torch import Tensor


def next_values(
    values: Tensor,
    terminated: Tensor,
    final_index: Tensor,
    final_values: Tensor,
    bounds: tuple[float, float] | None = None,
) -> Tensor:
    """Value of what follows each step, V'.

    Args:
        values: (T + 1, N) values of the stored observations, the last row after the fragment.
        terminated: (T, N) bool.
        final_index: (K,) long, ``t * N + env`` of the steps that ended an episode.
        final_values: (K,) values of the last observations of those episodes.
        bounds: clamp on V' before failures are set to zero.

    Returns:
        (T, N): the next observation's value, the final observation's where the episode ended,
        zero where it failed.
    """
    follow = values[1:].clone()
    follow.view(-1).index_copy_(0, final_index, final_values.to(follow.dtype))
    if bounds is not None:
        follow.clamp_(*bounds)
    return follow.masked_fill_(terminated, 0.0)


def advantages(
    rewards: Tensor, values: Tensor, follow: Tensor, done: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates.

    ``A_t = r_t + gamma V'_t - V_t + gamma lam (1 - done_t) A_{t+1}``, zero beyond the fragment.

    Args:
        rewards: (T, N).
        values: (T, N) or (T + 1, N); only the first T rows are used.
        follow: (T, N) from :func:`next_values`.
        done: (T, N) bool, episode ended in this step for whatever reason.
        gamma: discount.
        lam: mixing.

    Returns:
        (T, N) advantages.
    """
    steps = rewards.shape[0]
    delta = rewards + gamma * follow - values[:steps]
    decay = (gamma * lam) * (~done).to(rewards.dtype)
    out = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for t in range(steps - 1, -1, -1):
        running = torch.addcmul(delta[t], decay[t], running)
        out[t] = running
    return out


def td_lambda(rewards: Tensor, follow: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """TD(lambda) returns in PARC's form; equal to advantages plus values.

    ``G_T = r_T + gamma V'_T`` and ``G_t = r_t + gamma [(1 - l_t) V'_t + l_t G_{t+1}]`` with
    ``l_t = lam (1 - done_t)``.

    Args:
        rewards: (T, N).
        follow: (T, N) from :func:`next_values`.
        done: (T, N) bool.
        gamma: discount.
        lam: mixing.

    Returns:
        (T, N) returns.
    """
    mix = lam * (~done).to(rewards.dtype)
    out = torch.empty_like(rewards)
    out[-1] = rewards[-1] + gamma * follow[-1]
    for t in range(rewards.shape[0] - 2, -1, -1):
        out[t] = rewards[t] + gamma * torch.lerp(follow[t], out[t + 1], mix[t])
    return out


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Share of the returns' variance that the values explain, 1 - Var(G - V) / Var(G); scalar."""
    return 1.0 - (returns - values).var() / returns.var().clamp_min(1e-12)
