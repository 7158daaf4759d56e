"""Predicting a window as a correction of what its clean past frames already tell.

Where the past frames are given clean, most of a window follows from them: the next frame is the
last one plus almost the same velocity, later ones less and less so. ``PastAnchor`` is that linear
guess, f_k = f_r + g_k (f_r - f_{r-1}) for frame k, reference r and each feature f, with gains g_k
by least squares over the data, and the spread of what is left. The network then predicts the rest
in units of that spread: its mistakes right after the seam are as small as the motion there is
predictable. PARC has nothing of this kind; its network predicts whole frames.

Shapes: W windows, T frames, F features, P past frames.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parc_ray.motion.features import FeatureStats

SCALE_FLOOR = 1e-3
"""Least spread of the rest, in standard deviations of the feature."""


def fit_gains(features: Tensor, reference: int) -> tuple[Tensor, Tensor]:
    """Least-squares gains of the velocity, and the spread of the rest.

    Args:
        features: (W, T, F) canonical windows, not normalised.
        reference: index r of the last past frame; with r = 0 there is no velocity and no gain.

    Returns:
        g (T, F), and the root mean square (T, F) of f_k - f_r - g_k (f_r - f_{r-1}).
    """
    last = features[:, reference].double()
    speed = last - features[:, reference - 1].double() if reference else torch.zeros_like(last)
    power = speed.square().sum(0)
    gains, spreads = [], []
    for frame in features.unbind(1):  # one at a time: windows are many, and float64 is wide
        change = frame.double() - last
        gain = torch.where(power > 1e-12, (change * speed).sum(0) / power.clamp_min(1e-12), 0.0)
        gains.append(gain)
        spreads.append((change - gain * speed).square().mean(0).sqrt())
    return torch.stack(gains).to(features), torch.stack(spreads).to(features)


class PastAnchor(nn.Module):
    """The linear guess in normalised features; its tables are buffers, stored with the weights."""

    offset: Tensor
    of_last: Tensor
    of_before: Tensor
    scale: Tensor

    def __init__(self, num_frames: int, num_features: int, reference: int) -> None:
        """Neutral tables (guess 0, scale 1) until :meth:`fit` or a state dict fills them."""
        super().__init__()
        self.reference = reference
        shape = (num_frames, num_features)
        for name in ("offset", "of_last", "of_before"):
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    @torch.no_grad()
    def fit(self, features: Tensor, stats: FeatureStats) -> None:
        """Fill the tables from canonical windows (W, T, F), not normalised."""
        r = self.reference
        gain, rest = fit_gains(features, r)
        before = max(r - 1, 0)
        mean, std = stats.mean, stats.std
        self.of_last.copy_((1 + gain) * std[r] / std)
        self.of_before.copy_(-gain * std[before] / std)
        self.offset.copy_((mean[r] + gain * (mean[r] - mean[before]) - mean) / std)
        self.scale.copy_((rest / std).clamp_min(SCALE_FLOOR))

    def forward(self, x: Tensor, rest: Tensor) -> Tensor:
        """Guess plus scaled rest.

        Args:
            x: (N, T, F) normalised window whose past frames are clean.
            rest: (N, T, F) output of the network.

        Returns:
            (N, T, F) predicted normalised window.
        """
        r = self.reference
        last, before = x[:, r : r + 1], x[:, max(r - 1, 0) : max(r - 1, 0) + 1]
        guess = self.offset + self.of_last * last + self.of_before * before
        return guess + self.scale * rest
