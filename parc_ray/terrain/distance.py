"""Exact distances between points and the columns of a heightfield.

For a point p and a column c with horizontal gap ``rho(p, c)`` to its footprint and top ``h_c``

    out(p)   = min_c sqrt(rho^2 + max(p_z - h_c, 0)^2)    distance of a free point to the ground
    depth(p) = min_c sqrt(rho^2 + max(h_c - p_z, 0)^2)    distance of a buried point to the air

and at most one of the two is non-zero for a point over the grid. A point's own column settles most
points: others are farther by the way to the border of the cell, and within reach none may be
higher (or lower, for air) by enough to make up for it. The rest look at a square window around
their cell, as wide as can matter; k rings are exact for results below ``k * cell_size``. The
search runs without gradient, then the distance to the winning column is computed again, so that
gradients flow through that column only.

Legend: N terrains, P points per terrain, M = N * P, X, Y cells, S stored terrains, C columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from parc_ray.terrain.heightfield import HeightfieldBatch

OffGrid = Literal["free", "extend", "code"]
"""What lies outside the grid.

free: nothing; points there cost 0, and buried points over the grid leave it only upwards or
sideways into air over the grid. extend: the edge cells go on for ever. code: as the published
code, neither ground nor air, so a point outside counts as buried by its lateral distance.
"""

Kind = Literal["out", "depth"]

_CHUNK_CPU = 1 << 16
_CHUNK_GPU = 1 << 25
_SLAB = 1 << 21
_FAR_CELLS = 1e6
_LEVELS = (1, 2, 4, 8)
"""Reaches in cells over which the extreme heights are prepared; beyond, that of the terrain."""
_WINDOWS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Widths of windows that points share."""


