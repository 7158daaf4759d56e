"""Navigation graph over a heightfield: vectorised edge sets and step costs (PARC, eq. 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from parc_ray.synthesis.config import PlannerConfig

_EPS_M = 1e-3
_CLIFFS = 16_384
"""Take-offs looked at together; bounds the memory on large maps."""
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class EdgeSet:
    """Directed edges between cells, numbered row-major (i * Y + j), sorted by (src, dst).

    Attributes:
        src: (E,) cell the edge leaves.
        dst: (E,) cell the edge enters.
        jump: (E,) bool, True for jump edges, False for walk and climb edges.
    """

    src: IntArray
    dst: IntArray
    jump: BoolArray


def cliff_nodes(heights: FloatArray) -> BoolArray:
    """Cells off the border with a cross neighbour lower by more than 1 mm, (X, Y) bool."""
    cliff = np.zeros(heights.shape, dtype=bool)
    if min(heights.shape) < 3:
        return cliff
    core = heights[1:-1, 1:-1]
    lowest = np.minimum.reduce(
        [heights[:-2, 1:-1], heights[2:, 1:-1], heights[1:-1, :-2], heights[1:-1, 2:]]
    )
    cliff[1:-1, 1:-1] = core - lowest > _EPS_M
    return cliff


def bumpiness(heights: FloatArray) -> FloatArray:
    """Mean height difference around each cell as in the published code, (X, Y) metres.

    For each of the 9 shifts: |h - h shifted| summed over the 3x3 patch, indices clamped; /81.
    """
    nx, ny = heights.shape
    padded = np.pad(heights, 2, mode="edge")
    near = padded[1:-1, 1:-1]
    total = np.zeros((nx + 2, ny + 2))
    for dx in range(3):
        for dy in range(3):
            total += np.abs(near - padded[dx : dx + nx + 2, dy : dy + ny + 2])
    inner = np.pad(total[1:-1, 1:-1], 1, mode="edge")
    patch = np.zeros((nx, ny))
    for dx in range(3):
        for dy in range(3):
            patch += inner[dx : dx + nx, dy : dy + ny]
    return patch / 81.0


def bresenham(dx: int, dy: int) -> list[tuple[int, int]]:
    """Cells on the line from (0, 0) to (dx, dy), both ends included."""
    steps = max(abs(dx), abs(dy))
    sx, sy = (1 if dx >= 0 else -1), (1 if dy >= 0 else -1)
    adx, ady = abs(dx), abs(dy)
    x, y, err = 0, 0, adx - ady
    cells = [(0, 0)]
    for _ in range(2 * steps):
        if (x, y) == (dx, dy):
            break
        twice = 2 * err
        if twice > -ady:
            err -= ady
            x += sx
        if twice < adx:
            err += adx
            y += sy
        cells.append((x, y))
    return cells


@dataclass(frozen=True)
class _JumpTable:
    """Offsets of jumps on a grid padded by ``reach`` cells, as differences of flat indices.

    Attributes:
        reach: cells of padding.
        neighbour: (O,) bool, offsets to one of the 8 neighbours.
        dst: (O,) flat offset of the landing.
        between: (L, O) flat offsets of the cells in between, padded by the landing.
    """

    reach: int
    neighbour: BoolArray
    dst: IntArray
    between: IntArray


@lru_cache(maxsize=32)
def _jump_table(max_cells: float, ny: int) -> _JumpTable:
    """Offsets within ``max_cells`` cells on grids with rows of ``ny`` cells."""
    reach = math.floor(max_cells + 1e-9)
    offsets = [
        (dx, dy)
        for dx in range(-reach, reach + 1)
        for dy in range(-reach, reach + 1)
        if (dx, dy) != (0, 0) and math.hypot(dx, dy) <= max_cells + 1e-9
    ]
    # The take-off and the landing themselves never bar a jump that is not too high.
    lines = [bresenham(*o)[1:-1] or [o] for o in offsets]
    longest = max(map(len, lines), default=1)
    width = ny + 2 * reach
    flat = [[dx * width + dy for dx, dy in line] for line in lines]
    dst = [dx * width + dy for dx, dy in offsets]
    padded = [line + [end] * (longest - len(line)) for line, end in zip(flat, dst, strict=True)]
    return _JumpTable(
        reach=reach,
        neighbour=np.array([max(abs(dx), abs(dy)) <= 1 for dx, dy in offsets], dtype=bool),
        dst=np.array(dst, dtype=np.int64),
        between=np.array(padded, dtype=np.int64).reshape(len(offsets), longest).T.copy(),
    )


def _walk_edges(heights: FloatArray, max_step_z: float) -> tuple[IntArray, IntArray]:
    """Edges to the 8 neighbours with |dz| <= ``max_step_z``."""
    nx, ny = heights.shape
    ids = np.arange(nx * ny, dtype=np.int64).reshape(nx, ny)
    src, dst = [], []
    for dx, dy in ((0, 1), (1, -1), (1, 0), (1, 1)):
        a = (slice(0, nx - dx), slice(max(0, -dy), ny - max(0, dy)))
        b = (slice(dx, nx), slice(max(0, dy), ny + min(0, dy)))
        ok = np.abs(heights[a] - heights[b]) <= max_step_z
        one, two = ids[a][ok], ids[b][ok]
        src += [one, two]
        dst += [two, one]
    return np.concatenate(src), np.concatenate(dst)


def _jump_edges(
    heights: FloatArray, cell_size: float, cfg: PlannerConfig
) -> tuple[IntArray, IntArray]:
    """Edges between cliff nodes that a jump can bridge and that are no walk edges.

    All (cliff, offset) pairs are looked up on a padded grid whose cells other than cliffs are
    infinitely high, so that one comparison of heights settles landing, grid and cliff at once.
    """
    nx, ny = heights.shape
    table = _jump_table(cfg.max_jump_xy_m / cell_size, ny)
    cliff = cliff_nodes(heights)
    # The take-off counts as an obstacle, as published, so a limit below it allows no jump.
    if not cliff.any() or len(table.dst) == 0 or cfg.max_jump_z_m <= -_EPS_M:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    r, width = table.reach, ny + 2 * table.reach
    landing = np.full((nx + 2 * r, width), np.inf)
    landing[r : r + nx, r : r + ny] = np.where(cliff, heights, np.inf)
    tops = np.zeros_like(landing)
    tops[r : r + nx, r : r + ny] = heights
    landing, tops = landing.reshape(-1), tops.reshape(-1)
    i, j = np.nonzero(cliff)
    start = (i + r) * width + (j + r)
    parts = [
        _jumps_from(start[k : k + _CLIFFS], landing, tops, table, cfg)
        for k in range(0, len(start), _CLIFFS)
    ]
    src, dst = (_unpadded(np.concatenate(x), r, width, ny) for x in zip(*parts, strict=True))
    return src, dst


def _jumps_from(
    start: IntArray, landing: FloatArray, tops: FloatArray, table: _JumpTable, cfg: PlannerConfig
) -> tuple[IntArray, IntArray]:
    """Jumps from padded cells ``start``; ``landing`` and ``tops`` are padded and flat."""
    dz = landing[start[:, None] + table.dst] - tops[start][:, None]
    ok = (dz >= cfg.min_jump_z_m) & (dz <= cfg.max_jump_z_m)
    ok[:, table.neighbour] &= np.abs(dz[:, table.neighbour]) > cfg.max_step_z_m
    which, how = np.nonzero(ok)
    a = start[which]
    limit = tops[a] + (cfg.max_jump_z_m + _EPS_M)
    for line in table.between:
        free = tops[a + line[how]] < limit
        if not free.all():
            a, how, limit = a[free], how[free], limit[free]
    return a, a + table.dst[how]


def _unpadded(flat: IntArray, reach: int, width: int, ny: int) -> IntArray:
    """Cell numbers of flat indices into a grid padded by ``reach`` cells."""
    row = flat // width
    return flat - row * (width - ny) - reach * ny - reach


def build_edges(heights: FloatArray, cell_size: float, cfg: PlannerConfig) -> EdgeSet:
    """All edges of the navigation graph of ``heights`` (X, Y), no loops and no duplicates.

    Args:
        heights: (X, Y) metres.
        cell_size: metres.
        cfg: limits of steps and jumps.

    Returns:
        The edges, sorted by source and destination.
    """
    walk_src, walk_dst = _walk_edges(heights, cfg.max_step_z_m)
    jump_src, jump_dst = _jump_edges(heights, cell_size, cfg)
    # Sorting numbers that hold the whole edge is several times faster than sorting indices.
    keys = np.concatenate(
        [
            (walk_src * heights.size + walk_dst) * 2,
            (jump_src * heights.size + jump_dst) * 2 + 1,
        ]
    )
    keys.sort()
    pair = keys >> 1
    src = pair // heights.size
    return EdgeSet(src=src, dst=pair - src * heights.size, jump=(keys & 1).astype(bool))


def edge_costs(
    heights: FloatArray, cell_size: float, edges: EdgeSet, cfg: PlannerConfig, seed: int
) -> FloatArray:
    """Step cost of every edge with its fixed noise (PARC, eq. 6), (E,).

    w_xy |dxy|^2 + w_z dz^2 + w_bumpy min(bumpy, cap) + U[noise], the last drawn once per edge.
    """
    ny = heights.shape[1]
    row, apart = edges.src // ny - edges.dst // ny, edges.src - edges.dst
    col = apart - row * ny
    dz = heights.ravel()[edges.dst] - heights.ravel()[edges.src]
    cost = cfg.w_xy * cell_size**2 * (row * row + col * col) + cfg.w_z * (dz * dz)
    if cfg.w_bumpy > 0:
        bumpy = np.minimum(bumpiness(heights), cfg.max_bumpy_m)
        cost = cost + cfg.w_bumpy * bumpy.ravel()[edges.dst]
    low, high = cfg.noise
    if high > 0:
        cost = cost + np.random.default_rng(seed).uniform(low, high, size=len(cost))
    return cost
