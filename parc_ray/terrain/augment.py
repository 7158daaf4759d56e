"""Changing the ground where a motion does not touch it (PARC, App. A.3).

Local maps are root-relative heights (N, GX, GY) as ``local_grid.sample_local_heights`` returns
them. All bounds are relative to the root too, unlike in the published code, which holds free cells
to absolute heights and so flattens the surroundings of clips that happen high up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from parc_ray.terrain.local_cells import LocalCells
from parc_ray.terrain.local_grid import GridSpec, world_grid_xy

_CHUNK = 64
"""Maps at a time: they stay in a core's cache."""


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Random changes of local height maps."""

    fill_probability: float = 0.1
    """Chance that the whole map becomes one random height. PARC: 0.1."""
    pool_probability: float = 0.15
    """Chance of each of the three max-pools (square, along x, along y). PARC: 0.15."""
    max_pool_cells: int = 10
    """Largest half width of a pool, cells. PARC: 10 (drawn from 0 to 10)."""
    max_boxes: int = 4
    """Largest number of boxes. PARC: 4 (drawn from 0 to 4)."""
    box_side_cells: tuple[float, float] = (2.0, 12.0)
    """Side lengths of boxes in cells of the local grid. PARC: 2 to 12."""
    max_height_m: float = 3.0
    """Random heights and the final map stay within plus and minus this, metres. PARC: 3."""

    def __post_init__(self) -> None:
        """Refuse values outside their ranges."""
        for name in ("fill_probability", "pool_probability"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"augment.{name}: {getattr(self, name)} is not within 0 to 1")
        for name in ("max_pool_cells", "max_boxes"):
            if getattr(self, name) < 0:
                raise InputError(f"augment.{name}: {getattr(self, name)} is negative; give >= 0")
        low, high = self.box_side_cells
        if not 0.0 < low <= high:
            raise InputError(f"augment.box_side_cells: {(low, high)}; give 0 < low <= high")
        if not 0.0 < self.max_height_m < float("inf"):
            raise InputError(f"augment.max_height_m: {self.max_height_m}; give metres > 0")


def augment_local_heights(
    rng: torch.Generator,
    heights: Tensor,
    lower: Tensor,
    upper: Tensor,
    config: AugmentConfig | None = None,
) -> Tensor:
    """Randomly fill, pool and build on local maps, within bounds.

    Args:
        rng: random state (draws are made on its device).
        heights: (N, GX, GY) metres relative to the root.
        lower: (N, GX, GY) least allowed heights, relative to the root.
        upper: (N, GX, GY) greatest allowed heights, relative to the root; it wins over ``lower``.
        config: probabilities and sizes.

    Returns:
        (N, GX, GY) within the bounds and then within plus and minus ``max_height_m``.
    """
    cfg = config or AugmentConfig()
    draws = _Changes.draw(rng, heights, cfg)
    result = torch.empty_like(heights)
    for start in range(0, heights.shape[0], _CHUNK):
        part = slice(start, start + _CHUNK)
        result[part] = _apply(draws[part], heights[part], lower[part], upper[part], cfg)
    return result


def ood_heights(
    rng: torch.Generator,
    heights: Tensor,
    spec: GridSpec,
    config: AugmentConfig | None = None,
    clear_cells: int = 2,
    chosen: Tensor | None = None,
) -> Tensor:
    """Maps that the motion has never seen: level ground at the root with random boxes around.

    Args:
        rng: random state.
        heights: (N, GX, GY) metres relative to the root.
        spec: the local grid, which says where the root is.
        config: sizes and heights of the boxes.
        clear_cells: cells around the root, to every side, that boxes spare. PARC: 2 (5 x 5).
        chosen: (N,) bool, the maps to replace (all by default); draws are made for every map.

    Returns:
        (N, GX, GY); PARC trains on such maps with probability 0.1 (PARC 5.3).
    """
    cfg = config or AugmentConfig()
    boxes = _Boxes.draw(rng, heights, cfg)
    rows = torch.arange(len(heights)) if chosen is None else chosen.nonzero().squeeze(1)
    i, j = spec.root_cell
    ground = heights[rows, i, j, None, None].expand(-1, *heights.shape[1:])
    built = boxes[rows].build(ground)
    clear = torch.zeros(heights.shape[1:], dtype=torch.bool, device=heights.device)
    near_x = slice(max(i - clear_cells, 0), i + clear_cells + 1)
    near_y = slice(max(j - clear_cells, 0), j + clear_cells + 1)
    clear[near_x, near_y] = True
    foreign = torch.where(clear, ground, built).clamp(-cfg.max_height_m, cfg.max_height_m)
    return heights.index_copy(0, rows, foreign)


def touched_cells(terrain: HeightfieldBatch, points: Tensor) -> Tensor:
    """Cells over or under any of the points (N, ..., 3); bool (N, X, Y).

    Give the surface points of the frames of a training window.
    """
    n, x, y = terrain.heights.shape
    flat = points.reshape(n, -1, 3)
    ij = terrain.index_of(flat[..., :2])
    # Points outside go to a cell of their own, so that they cannot unmark one that is touched.
    mask = torch.zeros(n, x * y + 1, dtype=torch.bool, device=points.device)
    inside = terrain.contains(flat[..., :2])
    mask.scatter_(1, torch.where(inside, ij[..., 0] * y + ij[..., 1], x * y), True)
    return mask[:, :-1].view(n, x, y)


def compute_bounds(
    terrain: Heightfield,
    points: Tensor,
    root_z: Tensor,
    *,
    room_m: float = 3.0,
    jump_m: float = 0.8,
) -> Heightfield:
    """Add to a terrain how far augmentation may move each of its cells.

    Touched cells are frozen at their height, except those that the body only flies over, at least
    ``jump_m`` above them at the lowest: they may sink, and rise to ``jump_m`` below the body.

    Args:
        terrain: the terrain of one clip.
        points: (T, P, 3) world surface points of the whole clip.
        root_z: (T,) world heights of the root.
        room_m: free room above the highest root and below the lowest ground. PARC: 3 m.
        jump_m: PARC: 0.8 m.

    Returns:
        The terrain with ``upper`` and ``lower`` in world metres.
    """
    flat = points.reshape(-1, 3)
    flat = flat[terrain.contains(flat[:, :2])]
    ij = terrain.index_of(flat[:, :2])
    lowest = flat.new_full((terrain.heights.numel(),), torch.inf)
    cell = ij[:, 0] * terrain.shape[1] + ij[:, 1]
    lowest = lowest.scatter_reduce(0, cell, flat[:, 2], "amin").view(terrain.shape)
    floor = terrain.heights.min() - room_m
    free = lowest.isinf()
    jumped = ~free & (lowest >= terrain.heights + jump_m)
    upper = torch.where(jumped, lowest.to(floor.dtype) - jump_m, terrain.heights)
    upper = torch.where(free, root_z.max().to(floor.dtype) + room_m, upper)
    lower = torch.where(free | jumped, floor, terrain.heights)
    return replace(terrain, upper=upper, lower=lower)


def local_bounds(
    spec: GridSpec,
    terrain: HeightfieldBatch,
    touched: Tensor,
    root_pos: Tensor,
    heading: Tensor,
    free_m: float = 6.0,
) -> tuple[Tensor, Tensor]:
    """Bounds of the local maps of N windows, relative to their roots.

    Args:
        spec: the local grid.
        terrain: N terrains; without stored bounds touched cells are frozen.
        touched: (N, X, Y) bool, the cells that the window's frames touch.
        root_pos: (N, 3) world position of the root.
        heading: (N,) rad.
        free_m: other cells may reach this far above and below the root. PARC: 6 m (absolute).

    Returns:
        lower, upper: (N, GX, GY) metres relative to the root.
    """
    ij = terrain.index_of(world_grid_xy(spec, root_pos[:, :2], heading))
    n = torch.arange(len(terrain), device=ij.device).view(-1, 1, 1)
    at = (n, ij[..., 0], ij[..., 1])
    root_z = root_pos[:, 2, None, None]
    high = terrain.heights if terrain.upper is None else terrain.upper
    low = terrain.heights if terrain.lower is None else terrain.lower
    held = touched[at]
    upper = torch.where(held, high[at] - root_z, free_m)
    lower = torch.where(held, low[at] - root_z, -free_m)
    return lower, upper


def cell_bounds(
    cells: LocalCells,
    heights: Tensor,
    passed: Tensor,
    free_m: float = 6.0,
    unseen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same as ``local_bounds`` for cells that are looked up already.

    Args:
        cells: the cells under N local grids.
        heights: (N, GX, GY) m relative to the root, of these cells.
        passed: (N, X, Y) bool, the cells that the window's frames touch.
        free_m: other cells may reach this far above and below the root. PARC: 6 m (absolute).
        unseen: (N, GX, GY) bool, cells whose height is a guess: touched ones may sink, but not
            rise into the motion.

    Returns:
        lower, upper: (N, GX, GY) metres relative to the root.
    """
    held, terrain = cells.of_window(passed), cells.terrain
    high = heights if terrain.upper is None else cells.heights(terrain.upper)
    low = heights if terrain.lower is None else cells.heights(terrain.lower)
    fixed = held if unseen is None else held & ~unseen
    return torch.where(fixed, low, -free_m), torch.where(held, high, free_m)


