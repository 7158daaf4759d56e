"""How hard a terrain is to cross, measured.

``TerrainSpec.difficulty`` is what is asked of a family; ``terrain_difficulty`` is what the ground
that came out of it, or out of a scan, demands.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from parc_ray.terrain.heightfield import Heightfield

FloatArray = NDArray[np.float64]
MAX_JUMP_M = 3.0
"""Longest jump of a crossing, metres, as the planner's (PARC: 3)."""
WINDOW_CELLS = 48
"""Larger terrains are measured on windows of so many cells to a side."""
_LANES = 5
_EPS_M = 1e-3
_DIRECTIONS = ((1, 0), (0, 1), (1, 1), (1, -1))


def terrain_difficulty(terrain: Heightfield) -> float:
    """Extra effort of crossing a terrain, per metre: 0 on level ground.

    A step to one of the 8 neighbours takes its horizontal length plus what it goes up or down; a
    jump of up to 3 m along a row, column or diagonal takes twice its length plus the change of
    height, and clears cells that are no higher than its higher end. On five lanes along x and five
    along y the way of least effort is sought, from the lane's highest cell at one border to its
    highest at the other, anywhere on the terrain; the number is the mean over lanes of what is
    added to the effort on level ground, as a share of it. Scaling heights up never lowers it.

    Args:
        terrain: any terrain; of one larger than ``WINDOW_CELLS`` nine even windows are measured.

    Returns:
        Metres per metre: 0 level, about 0.2 a walk over low obstacles, 1 as much up and down as
        along.
    """
    heights = terrain.heights.double().cpu().numpy()
    if max(heights.shape) <= WINDOW_CELLS:
        return _difficulty(heights, terrain.cell_size)
    firsts = [np.linspace(0, max(n - WINDOW_CELLS, 0), 3).astype(int) for n in heights.shape]
    corners = {(int(i), int(j)) for i in firsts[0] for j in firsts[1]}
    parts = [heights[i : i + WINDOW_CELLS, j : j + WINDOW_CELLS] for i, j in sorted(corners)]
    return float(np.mean([_difficulty(part, terrain.cell_size) for part in parts]))


def _difficulty(heights: FloatArray, cell_size: float) -> float:
    """``terrain_difficulty`` of heights (X, Y) as they are."""
    if heights.size == 1:
        return 0.0
    graph = _effort_graph(heights, cell_size)
    extra = []
    for axis in (0, 1):
        if heights.shape[axis] < 2:
            continue
        lanes = np.array_split(np.arange(heights.shape[1 - axis]), _LANES)
        ends = np.array(
            [
                [lane[np.take(heights, side, axis)[lane].argmax()] for lane in lanes if len(lane)]
                for side in (0, -1)
            ]
        )
        away = np.abs(ends[0] - ends[1]), np.full(ends.shape[1], heights.shape[axis] - 1)
        level = cell_size * (np.maximum(*away) + (math.sqrt(2.0) - 1.0) * np.minimum(*away))
        sides = np.stack([np.zeros_like(ends[0]), away[1]])
        cells = np.ravel_multi_index((sides, ends) if axis == 0 else (ends, sides), heights.shape)
        best = dijkstra(graph, directed=False, indices=cells[0])
        extra.append(float((best[np.arange(ends.shape[1]), cells[1]] / level - 1.0).mean()))
    # Sums of steps are exact to a few units in the last place only.
    return max(0.0, round(float(np.mean(extra)), 9))


def _effort_graph(heights: FloatArray, cell_size: float) -> csr_matrix:
    """Undirected graph of steps and jumps with their efforts, each pair of cells once."""
    ids = np.arange(heights.size).reshape(heights.shape)
    src, dst, effort = [], [], []
    for direction in _DIRECTIONS:
        length = cell_size * math.hypot(*direction)
        for n in range(1, max(1, int(MAX_JUMP_M / length + 1e-9)) + 1):
            views = [_shifted(ids, direction, k, n) for k in range(n + 1)]
            if views[0].size == 0:
                break
            ends = heights.ravel()[views[0]], heights.ravel()[views[-1]]
            ok = np.ones(views[0].shape, dtype=bool)
            if n > 1:
                between = [heights.ravel()[v] for v in views[1:-1]]
                ok = np.minimum.reduce(between) < np.minimum(*ends) - _EPS_M
                ok &= np.maximum.reduce(between) <= np.maximum(*ends) + _EPS_M
            src.append(views[0][ok])
            dst.append(views[-1][ok])
            effort.append(n * length * (1 if n == 1 else 2) + np.abs(ends[0] - ends[1])[ok])
    pairs = (np.concatenate(src), np.concatenate(dst))
    return csr_matrix((np.concatenate(effort), pairs), shape=(heights.size,) * 2)


def _shifted(ids: NDArray[np.int64], direction: tuple[int, int], k: int, n: int) -> NDArray:
    """Cell k of all straight runs of n cells' lengths along a direction, as cell numbers."""
    cut = []
    for d, size in zip(direction, ids.shape, strict=True):
        first = k * d if d >= 0 else n + k * d
        cut.append(slice(first, max(first, first + size - n * abs(d))))
    return ids[cut[0], cut[1]]
