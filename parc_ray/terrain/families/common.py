"""What families share: cells in metres, strips along a line, slabs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.terrain.family_specs import Range
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec

FloatArray = NDArray[np.float64]
_SLABS_AT_A_TIME = 32


def as_terrain(spec: TerrainSpec, heights: FloatArray) -> Heightfield:
    """Heights (X, Y), metres, as a terrain centred on the world origin."""
    base = Heightfield.flat(spec.cells, cell_size=spec.cell_size)
    return replace(base, heights=torch.from_numpy(heights.astype(np.float32)))


def cell_metres(spec: TerrainSpec) -> tuple[FloatArray, FloatArray]:
    """X and y (X, Y) of all cell centres, metres from the terrain's corner."""
    x, y = (np.indices(spec.cells) + 0.5) * spec.cell_size
    return x, y


def size_metres(spec: TerrainSpec) -> FloatArray:
    """(2,) metres along x and y."""
    return np.asarray(spec.cells) * spec.cell_size


def along_and_across(
    rng: np.random.Generator, spec: TerrainSpec
) -> tuple[FloatArray, FloatArray, float, float]:
    """A random one of the two axes to lay strips along.

    Returns:
        (X, Y) metres along it and across it, and the terrain's length and width by it.
    """
    x, y = cell_metres(spec)
    length, width = (float(v) for v in size_metres(spec))
    return (x, y, length, width) if rng.random() < 0.5 else (y, x, width, length)


def strips(
    rng: np.random.Generator, length: float, first: Range, second: Range
) -> tuple[FloatArray, FloatArray]:
    """Strips of two kinds in turn along a line, beginning anywhere in the first ones.

    Args:
        rng: random state.
        length: metres to cover.
        first: width of strips of the first kind, metres, > 0 on average.
        second: width of strips of the second kind, metres.

    Returns:
        (K,) beginnings and (K,) widths of the second kind, metres; strips of the first kind lie
        between them. The last ones reach past the line's end.
    """
    count = 2 + int(length / max(first[0] + second[0], 1e-3))
    lands, widths = rng.uniform(*first, count), rng.uniform(*second, count)
    ends = np.cumsum(lands + widths) - rng.uniform(0.0, 1.0) * lands[0]
    return ends - widths, widths


def band_of(along: FloatArray, starts: FloatArray, widths: FloatArray) -> NDArray[np.intp]:
    """Index (X, Y) of the second-kind strip that each cell is nearest to by its middle."""
    middles = starts + widths / 2
    if len(middles) == 1:
        return np.zeros(along.shape, dtype=np.intp)
    return np.searchsorted((middles[1:] + middles[:-1]) / 2, along)


def slabs(
    rng: np.random.Generator,
    spec: TerrainSpec,
    count: int,
    sides: Range,
    heights: Range,
    tilts: Range,
) -> FloatArray:
    """Highest slab over each cell (X, Y), metres; 0 where there is none.

    Args:
        rng: random state.
        spec: gives the cells.
        count: number of slabs.
        sides: side lengths, metres.
        heights: height of the middle, metres.
        tilts: slope of the top, radians, in any direction.
    """
    x, y = cell_metres(spec)
    middle = rng.uniform(0.0, 1.0, (count, 2)) * size_metres(spec)
    half = np.maximum(rng.uniform(*sides, (count, 2)), spec.cell_size) / 2
    height = rng.uniform(*heights, count)
    turn, down = rng.uniform(0.0, 2 * np.pi, (2, count))
    slope = np.tan(rng.uniform(*tilts, count))
    top = np.zeros(spec.cells)
    for k in range(0, count, _SLABS_AT_A_TIME):
        part = slice(k, k + _SLABS_AT_A_TIME)
        dx, dy = x - middle[part, 0, None, None], y - middle[part, 1, None, None]
        inside = np.ones(dx.shape, dtype=bool)
        for axis, angle in enumerate((turn[part], turn[part] + np.pi / 2)):
            offset = _dot(angle, dx, dy)
            inside &= np.abs(offset) <= half[part, axis, None, None]
        tilted = height[part, None, None] + slope[part, None, None] * _dot(down[part], dx, dy)
        top = np.maximum(top, np.where(inside, tilted, 0.0).max(axis=0, initial=0.0))
    return top


def _dot(angle: FloatArray, dx: FloatArray, dy: FloatArray) -> FloatArray:
    """(N, X, Y) offsets along the direction of each of N angles."""
    return np.cos(angle)[:, None, None] * dx + np.sin(angle)[:, None, None] * dy