def _uniform(
    rng: torch.Generator, shape: tuple[int, ...], low: float, high: float, like: Tensor
) -> Tensor:
    draw = torch.rand(shape, generator=rng, device=rng.device, dtype=like.dtype)
    return (low + (high - low) * draw).to(like.device)


def _integers(rng: torch.Generator, shape: tuple[int, ...], most: int, like: Tensor) -> Tensor:
    """Integers from 0 to ``most``, both included."""
    return torch.randint(0, most + 1, shape, generator=rng, device=rng.device).to(like.device)


def _shifted_max(heights: Tensor, width: Tensor, dim: int, most: int) -> Tensor:
    """Running maximum along ``dim`` with half widths (N,) of 0 to ``most`` cells per sample.

    Samples are sorted by width, so that every shift works on the front part that needs it.
    """
    rows = width.argsort(descending=True)
    size = heights.shape[dim]
    counts = (width[:, None] >= torch.arange(most + 1, device=width.device)).sum(0).tolist()
    result = heights
    if most >= 1 and counts[1]:
        rows = rows[: counts[1]]
        source = heights.index_select(0, rows)
        best = source.clone()
        for shift in range(1, min(most, size - 1) + 1):
            front, kept = source[: counts[shift]], size - shift
            for to, of in ((0, shift), (shift, 0)):
                target = best[: counts[shift]].narrow(dim, to, kept)
                torch.maximum(target, front.narrow(dim, of, kept), out=target)
        result = heights.index_copy(0, rows, best)
    return result


