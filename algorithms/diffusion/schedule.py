"""Noise schedule and the deterministic DDIM step (PARC, eq. 13).

Noise levels are t = 0 .. T-1; level 0 is already slightly noisy. All tables are float64 buffers
and are cast where they meet data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from parc_ray.errors import InputError


def cosine_alpha_bar(steps: int, offset: float = 0.008) -> Tensor:
    """Cumulative signal fractions abar_t of the cosine schedule, (T,) float64.

    Args:
        steps: number of noise levels T.
        offset: s of Nichol and Dhariwal 2021, equation 17 (PARC: 0.008). Betas are clipped to
            [1e-4, 0.9999].
    """
    x = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    f = torch.cos((x + offset) / (1 + offset) * math.pi / 2) ** 2
    betas = (1 - f[1:] / f[:-1]).clamp(1e-4, 0.9999)
    return torch.cumprod(1 - betas, dim=0)


class NoiseSchedule(nn.Module):
    """Forward noising and DDIM coefficients for a model that predicts x0."""

    alpha_bar: Tensor

    def __init__(self, steps: int) -> None:
        """Build the tables for ``steps`` noise levels."""
        super().__init__()
        self.steps = steps
        self.register_buffer("alpha_bar", cosine_alpha_bar(steps), persistent=False)

    def add_noise(self, x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t = sqrt(abar_t) x0 + sqrt(1 - abar_t) noise.

        Args:
            x0: (N, T, F) normalised features.
            noise: (N, T, F) standard normal.
            t: (N,) noise levels.
        """
        abar = self.alpha_bar[t][:, None, None]
        return abar.sqrt().to(x0) * x0 + (1 - abar).sqrt().to(x0) * noise

    def snr(self, t: Tensor) -> Tensor:
        """Signal-to-noise ratio abar / (1 - abar) at levels t (N,)."""
        abar = self.alpha_bar[t]
        return abar / (1 - abar)

    def levels(self, stride: int) -> list[int]:
        """Noise levels visited at a stride, from T-1 down to 0.

        Raises:
            InputError: if the stride does not divide T-1, so that the first level would not be
                pure noise.
        """
        last = self.steps - 1
        if stride < 1 or last % stride:
            divisors = ", ".join(str(d) for d in range(1, last + 1) if last % d == 0)
            raise InputError(
                f"sampling.stride: {stride} does not divide {last}; allowed are {divisors}."
            )
        return list(range(last, -1, -stride))

    def ddim_coefficients(self, level: int, next_level: int | None) -> tuple[float, float]:
        """Factors of x0 and of x_t that give x at the next level (eta = 0).

        ``next_level`` None is the end: the predicted x0 itself.
        """
        if next_level is None:
            return 1.0, 0.0
        now, after = float(self.alpha_bar[level]), float(self.alpha_bar[next_level])
        of_xt = math.sqrt(1 - after) / math.sqrt(1 - now)
        return math.sqrt(after) - math.sqrt(now) * of_xt, of_xt
