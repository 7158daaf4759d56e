"""Exact distances between points and the columns of a heightfield.

For a point p and a column c with horizontal gap ``rho(p, c)`` to its footprint and top ``h_c``

    out(p)   = min_c sqrt(rho^2 + max(p_z - h_c, 0)^2)    distance of a free point to the ground
    depth(p) = min_c sqrt(rho^2 + max(h_c - p_z, 0)^2)    distance of a buried point to the air

and at most one of the two is non-zero for a point over the grid. Columns are visited in square
rings around the point's own cell. All columns beyond ring k are at least ``k * cell_size`` away,
so a point leaves the search as soon as nothing farther can win; a window of k rings is exact for
results below ``k * cell_size``. The search runs without gradient, then the distance to the winning
column is computed again, so that gradients flow through that column only.

Legend: N terrains, P points per terrain, M = N * P, X, Y cells, R columns in a ring.
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

_CHUNK_CPU = 1 << 17
_CHUNK_GPU = 1 << 25
_SLAB = 1 << 21


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
    table, row = _table(heights)
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
    cells = torch.round((points[..., :2] - origin[:, None]) / cell_size)
    clamped = torch.minimum(cells.clamp(min=0.0), limit)
    clamped = torch.where(clamped.isnan(), torch.zeros_like(clamped), clamped)
    start = clamped
    if off_grid == "extend":
        far = 4.0 * max(heights.shape[1:])
        start = torch.maximum(torch.minimum(cells.nan_to_num(0.0), limit + far), -limit - far)
    local = points[..., :2] - origin[:, None] - start * cell_size
    table, row = _table(heights)
    search = _RingSearch(
        table=table.reshape(-1),
        stride=heights.shape[2],
        cell_size=cell_size,
        sign=1.0 if kind == "depth" else -1.0,
        extend=off_grid == "extend",
        columns={
            "x": local[..., 0].reshape(-1),
            "y": local[..., 1].reshape(-1),
            "z": points[..., 2].reshape(-1),
            "i": start[..., 0].reshape(-1).long(),
            "j": start[..., 1].reshape(-1).long(),
            "row": row.repeat_interleave(p),
            "nx": size[:, 0].repeat_interleave(p),
            "ny": size[:, 1].repeat_interleave(p),
        },
        limit=_vertical_limit(table, kind).expand(n).repeat_interleave(p),
    )
    done = None
    if off_grid == "free":
        done = ~_over_grid(points, origin, cell_size, size).reshape(-1)
    reach = int(max(heights.shape[1:])) * (5 if off_grid == "extend" else 1)
    search.run(reach if window is None else min(window, reach), done)
    return torch.stack([search.best_i, search.best_j], dim=-1).reshape(n, p, 2)


def _table(heights: Tensor) -> tuple[Tensor, Tensor]:
    """Stored terrains (1 or N, X, Y) and where each of N rows begins in them, flattened.

    An expanded batch is stored once: all its rows then read the same memory.
    """
    n, x, y = heights.shape
    if n > 1 and heights.stride(0) == 0:
        return heights[:1], torch.zeros(n, dtype=torch.long, device=heights.device)
    return heights, torch.arange(n, device=heights.device) * (x * y)


def _vertical_limit(heights: Tensor, kind: Kind) -> Tensor:
    """(N,) the height that no column beats: the lowest for depth, the highest for out."""
    flat = heights.reshape(heights.shape[0], -1)
    return flat.amin(1) if kind == "depth" else flat.amax(1)


class _RingSearch:
    """State of the search: the best column so far of each of M points."""

    def __init__(
        self,
        *,
        table: Tensor,
        stride: int,
        cell_size: float,
        sign: float,
        extend: bool,
        columns: dict[str, Tensor],
        limit: Tensor,
    ) -> None:
        self.table, self.stride, self.cell_size = table, stride, cell_size
        self.sign, self.extend, self.columns = sign, extend, columns
        z = columns["z"]
        self.floor = (sign * (limit - z)).clamp(min=0.0).square()
        self.best = torch.full_like(z, torch.inf)
        self.best_i, self.best_j = columns["i"].clone(), columns["j"].clone()
        self.chunk = _CHUNK_GPU if z.is_cuda else _CHUNK_CPU

    def run(self, rings: int, done: Tensor | None) -> None:
        """Visit rings 0 to ``rings``; points leave when no farther column can win."""
        ids = None if done is None else (~done).nonzero().squeeze(1)
        # How far a point is outside the grid bounds the distance to all columns of the grid.
        half = self.cell_size / 2
        away = [(self.columns[a].abs() - half).clamp(min=0.0).square() for a in ("x", "y")]
        away_square = away[0] + away[1]
        for ring in range(rings + 1):
            if ids is not None and ids.numel() == 0:
                return
            self._visit(ring, ids)
            bound = away_square + self.floor + (ring * self.cell_size) ** 2
            undecided = self.best > bound
            ids = undecided.nonzero().squeeze(1) if ids is None else ids[undecided[ids]]

    def _visit(self, ring: int, ids: Tensor | None) -> None:
        """Compare the columns of one ring with the best ones, chunk by chunk."""
        offsets = _ring_offsets(ring, self.best.device)
        step = max(1, self.chunk // offsets.shape[0])
        total = self.best.numel() if ids is None else ids.numel()
        for begin in range(0, total, step):
            part = slice(begin, begin + step) if ids is None else ids[begin : begin + step]
            c = {k: v[part] for k, v in self.columns.items()}
            i, j = c["i"] + offsets[:, :1], c["j"] + offsets[:, 1:]
            last_i, last_j = c["nx"] - 1, c["ny"] - 1
            inside_i = torch.minimum(i.clamp(min=0), last_i)
            inside_j = torch.minimum(j.clamp(min=0), last_j)
            tops = self.table[c["row"] + inside_i * self.stride + inside_j]
            shift = offsets.to(tops.dtype) * self.cell_size
            gap_x = ((c["x"] - shift[:, :1]).abs() - self.cell_size / 2).clamp(min=0.0)
            gap_y = ((c["y"] - shift[:, 1:]).abs() - self.cell_size / 2).clamp(min=0.0)
            rise = (self.sign * (tops - c["z"])).clamp(min=0.0)
            square = gap_x.square() + gap_y.square() + rise.square()
            if not self.extend:
                square = square.masked_fill((i != inside_i) | (j != inside_j), torch.inf)
            least, which = square.min(dim=0)
            better = least < self.best[part]
            self.best[part] = torch.where(better, least, self.best[part])
            new_i, new_j = (x.gather(0, which[None])[0] for x in (i, j))
            self.best_i[part] = torch.where(better, new_i, self.best_i[part])
            self.best_j[part] = torch.where(better, new_j, self.best_j[part])


def _ring_offsets(ring: int, device: torch.device) -> Tensor:
    """(R, 2) long: cells at Chebyshev distance ``ring`` from the middle."""
    if ring == 0:
        return torch.zeros(1, 2, dtype=torch.long, device=device)
    axis = torch.arange(-ring, ring + 1, device=device)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).reshape(-1, 2)
    return grid[grid.abs().amax(1) == ring]