@dataclass(frozen=True)
class _Boxes:
    """0 to ``max_boxes`` turned boxes for each of N maps: K = ``max_boxes`` draws."""

    count: Tensor
    """(N,) boxes in use."""
    place: Tensor
    """(N, K, 2) centres, 0 to 1 across the map."""
    side: Tensor
    """(N, K, 2) cells."""
    angle: Tensor
    """(N, K) rad."""
    level: Tensor
    """(N, K) m."""

    @classmethod
    def draw(cls, rng: torch.Generator, heights: Tensor, cfg: AugmentConfig) -> _Boxes:
        """Draw for maps (N, GX, GY)."""
        n = heights.shape[0]
        count = _integers(rng, (n,), cfg.max_boxes, heights)
        place, side = [heights.new_zeros(2, n, 0)], [heights.new_zeros(2, n, 0)]
        angle, level = [heights.new_zeros(n, 0)], [heights.new_zeros(n, 0)]
        for _ in range(cfg.max_boxes):
            place.append(_uniform(rng, (2, n, 1), 0.0, 1.0, heights))
            side.append(_uniform(rng, (2, n, 1), *cfg.box_side_cells, heights))
            angle.append(_uniform(rng, (n, 1), 0.0, 2 * torch.pi, heights))
            level.append(_uniform(rng, (n, 1), -cfg.max_height_m, cfg.max_height_m, heights))
        return cls(
            count=count,
            place=torch.cat(place, -1).permute(1, 2, 0),
            side=torch.cat(side, -1).permute(1, 2, 0),
            angle=torch.cat(angle, -1),
            level=torch.cat(level, -1),
        )

    def __getitem__(self, rows: slice | Tensor) -> _Boxes:
        """The boxes of some of the maps."""
        return _Boxes(*(getattr(self, f.name)[rows] for f in fields(self)))

    def build(self, heights: Tensor) -> Tensor:
        """Maps (N, GX, GY) with the boxes on them, later ones on top."""
        gx, gy = heights.shape[1:]
        i = torch.arange(gx, device=heights.device)[:, None] - self.place[..., 0, None, None] * (
            gx - 1
        )
        j = torch.arange(gy, device=heights.device) - self.place[..., 1, None, None] * (gy - 1)
        cos, sin = self.angle.cos()[..., None, None], self.angle.sin()[..., None, None]
        # Turned coordinates are sums of a term per row and a term per column.
        rows, cols = (cos * i, sin * i), (sin * j, cos * j)
        half = self.side / 2
        half = half * (torch.arange(half.shape[1]) < self.count[:, None])[..., None]
        result = heights.clone()
        for box in range(self.angle.shape[1]):
            along = rows[0][:, box] + cols[0][:, box]
            across = cols[1][:, box] - rows[1][:, box]
            inside = along.abs_() < half[:, box, 0, None, None]
            inside &= across.abs_() < half[:, box, 1, None, None]
            torch.where(inside, self.level[:, box, None, None], result, out=result)
        return result


