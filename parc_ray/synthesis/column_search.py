"""Nearest ground or air columns of single points, searched only where another one can win.

A point's own column settles most points: no other column is nearer than the border of the own cell,
and none can win that is not higher (for ground) or lower (for air). Edge cells extend outside the
grid.

Legend: N terrains, K points, w cells on each side that are searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from parc_ray.terrain.heightfield import HeightfieldBatch

Kind = Literal["out", "depth"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """Terrains with what the searches need beside them.

    Attributes:
        batch: N terrains.
        pooled: (N, X, Y) largest height within ``reach`` of a cell, metres.
        highest: (N, X, Y) largest height in a cell's window, metres.
        lowest: (N, X, Y) least height in a cell's window, metres.
        window: cells on each side that are searched.
    """

    batch: HeightfieldBatch
    pooled: Tensor
    highest: Tensor
    lowest: Tensor
    window: int

    @classmethod
    def of(cls, batch: HeightfieldBatch, reach_m: float, window: int) -> Ground:
        """Prepare ``batch`` for bodies whose points lie within ``reach_m`` of their origin."""
        return cls(
            batch=batch,
            pooled=_pool(batch.heights, math.ceil(reach_m / batch.cell_size)),
            highest=_pool(batch.heights, window),
            lowest=-_pool(-batch.heights, window),
            window=window,
        )

    def index_select(self, ids: Tensor) -> Ground:
        """The terrains ``ids`` (M,)."""
        return replace(
            self,
            batch=self.batch.index_select(ids),
            **{k: getattr(self, k)[ids] for k in ("pooled", "highest", "lowest")},
        )


def _pool(heights: Tensor, rings: int) -> Tensor:
    """Greatest of (N, X, Y) within ``rings`` cells."""
    size = 2 * rings + 1
    return torch.nn.functional.max_pool2d(heights[:, None], size, 1, rings)[:, 0]


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnColumns:
    """Points and the columns they are in.

    Attributes:
        cells: (K, 2) cell, integer valued, not clamped to the grid.
        flat: (K,) index of the clamped cell in the flattened heights.
        gap: (K, 2) position relative to the cell's centre, metres.
        rise: (K,) distance to the own column, metres >= 0.
        border: (K,) distance to the border of the own cell, metres.
    """

    cells: Tensor
    flat: Tensor
    gap: Tensor
    rise: Tensor
    border: Tensor

    @classmethod
    def of(cls, points: Tensor, row: Tensor, ground: Ground, kind: Kind) -> OwnColumns:
        """Look up points (K, 3) over terrains ``row`` (K,)."""
        t = ground.batch
        local = points[:, :2] - t.origin.index_select(0, row)
        cells = torch.round(local / t.cell_size)
        flat = _flat(cells, row, t)
        gap = local - cells * t.cell_size
        top = t.heights.reshape(-1).index_select(0, flat)
        rise = points[:, 2] - top if kind == "out" else top - points[:, 2]
        border = (t.cell_size / 2 - gap.abs()).amin(1)
        return cls(cells=cells, flat=flat, gap=gap, rise=rise.clamp(min=0.0), border=border)

    def open(self, ground: Ground, kind: Kind, below: Tensor) -> Tensor:
        """Indices of points that another column may bring nearer than ``below`` (K,) metres."""
        heights = ground.batch.heights.reshape(-1)
        ids = (self.border < below).nonzero()[:, 0]
        own = self.flat.index_select(0, ids)
        best = (ground.highest if kind == "out" else ground.lowest).reshape(-1)
        return ids[best.index_select(0, own) != heights.index_select(0, own)]


def _flat(cells: Tensor, row: Tensor, terrain: HeightfieldBatch) -> Tensor:
    """Index (K,) of cells (K, 2), clamped to terrains ``row``, in the flattened heights."""
    limit = (terrain.size - 1).index_select(0, row)
    ij = torch.minimum(cells.long().clamp_(min=0), limit)
    nx, ny = terrain.heights.shape[1:]
    return (row * nx + ij[:, 0]) * ny + ij[:, 1]


def _window_best(
    gap: Tensor,
    z: Tensor,
    cells: Tensor,
    row: Tensor,
    terrain: HeightfieldBatch,
    kind: Kind,
    w: int,
) -> tuple[Tensor, Tensor]:
    """Nearest of the (2 w + 1)^2 columns around each point: offsets (K, 2), squares (K,)."""
    size = terrain.cell_size
    axis = torch.arange(-w, w + 1, device=gap.device)
    steps = axis.to(gap.dtype) * size
    away = ((gap[:, :, None] - steps).abs_() - size / 2).clamp_(min=0.0).square_()
    square = (away[:, 0, :, None] + away[:, 1, None, :]).flatten(1)
    limit = (terrain.size - 1).index_select(0, row)
    ij = torch.minimum((cells.long()[:, :, None] + axis).clamp_(min=0), limit[:, :, None])
    nx, ny = terrain.heights.shape[1:]
    flat = ((row[:, None] * nx + ij[:, 0]) * ny)[:, :, None] + ij[:, 1, None, :]
    tops = terrain.heights.reshape(-1)[flat.flatten(1)]
    rise = z[:, None] - tops if kind == "out" else tops - z[:, None]
    least, which = (square + rise.clamp_(min=0.0).square_()).min(1)
    width = 2 * w + 1
    return torch.stack([which // width - w, which % width - w], dim=-1).to(gap.dtype), least


def search(
    points: Tensor, row: Tensor, own: OwnColumns, ids: Tensor, ground: Ground, kind: Kind
) -> tuple[Tensor, Tensor]:
    """Nearest column of the points ``ids`` (M,) among (K, 3).

    Where the own column is less than a cell away, only the ring around it can be nearer.

    Returns:
        (M, 2) cells, integer valued, not clamped; (M,) distances, metres.
    """
    cells, distance = own.cells[ids], own.rise[ids].clone()
    near = distance <= ground.batch.cell_size
    for some, w in ((near, min(1, ground.window)), (~near, ground.window)):
        k = some.nonzero()[:, 0]
        i = ids[k]
        offset, square = _window_best(
            own.gap[i], points[i, 2], own.cells[i], row[i], ground.batch, kind, w
        )
        cells[k] = cells[k] + offset
        distance[k] = square.sqrt()
    return cells, distance


def nearest_cells(points: Tensor, row: Tensor, ground: Ground, kind: Kind) -> Tensor:
    """Nearest column (``out``) or air column (``depth``) of each point; no gradient.

    Args:
        points: (K, 3) world metres.
        row: (K,) terrain of each point.
        ground: terrains.
        kind: which of the two distances.

    Returns:
        (K, 2) long cell indices, not clamped to the grid (edge cells extend).
    """
    with torch.no_grad():
        points = points.detach()
        own = OwnColumns.of(points, row, ground, kind)
        ids = own.open(ground, kind, own.rise)
        cells = own.cells.clone()
        cells[ids] = search(points, row, own, ids, ground, kind)[0]
        return cells.long()


def cell_tops(cells: Tensor, row: Tensor, terrain: HeightfieldBatch) -> Tensor:
    """Heights (K,) of unclamped cells (K, 2) of terrains ``row`` (K,)."""
    return terrain.heights.reshape(-1).index_select(0, _flat(cells, row, terrain))


def column_gap(
    points: Tensor, cells: Tensor, row: Tensor, terrain: HeightfieldBatch, kind: Kind
) -> Tensor:
    """Distance (K,) of points (K, 3) to given columns, differentiable in the points."""
    centers = terrain.origin.index_select(0, row) + cells.to(points.dtype) * terrain.cell_size
    gap = ((points[:, :2] - centers).abs() - terrain.cell_size / 2).clamp(min=0.0)
    tops = cell_tops(cells, row, terrain)
    rise = points[:, 2] - tops if kind == "out" else tops - points[:, 2]
    square = gap.square().sum(-1) + rise.clamp(min=0.0).square()
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def nearest_distance(points: Tensor, row: Tensor, ground: Ground, kind: Kind) -> Tensor:
    """Distance (K,) of points (K, 3) of terrains ``row`` to ground or air columns."""
    cells = nearest_cells(points, row, ground, kind)
    return column_gap(points, cells, row, ground.batch, kind)
