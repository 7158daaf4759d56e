"""Changing the ground where a motion does not touch it (PARC, App. A.3).

Local maps are root-relative heights (N, GX, GY) as ``local_grid.sample_local_heights`` returns
them. All bounds are relative to the root too, unlike in the published code, which holds free cells
to absolute heights and so flattens the surroundings of clips that happen high up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from parc_ray.terrain.local_grid import GridSpec, world_grid_xy


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
    n = heights.shape[0]
    top = cfg.max_height_m

    def bounded(value: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(value, lower), upper)

    level = _uniform(rng, (n, 1, 1), -top, top, heights)
    fill = _uniform(rng, (n, 1, 1), 0.0, 1.0, heights) < cfg.fill_probability
    result = torch.where(fill, level, heights)
    # Every sample has its own order of the pools: 0 square, 1 along x, 2 along y.
    order = _uniform(rng, (n, 3), 0.0, 1.0, heights).argsort(dim=1)
    used = _uniform(rng, (n, 3), 0.0, 1.0, heights) < cfg.pool_probability
    width = _integers(rng, (n, 3), cfg.max_pool_cells, heights) * used
    for turn in range(3):
        pool, w = order[:, turn], width[:, turn]
        result = _shifted_max(result, w * (pool != 2), 1, cfg.max_pool_cells)
        result = bounded(_shifted_max(result, w * (pool != 1), 2, cfg.max_pool_cells))
    result = _random_boxes(rng, result, cfg)
    return bounded(result).clamp(-top, top)


def ood_heights(
    rng: torch.Generator,
    heights: Tensor,
    spec: GridSpec,
    config: AugmentConfig | None = None,
    clear_cells: int = 2,
) -> Tensor:
    """Maps that the motion has never seen: level ground at the root with random boxes around.

    Args:
        rng: random state.
        heights: (N, GX, GY) metres relative to the root.
        spec: the local grid, which says where the root is.
        config: sizes and heights of the boxes.
        clear_cells: cells around the root, to every side, that boxes spare. PARC: 2 (5 x 5).

    Returns:
        (N, GX, GY); PARC trains on such maps with probability 0.1 (PARC 5.3).
    """
    cfg = config or AugmentConfig()
    i, j = spec.root_cell
    ground = heights[:, i, j, None, None].expand_as(heights)
    built = _random_boxes(rng, ground, cfg)
    clear = torch.zeros(heights.shape[1:], dtype=torch.bool, device=heights.device)
    rows = slice(max(i - clear_cells, 0), i + clear_cells + 1)
    cols = slice(max(j - clear_cells, 0), j + clear_cells + 1)
    clear[rows, cols] = True
    return torch.where(clear, ground, built).clamp(-cfg.max_height_m, cfg.max_height_m)


def touched_cells(terrain: HeightfieldBatch, points: Tensor) -> Tensor:
    """Cells over or under any of the points (N, ..., 3); bool (N, X, Y).

    Give the surface points of the frames of a training window.
    """
    n, x, y = terrain.heights.shape
    flat = points.reshape(n, -1, 3)
    ij = terrain.index_of(flat[..., :2])
    mask = torch.zeros(n, x * y, dtype=torch.bool, device=points.device)
    inside = terrain.contains(flat[..., :2])
    ij = torch.where(inside[..., None], ij, ij[:, :1])
    mask.scatter_(1, ij[..., 0] * y + ij[..., 1], inside)
    return mask.view(n, x, y)


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


def _uniform(
    rng: torch.Generator, shape: tuple[int, ...], low: float, high: float, like: Tensor
) -> Tensor:
    draw = torch.rand(shape, generator=rng, device=rng.device, dtype=like.dtype)
    return (low + (high - low) * draw).to(like.device)


def _integers(rng: torch.Generator, shape: tuple[int, ...], most: int, like: Tensor) -> Tensor:
    """Integers from 0 to ``most``, both included."""
    return torch.randint(0, most + 1, shape, generator=rng, device=rng.device).to(like.device)


def _shifted_max(heights: Tensor, width: Tensor, dim: int, most: int) -> Tensor:
    """Running maximum along ``dim`` with half widths (N,) of 0 to ``most`` cells per sample."""
    result = heights
    size = heights.shape[dim]
    for shift in range(1, min(most, size - 1) + 1):
        active = (width >= shift)[:, None, None]
        void = heights.new_full((), -torch.inf).expand_as(heights.narrow(dim, 0, shift))
        after = torch.cat([heights.narrow(dim, shift, size - shift), void], dim)
        before = torch.cat([void, heights.narrow(dim, 0, size - shift)], dim)
        lifted = torch.maximum(after, before)
        result = torch.where(active, torch.maximum(result, lifted), result)
    return result


def _random_boxes(rng: torch.Generator, heights: Tensor, cfg: AugmentConfig) -> Tensor:
    """Put 0 to ``max_boxes`` turned boxes on each map (N, GX, GY), later ones on top."""
    n, gx, gy = heights.shape
    count = _integers(rng, (n,), cfg.max_boxes, heights)
    i = torch.arange(gx, device=heights.device)[:, None].expand(gx, gy)
    j = torch.arange(gy, device=heights.device)[None, :].expand(gx, gy)
    for box in range(cfg.max_boxes):
        place = _uniform(rng, (2, n, 1, 1), 0.0, 1.0, heights)
        side = _uniform(rng, (2, n, 1, 1), *cfg.box_side_cells, heights)
        angle = _uniform(rng, (n, 1, 1), 0.0, 2 * torch.pi, heights)
        level = _uniform(rng, (n, 1, 1), -cfg.max_height_m, cfg.max_height_m, heights)
        x, y = i - place[0] * (gx - 1), j - place[1] * (gy - 1)
        along = angle.cos() * x + angle.sin() * y
        across = angle.cos() * y - angle.sin() * x
        inside = (along.abs() < side[0] / 2) & (across.abs() < side[1] / 2)
        inside = inside & (box < count)[:, None, None]
        heights = torch.where(inside, level, heights)
    return heights