@dataclass(frozen=True)
class _Changes:
    """All that is drawn for ``augment_local_heights`` of N maps."""

    fill: Tensor
    """(N, 1, 1) bool: the map becomes one level."""
    level: Tensor
    """(N, 1, 1) m, that level."""
    order: Tensor
    """(N, 3): which pool comes first, second, third; 0 square, 1 along x, 2 along y."""
    width: Tensor
    """(N, 3) half width of each pool, cells; 0 for pools not in use."""
    boxes: _Boxes
    """The boxes."""

    @classmethod
    def draw(cls, rng: torch.Generator, heights: Tensor, cfg: AugmentConfig) -> _Changes:
        """Draw for maps (N, GX, GY)."""
        n, top = heights.shape[0], cfg.max_height_m
        level = _uniform(rng, (n, 1, 1), -top, top, heights)
        fill = _uniform(rng, (n, 1, 1), 0.0, 1.0, heights) < cfg.fill_probability
        # Every sample has its own order of the pools.
        order = _uniform(rng, (n, 3), 0.0, 1.0, heights).argsort(dim=1)
        used = _uniform(rng, (n, 3), 0.0, 1.0, heights) < cfg.pool_probability
        width = _integers(rng, (n, 3), cfg.max_pool_cells, heights) * used
        return cls(fill, level, order, width, _Boxes.draw(rng, heights, cfg))

    def __getitem__(self, rows: slice) -> _Changes:
        """What is drawn for some of the maps."""
        return _Changes(*(getattr(self, f.name)[rows] for f in fields(self)))


def _apply(
    draws: _Changes, heights: Tensor, lower: Tensor, upper: Tensor, cfg: AugmentConfig
) -> Tensor:
    """Fill, pool and build on maps (N, GX, GY); see ``augment_local_heights``."""
    result = torch.where(draws.fill, draws.level, heights)
    for turn in range(3):
        pool, w = draws.order[:, turn], draws.width[:, turn]
        result = _shifted_max(result, w * (pool != 2), 1, cfg.max_pool_cells)
        result = _shifted_max(result, w * (pool != 1), 2, cfg.max_pool_cells)
        result = torch.minimum(torch.maximum(result, lower), upper)
    result = draws.boxes.build(result)
    torch.minimum(torch.maximum(result, lower, out=result), upper, out=result)
    return result.clamp_(-cfg.max_height_m, cfg.max_height_m)
