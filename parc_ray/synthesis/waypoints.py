"""Points along paths: resampling, arc length and monotone progress."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

_LEVEL_M = 1e-3
"""Ground that differs by less is the same."""
_HALVINGS = 4
"""Widths tried where rounding a corner meets other ground."""


def resample_long_edges(points: Tensor, cell_size: float) -> Tensor:
    """Split edges longer than a diagonal step as the published code does.

    An edge of horizontal length d > sqrt(2) cell + 1 mm becomes linspace(ceil(d / cell) points)
    without its first point; all three coordinates are linear.

    Args:
        points: (K, 3) nodes, metres.
        cell_size: metres.

    Returns:
        (M, 3), M >= K.
    """
    parts = [points[:1]]
    for a, b in itertools.pairwise(points):
        dist = float((b - a)[:2].norm())
        if dist > math.sqrt(2.0) * cell_size + 1e-3:
            t = torch.linspace(0.0, 1.0, max(2, math.ceil(dist / cell_size - 1e-6)))[1:, None]
            parts.append(a + t.to(a) * (b - a))
        else:
            parts.append(b[None])
    return torch.cat(parts)


def arc_lengths(points: Tensor) -> Tensor:
    """Horizontal arc length (..., M) at each of the points (..., M, 3), metres, from 0."""
    step = (points[..., 1:, :2] - points[..., :-1, :2]).norm(dim=-1)
    return torch.cat([torch.zeros_like(step[..., :1]), step.cumsum(-1)], dim=-1)


def smooth_waypoints(
    points: Tensor,
    spacing_m: float,
    smooth_m: float = 0.8,
    terrain: Heightfield | None = None,
) -> Tensor:
    """Way-points at even arc length along a path whose corners are rounded.

    Each way-point is the mean of the path within half of ``smooth_m`` on both sides, so it stays
    within the box around that stretch: nothing overshoots.

    Args:
        points: (M, 3) path, metres.
        spacing_m: horizontal distance of the way-points along ``points``, metres (the last gap is
            adjusted so that they come out even).
        smooth_m: full width of the box filter over arc length that rounds the corners, metres; 0
            keeps the corners. The ends stay where they are, and so do the heights.
        terrain: where given, the width is halved around a way-point, and at last 0, until the
            ground under it is none that the path itself does not meet within the full width:
            rounding leads neither through a wall nor over a hole beside the path.

    Returns:
        (W, 3) with the path's first and last point at its ends.
    """
    arc = arc_lengths(points)
    total = float(arc[-1])
    count = max(1, round(total / spacing_m))
    s = torch.linspace(0.0, total, count + 1, dtype=points.dtype)
    batch = PathBatch.stack([points])
    out = batch.point_at(s[None])[0]
    if smooth_m <= 0 or count == 1:
        return out
    half = torch.minimum(torch.full_like(s, smooth_m / 2), torch.minimum(s, total - s))
    bound = None if terrain is None else _ground_met(batch, s, half, terrain)
    kept = out[:, :2].clone()
    open_ = torch.ones(len(s), dtype=torch.bool)
    for halving in range(_HALVINGS):
        mean = _around(batch, s, half / 2**halving)[..., :2].mean(1)
        good = open_
        if terrain is not None and bound is not None:
            ground = terrain.height_at(mean)
            good = open_ & (ground >= bound[0] - _LEVEL_M) & (ground <= bound[1] + _LEVEL_M)
        kept[good] = mean[good]
        open_ = open_ & ~good
        if not bool(open_.any()):
            break
    return torch.cat([kept, out[:, 2:]], dim=-1)


def _around(batch: PathBatch, s: Tensor, half: Tensor) -> Tensor:
    """Points (K, 9, 3) evenly over the stretches ``s`` - ``half`` to ``s`` + ``half`` (K,)."""
    t = torch.linspace(-1.0, 1.0, 9, dtype=s.dtype)
    return batch.point_at((s[:, None] + half[:, None] * t).reshape(1, -1))[0].reshape(len(s), 9, 3)


def _ground_met(
    batch: PathBatch, s: Tensor, half: Tensor, terrain: Heightfield
) -> tuple[Tensor, Tensor]:
    """Lowest and highest ground (K,) under stretches of a path, metres."""
    ground = terrain.height_at(_around(batch, s, half)[..., :2])
    return ground.amin(1), ground.amax(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PathBatch:
    """N paths of different lengths, padded by repeating the last point.

    Attributes:
        points: (N, M, 3) metres.
        arc: (N, M) horizontal arc length, metres.
    """

    points: Tensor
    arc: Tensor

    @classmethod
    def stack(cls, paths: Sequence[Tensor]) -> PathBatch:
        """Stack paths (M_i, 3) of two or more points each."""
        for k, path in enumerate(paths):
            if path.ndim != 2 or path.shape[0] < 2 or path.shape[1] != 3:
                raise InputError(
                    f"paths[{k}]: shape {tuple(path.shape)}; allowed: (M, 3), M >= 2; plan again"
                )
        longest = max(len(p) for p in paths)
        points = torch.stack([torch.cat([p, p[-1:].expand(longest - len(p), 3)]) for p in paths])
        return cls(points=points, arc=arc_lengths(points))

    @property
    def length(self) -> Tensor:
        """(N,) total arc length, metres."""
        return self.arc[:, -1]

    @property
    def goal(self) -> Tensor:
        """(N, 3) last points."""
        return self.points[:, -1]

    def index_select(self, ids: Tensor) -> PathBatch:
        """The paths ``ids`` (K,) long, repeats allowed."""
        return PathBatch(points=self.points[ids], arc=self.arc[ids])

    def point_at(self, s: Tensor) -> Tensor:
        """Points (N, K, 3) at arc lengths ``s`` (N, K), clamped to the path."""
        s = torch.minimum(s.clamp(min=0.0), self.length[:, None])
        right = torch.searchsorted(self.arc, s.contiguous()).clamp(1, self.arc.shape[1] - 1)
        a_s, b_s = self.arc.gather(1, right - 1), self.arc.gather(1, right)
        t = ((s - a_s) / (b_s - a_s).clamp(min=1e-9)).clamp(0.0, 1.0)
        index = right[..., None].expand(*right.shape, 3)
        a, b = self.points.gather(1, index - 1), self.points.gather(1, index)
        return a + t[..., None] * (b - a)

    def advance(self, xy: Tensor, progress: Tensor, reach_m: float) -> Tensor:
        """Monotone progress: arc length of the nearest point ahead.

        Only the stretch from ``progress`` to ``progress + reach_m`` is searched, so that a path
        that crosses itself is neither short-cut nor walked back.

        Args:
            xy: (N, 2) horizontal positions, metres.
            progress: (N,) arc length so far, metres.
            reach_m: length of the stretch searched, metres.

        Returns:
            (N,) new arc length, never less than ``progress``.
        """
        a, b = self.points[:, :-1, :2], self.points[:, 1:, :2]
        s_a, s_b = self.arc[:, :-1], self.arc[:, 1:]
        low = torch.maximum(s_a, progress[:, None])
        high = torch.minimum(s_b, progress[:, None] + reach_m)
        span = (s_b - s_a).clamp(min=1e-9)
        ab = b - a
        along = ((xy[:, None] - a) * ab).sum(-1) / ab.square().sum(-1).clamp(min=1e-12)
        s = torch.minimum(torch.maximum(s_a + along * span, low), high)
        near = a + ((s - s_a) / span)[..., None] * ab
        dist = (xy[:, None] - near).square().sum(-1)
        dist = torch.where(low <= high, dist, torch.inf)
        best = s.gather(1, dist.argmin(1, keepdim=True))[:, 0]
        return torch.maximum(best, progress)
