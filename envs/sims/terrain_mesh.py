"""Many terrains as one triangle mesh: tiles on a square grid that is centred on the origin.

A tile is a terrain with its border cells drawn out to the tile's edge, so that there is neither a
hole between tiles nor ground that only some terrains have. Tops are merged rectangles and walls
reach from the lower to the higher top, nothing is inside the ground, so a foot meets no edge that
the terrain does not have. Triangles face outwards (counter-clockwise seen from the free side).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.terrain.boxes import merge_boxes
from parc_ray.terrain.heightfield import Heightfield

Array = NDArray[np.float64]
_SAME_M = 1e-4


@dataclass(frozen=True, kw_only=True)
class TerrainMesh:
    """The mesh and where each terrain lies in it. V vertices, F triangles, T terrains."""

    vertices: NDArray[np.float32]
    """(V, 3) m, world frame of the mesh."""
    triangles: NDArray[np.uint32]
    """(F, 3) indices of vertices."""
    offsets: NDArray[np.float32]
    """(T, 3) m: added to a position in a terrain's own frame it is one in the mesh's."""
    pitch: tuple[float, float]
    """Size of a tile along x and y, m."""


def mesh_of(terrains: Sequence[Heightfield], extension_m: float) -> TerrainMesh:
    """Lay terrains out as tiles; equal ones share a tile.

    Args:
        terrains: T terrains, each in its own frame.
        extension_m: how far border cells reach beyond the grid at least, m.
    """
    keys = [_key(terrain) for terrain in terrains]
    tiles = {key: terrain for key, terrain in zip(keys, terrains, strict=True)}
    sizes = np.array([np.array(t.shape) * t.cell_size for t in tiles.values()])
    pitch = sizes.max(axis=0) + 2.0 * extension_m
    per_side = math.ceil(math.sqrt(len(tiles)))
    quads: list[Array] = []
    centres: dict[tuple[bytes, float], Array] = {}
    for index, (key, terrain) in enumerate(tiles.items()):
        place = np.array([index // per_side, index % per_side])
        centre = (place + 0.5 - per_side / 2) * pitch
        centres[key] = centre
        x, y = (_edges(n, terrain.cell_size, pitch[k]) for k, n in enumerate(terrain.shape))
        heights = terrain.heights.detach().cpu().numpy().astype(np.float64)
        heights = np.rint(heights / _SAME_M) * _SAME_M  # no walls that only rounding makes
        tile = np.concatenate((_tops(heights, x, y), _walls(heights, x, y)))
        tile[..., :2] += centre
        quads.append(tile)
    offsets = [
        [*(centres[key] - _middle(terrain)), 0.0]
        for key, terrain in zip(keys, terrains, strict=True)
    ]
    corners = np.concatenate(quads)
    first = 4 * np.arange(len(corners))[:, None]
    triangles = np.concatenate(
        (first + np.array([0, 1, 2]), first + np.array([0, 2, 3])), axis=1
    ).reshape(-1, 3)
    return TerrainMesh(
        vertices=corners.reshape(-1, 3).astype(np.float32),
        triangles=triangles.astype(np.uint32),
        offsets=np.array(offsets, dtype=np.float32),
        pitch=(float(pitch[0]), float(pitch[1])),
    )


def _key(terrain: Heightfield) -> tuple[bytes, float]:
    heights = terrain.heights.detach().cpu().contiguous().numpy()
    return str(heights.shape).encode() + heights.tobytes(), float(terrain.cell_size)


def _middle(terrain: Heightfield) -> Array:
    """(2,) m: middle of the grid in the terrain's own frame."""
    half = (np.array(terrain.shape, dtype=np.float64) - 1.0) * (terrain.cell_size / 2)
    return half + terrain.origin.detach().cpu().numpy()


def _edges(count: int, cell: float, pitch: float) -> Array:
    """(count + 1,) m: borders of the cells along an axis, the outer ones at the tile's edge."""
    edges = (np.arange(count + 1, dtype=np.float64) - count / 2) * np.float64(cell)
    edges[0], edges[-1] = -pitch / 2, pitch / 2
    return edges


def _tops(heights: Array, x: Array, y: Array) -> Array:
    """(K, 4, 3) quads of the column tops, facing up."""
    out = []
    for i0, i1, j0, j1, z in merge_boxes(torch.from_numpy(heights), tolerance=_SAME_M):
        out.append([(x[i0], y[j0], z), (x[i1], y[j0], z), (x[i1], y[j1], z), (x[i0], y[j1], z)])
    return np.array(out).reshape(-1, 4, 3)


def _walls(heights: Array, x: Array, y: Array) -> Array:
    """(K, 4, 3) quads between neighbours of different height, facing the lower one."""
    out: list[Array] = []
    for axis, (across, along) in enumerate(((x, y), (y, x))):
        grid = heights if axis == 0 else heights.T
        for i in range(grid.shape[0] - 1):
            for j0, j1 in _runs(grid[i], grid[i + 1]):
                low, high = grid[i, j0], grid[i + 1, j0]
                at = across[i + 1]
                quad = np.array(
                    [
                        (at, along[j0], low),
                        (at, along[j1], low),
                        (at, along[j1], high),
                        (at, along[j0], high),
                    ]
                )
                # As it stands it faces -x where the far side is higher (low < high), and +x where
                # it is lower, because its upper and lower edges change places.
                quad = quad[::-1] if axis == 0 else quad[:, [1, 0, 2]]
                out.append(quad)
    return np.array(out).reshape(-1, 4, 3)


def _runs(near: Array, far: Array) -> list[tuple[int, int]]:
    """Stretches j0 <= j < j1 along which both rows keep their heights, and these differ."""
    found, start = [], 0
    for j in range(1, len(near) + 1):
        if j < len(near) and near[j] == near[start] and far[j] == far[start]:
            continue
        if near[start] != far[start]:
            found.append((start, j))
        start = j
    return found
