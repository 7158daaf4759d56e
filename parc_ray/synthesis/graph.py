"""Navigation graph over a heightfield: vectorised edge sets and step costs (PARC, eq. 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from parc_ray.synthesis.config import PlannerConfig

_EPS_M = 1e-3
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


@lru_cache(maxsize=16)
def _jump_table(max_cells: float) -> tuple[IntArray, IntArray]:
    """Offsets (O, 2) within ``max_cells`` cells and their padded line cells (O, L, 2)."""
    reach = math.floor(max_cells + 1e-9)
    offsets = [
        (dx, dy)
        for dx in range(-reach, reach + 1)
        for dy in range(-reach, reach + 1)
        if (dx, dy) != (0, 0) and math.hypot(dx, dy) <= max_cells + 1e-9
    ]
    if not offsets:
        return np.zeros((0, 2), dtype=np.int64), np.zeros((0, 1, 2), dtype=np.int64)
    lines = [bresenham(*o) for o in offsets]
    longest = max(map(len, lines))
    padded = [line + [line[-1]] * (longest - len(line)) for line in lines]
    return np.array(offsets, dtype=np.int64), np.array(padded, dtype=np.int64)


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
    """Edges between cliff nodes that a jump can bridge and that are no walk edges."""
    nx, ny = heights.shape
    offsets, lines = _jump_table(cfg.max_jump_xy_m / cell_size)
    cliff = cliff_nodes(heights)
    start = np.argwhere(cliff)
    if len(start) == 0 or len(offsets) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    end = start[:, None, :] + offsets[None]
    inside = (end >= 0).all(-1) & (end < (nx, ny)).all(-1)
    which, how = np.nonzero(inside)
    a, b = start[which], end[which, how]
    z_a, z_b = heights[a[:, 0], a[:, 1]], heights[b[:, 0], b[:, 1]]
    dz = z_b - z_a
    ok = cliff[b[:, 0], b[:, 1]] & (dz >= cfg.min_jump_z_m) & (dz <= cfg.max_jump_z_m)
    neighbour = np.abs(offsets).max(-1)[how] <= 1
    ok &= ~(neighbour & (np.abs(dz) <= cfg.max_step_z_m))
    a, b, how, z_a = a[ok], b[ok], how[ok], z_a[ok]
    cells = a[:, None, :] + lines[how]
    wall = heights[cells[..., 0], cells[..., 1]].max(-1)
    ok = wall < z_a + cfg.max_jump_z_m + _EPS_M
    a, b = a[ok], b[ok]
    return a[:, 0] * ny + a[:, 1], b[:, 0] * ny + b[:, 1]


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
    src = np.concatenate([walk_src, jump_src])
    dst = np.concatenate([walk_dst, jump_dst])
    jump = np.zeros(len(src), dtype=bool)
    jump[len(walk_src) :] = True
    order = np.argsort(src * heights.size + dst, kind="stable")
    return EdgeSet(src=src[order], dst=dst[order], jump=jump[order])


def edge_costs(
    heights: FloatArray, cell_size: float, edges: EdgeSet, cfg: PlannerConfig, seed: int
) -> FloatArray:
    """Step cost of every edge with its fixed noise (PARC, eq. 6), (E,).

    w_xy |dxy|^2 + w_z dz^2 + w_bumpy min(bumpy, cap) + U[noise], the last drawn once per edge.
    """
    ny = heights.shape[1]
    dxy = np.stack([edges.src // ny - edges.dst // ny, edges.src % ny - edges.dst % ny], -1)
    dz = heights.ravel()[edges.dst] - heights.ravel()[edges.src]
    cost = cfg.w_xy * cell_size**2 * (dxy**2).sum(-1) + cfg.w_z * dz**2
    if cfg.w_bumpy > 0:
        bumpy = np.minimum(bumpiness(heights), cfg.max_bumpy_m)
        cost = cost + cfg.w_bumpy * bumpy.ravel()[edges.dst]
    low, high = cfg.noise
    if high > 0:
        cost = cost + np.random.default_rng(seed).uniform(low, high, size=len(cost))
    return cost