def column_distance(
    points: Tensor,
    heights: Tensor,
    origin: Tensor,
    cell_size: float,
    *,
    kind: Kind,
    size: Tensor | None = None,
    window: int = 2,
    off_grid: OffGrid = "free",
    exact: bool = False,
) -> Tensor:
    """Distance of points to ground (``out``) or air (``depth``) columns: the tensor kernel.

    Args:
        points: (N, P, 3) world metres; the result has its dtype.
        heights: (N, X, Y) tops of the columns, metres; may be an expanded view.
        origin: (N, 2) world xy of the centre of cell (0, 0).
        cell_size: metres.
        kind: which of the two distances.
        size: (N, 2) long, true cells of padded terrains; None means X, Y for all.
        window: rings around the own cell; exact for results below ``window * cell_size``, beyond
            that an upper bound.
        off_grid: see ``OffGrid``.
        exact: keep adding rings until every point is exact; ``window`` is then ignored.

    Returns:
        (N, P) metres >= 0, differentiable in ``points`` and ``heights`` through the winner.
    """
    if window < 0:
        raise ValueError(f"window: {window} is not allowed; give a number of rings >= 0")
    n = points.shape[0]
    grid = (heights.shape[1], heights.shape[2])
    if size is None:
        size = torch.tensor(grid, device=points.device).expand(n, 2)
    heights = heights.to(points.dtype)
    origin = origin.to(points.dtype)
    rings = None if exact else window
    slab = max(1, _SLAB // max(1, n))
    with torch.no_grad():
        found = [
            _winning_cells(part, heights, origin, cell_size, size, kind, rings, off_grid)
            for part in points.detach().split(slab, dim=1)
        ]
    cells = torch.cat(found, dim=1)
    inside = torch.minimum(cells.clamp(min=0), (size - 1)[:, None])
    table, row = _table(heights, size)
    tops = table.reshape(-1)[row[:, None] + inside[..., 0] * grid[1] + inside[..., 1]]
    centers = origin[:, None] + cells.to(points.dtype) * cell_size
    gap = ((points[..., :2] - centers).abs() - cell_size / 2).clamp(min=0.0)
    rise = (tops - points[..., 2]) if kind == "depth" else (points[..., 2] - tops)
    square = gap.square().sum(-1) + rise.clamp(min=0.0).square()
    positive = square > 0
    if off_grid == "free":
        positive = positive & _over_grid(points, origin, cell_size, size)
    # The inner "where" keeps the infinite slope of the root at zero out of the gradient.
    root = torch.where(positive, square, 1.0).sqrt()
    value = torch.where(positive, root, torch.zeros_like(square))
    return torch.where(square.isnan(), square, value)


def outside_distance(
    points: Tensor,
    terrain: HeightfieldBatch,
    window: int = 2,
    *,
    off_grid: OffGrid = "free",
    exact: bool = False,
) -> Tensor:
    """Distance of free points (N, ..., 3) to the ground, 0 inside it; shape (N, ...), metres."""
    return _batched(points, terrain, "out", window, off_grid, exact)


def penetration_depth(
    points: Tensor,
    terrain: HeightfieldBatch,
    window: int = 2,
    *,
    off_grid: OffGrid = "free",
    exact: bool = False,
) -> Tensor:
    """Depth of buried points (N, ..., 3) below the nearest air, 0 in the air; (N, ...), metres."""
    return _batched(points, terrain, "depth", window, off_grid, exact)


def signed_distance(
    points: Tensor,
    terrain: HeightfieldBatch,
    window: int = 2,
    *,
    off_grid: OffGrid = "free",
    exact: bool = False,
) -> Tensor:
    """Outside distance minus penetration depth of points (N, ..., 3); (N, ...), metres."""
    out = outside_distance(points, terrain, window, off_grid=off_grid, exact=exact)
    return out - penetration_depth(points, terrain, window, off_grid=off_grid, exact=exact)


def _batched(
    points: Tensor,
    terrain: HeightfieldBatch,
    kind: Kind,
    window: int,
    off_grid: OffGrid,
    exact: bool,
) -> Tensor:
    n = len(terrain)
    flat = points.reshape(n, -1, 3)
    value = column_distance(
        flat,
        terrain.heights,
        terrain.origin,
        terrain.cell_size,
        kind=kind,
        size=terrain.size,
        window=window,
        off_grid=off_grid,
        exact=exact,
    )
    return value.reshape(points.shape[:-1])


def _over_grid(points: Tensor, origin: Tensor, cell_size: float, size: Tensor) -> Tensor:
    """Bool (N, P): whether points lie over the physical ground."""
    local = points[..., :2] - origin[:, None] + cell_size / 2
    high = (size * cell_size).to(points.dtype)[:, None]
    return ((local >= 0.0) & (local <= high)).all(-1)


def _winning_cells(
    points: Tensor,
    heights: Tensor,
    origin: Tensor,
    cell_size: float,
    size: Tensor,
    kind: Kind,
    window: int | None,
    off_grid: OffGrid,
) -> Tensor:
    """Cell (N, P, 2) long nearest in the sense of ``kind``; not clamped when edges extend."""
    n, p = points.shape[:2]
    limit = (size - 1).to(points.dtype)[:, None]
    place = points[..., :2] - origin[:, None]
    cells = torch.round(place / cell_size)
    clamped = torch.minimum(cells.clamp(min=0.0), limit)
    clamped = torch.where(clamped.isnan(), torch.zeros_like(clamped), clamped)
    start = clamped
    widest = max(heights.shape[1:])
    if off_grid == "extend":
        start = cells.nan_to_num(0.0).clamp(min=-_FAR_CELLS, max=_FAR_CELLS)
        widest *= 5
    search = _WindowSearch(
        local=place - start * cell_size,
        z=points[..., 2],
        start=start.long(),
        inside=clamped.long(),
        heights=heights,
        size=size,
        cell_size=cell_size,
        sign=1.0 if kind == "depth" else -1.0,
        extend=off_grid == "extend",
    )
    skip = ~_over_grid(points, origin, cell_size, size) if off_grid == "free" else None
    search.run(widest if window is None else min(window, widest), skip)
    return (search.start + search.offset).view(n, p, 2)


def _table(heights: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Stored terrains (1 or N, X, Y) and where each of N rows begins in them, flattened.

    An expanded batch is stored once: all its rows then read the same memory.
    """
    n, x, y = heights.shape
    if n > 1 and heights.stride(0) == 0 and bool((size == size[:1]).all()):
        return heights[:1], torch.zeros(n, dtype=torch.long, device=heights.device)
    return heights, torch.arange(n, device=heights.device) * (x * y)


def _extremes(table: Tensor, sign: float, reach: int) -> Tensor:
    """(L, S X Y): the height within each level's reach that no column beats, the last of all.

    Levels that are wider than ``reach`` cells are left out, but for the last one.
    """
    now = -sign * table[:, None]
    out, done = [], 0
    for cells in _LEVELS:
        if cells >= 2 * max(1, reach):
            break
        k = cells - done
        now = torch.nn.functional.max_pool2d(now, (2 * k + 1, 1), 1, (k, 0))
        now = torch.nn.functional.max_pool2d(now, (1, 2 * k + 1), 1, (0, k))
        out.append(now)
        done = cells
    out.append(now.amax((-2, -1), keepdim=True).expand_as(now))
    return -sign * torch.stack(out).reshape(len(out), -1)


class _WindowSearch:
    """State of the search: the best column so far of each of M points."""

    def __init__(
        self,
        *,
        local: Tensor,
        z: Tensor,
        start: Tensor,
        inside: Tensor,
        heights: Tensor,
        size: Tensor,
        cell_size: float,
        sign: float,
        extend: bool,
    ) -> None:
        self.heights, self.size, self.cell_size = heights, size, cell_size
        self.sign, self.extend = sign, extend
        self.local, self.z = local.reshape(-1, 2), z.reshape(-1)
        self.start, self.offset = start.reshape(-1, 2), torch.zeros_like(start).reshape(-1, 2)
        self.table, row = _table(heights, size)
        self.row = torch.arange(len(row), device=z.device).repeat_interleave(z.shape[1])
        self.flat = (row[:, None] + inside[..., 0] * heights.shape[2] + inside[..., 1]).reshape(-1)
        half = cell_size / 2
        apart = self.local.abs()
        self.away = (apart - half).clamp(min=0.0).square().sum(-1)
        # Next to a point outside the grid, the second column is a whole cell farther.
        self.border = torch.where(apart > half, cell_size, half - apart).amin(-1)
        tops = self.table.reshape(-1)[self.flat]
        self.best = (sign * (tops - self.z)).clamp(min=0.0).square()
        self.chunk = _CHUNK_GPU if z.is_cuda else _CHUNK_CPU

    def run(self, limit: int, skip: Tensor | None) -> None:
        """Look ``limit`` rings far at most; points of ``skip`` (N, P) keep their own column."""
        rise = self.best.sqrt()
        open_ = rise > self.border
        if skip is not None:
            open_ &= ~skip.reshape(-1)
        ids = open_.nonzero().squeeze(1)
        if limit < 1 or ids.numel() == 0:
            return
        floor = self._floor(ids, rise[ids], limit)
        ids, floor = self._still(ids, floor, 0)
        if ids.numel() == 0:
            return
        self._look(ids, 1)
        ids, floor = self._still(ids, floor, 1)
        if limit < 2 or ids.numel() == 0:
            return
        rings = self._rings(ids, floor).clamp(max=limit)
        widths = [w for w in _WINDOWS if w < limit] + [limit]
        which = torch.searchsorted(torch.tensor(widths, device=rings.device), rings)
        for k in which.unique().tolist():
            self._look(ids[which == k], widths[k])

    def _floor(self, ids: Tensor, rise: Tensor, limit: int) -> Tensor:
        """Square of the vertical distance that no column in reach of points ``ids`` beats."""
        reach = (rise / self.cell_size).clamp(max=float(limit))
        levels = _extremes(self.table, self.sign, int(reach.amax().ceil()))
        edges = torch.tensor(_LEVELS[: len(levels) - 1], device=rise.device, dtype=rise.dtype)
        level = torch.searchsorted(edges, reach.contiguous())
        extreme = levels.reshape(-1)[level * levels.shape[1] + self.flat[ids]]
        return (self.sign * (extreme - self.z[ids])).clamp(min=0.0).square()

    def _rings(self, ids: Tensor, floor: Tensor) -> Tensor:
        """Rings (long) that can hold a nearer column than the best one of points ``ids``."""
        across = (self.best[ids] - floor).clamp(min=0.0).sqrt() - self.border[ids]
        return (across / self.cell_size).ceil().clamp(min=0.0, max=1e6).long()

    def _still(self, ids: Tensor, floor: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        """Points of ``ids`` that need more than ``seen`` rings, with their floors."""
        more = self._rings(ids, floor) > seen
        return ids[more], floor[more]

    def _look(self, ids: Tensor, rings: int) -> None:
        """Compare all columns up to ``rings`` away with the best ones, chunk by chunk."""
        axis = torch.arange(-rings, rings + 1, device=self.z.device)
        count = len(axis)
        table, base = self._padded(ids, rings)
        columns = (axis[:, None] * table.shape[2] + axis).reshape(-1, 1)
        flat = table.reshape(-1)
        shift = (axis.to(self.z.dtype) * self.cell_size)[:, None]
        for part in torch.arange(len(ids), device=ids.device).split(max(1, self.chunk // count**2)):
            i = ids[part]
            gap = [
                ((self.local[i, a] - shift).abs_() - self.cell_size / 2).clamp_(min=0.0).square_()
                for a in (0, 1)
            ]
            square = (flat[base[part] + columns] - self.z[i]).mul_(self.sign).clamp_(min=0.0)
            square = square.square_().view(count, count, -1).add_(gap[0][:, None]).add_(gap[1])
            least, which = square.flatten(0, 1).min(dim=0)
            # The own column was compared without the way to a point outside the grid.
            least = least - self.away[i]
            better = least < self.best[i]
            found = torch.stack([which // count, which % count], dim=-1) - rings
            self.best[i] = torch.where(better, least, self.best[i])
            self.offset[i] = torch.where(better[:, None], found, self.offset[i])

    def _padded(self, ids: Tensor, rings: int) -> tuple[Tensor, Tensor]:
        """Terrains with a margin, and the index in them of each of points ``ids``.

        Edge cells go on in the margin, or nothing there ever wins.
        """
        x, y = self.heights.shape[1:]
        margin = 2 * rings if self.extend else rings
        same = len(self.table) < len(self.size)
        size = self.size[:1] if same else self.size
        axes = [torch.arange(-margin, k + margin, device=ids.device) for k in (x, y)]
        i, j = (
            torch.minimum(axis.clamp(min=0)[None], size[:, k : k + 1] - 1)
            for k, axis in enumerate(axes)
        )
        stored = torch.arange(len(self.table), device=ids.device)[:, None, None]
        table = self.table[stored, i[:, :, None], j[:, None, :]]
        if not self.extend:
            gone = (i != axes[0])[:, :, None] | (j != axes[1])[:, None, :]
            table = table.masked_fill(gone, self.sign * torch.inf)
        start, row = self.start[ids], self.row[ids]
        if self.extend:
            # Far outside all columns of a window are the edge's, here as there.
            high = self.size[row] - 1 + rings
            start = torch.minimum(start.clamp(min=-rings), high)
        wide, across = x + 2 * margin, y + 2 * margin
        first = (row * 0 if same else row) * (wide * across)
        return table, first + (start[:, 0] + margin) * across + start[:, 1] + margin
