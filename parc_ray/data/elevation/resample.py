"""Grids of heights to square cells of another size."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from parc_ray.errors import InputError

FloatArray = NDArray[np.float64]
MAX_CELLS = 1_000_000
"""Most cells of an imported map: 400 m x 400 m at PARC's cell size."""


def to_cells(
    heights: NDArray[np.float32],
    pixel_m: tuple[float, float],
    cell_size: float,
    percentile: float | None,
) -> FloatArray:
    """Heights of the whole cells that fit onto a grid of pixels.

    Args:
        heights: (X, Y) pixels, NaN where unknown.
        pixel_m: metres per pixel along x and y.
        cell_size: metres.
        percentile: 0 to 100 of the known pixels whose middle lies in a cell (100: the greatest);
            None: their mean by area.

    Returns:
        (I, J) cells from the first corner on; NaN where no pixel of a cell is known.

    Raises:
        InputError: no whole cell fits, or too many do.
    """
    extent = [n * p for n, p in zip(heights.shape, pixel_m, strict=True)]
    count = [math.floor(length / cell_size + 1e-6) for length in extent]
    size = f"{extent[0]:.4g} x {extent[1]:.4g} m"
    if min(count) < 1:
        raise InputError(
            f"--cell-size: {cell_size:g} m; the map is only {size}; choose smaller cells, or "
            "correct --pixel-size or --unit"
        )
    if math.prod(count) > MAX_CELLS:
        raise InputError(
            f"--cell-size: {cell_size:g} m makes {math.prod(count)} cells of a map of {size}, up "
            f"to {MAX_CELLS} are kept; choose larger cells, or correct --pixel-size or --unit"
        )
    shape = (count[0], count[1])
    if percentile is None:
        return _area_means(heights, pixel_m, cell_size, shape)
    return _percentiles(heights, pixel_m, cell_size, shape, percentile)


def _area_means(
    heights: NDArray[np.float32],
    pixel_m: tuple[float, float],
    cell_size: float,
    shape: tuple[int, int],
) -> FloatArray:
    known = np.isfinite(heights)
    x, y = (
        _overlaps(n, pixel, k, cell_size)
        for n, pixel, k in zip(heights.shape, pixel_m, shape, strict=True)
    )
    area = (y @ (x @ known.astype(np.float64)).T).T
    total = (y @ (x @ np.where(known, heights, 0.0).astype(np.float64)).T).T
    return np.where(area > 1e-9, total / np.maximum(area, 1e-9), np.nan)


def _overlaps(pixels: int, pixel_m: float, cells: int, cell_size: float) -> csr_matrix:
    """(cells, pixels) lengths that cells and pixels of one axis share, in cells."""
    edges = np.arange(cells + 1) * cell_size / pixel_m
    first = np.floor(edges[:-1] + 1e-9).astype(int)
    reach = math.ceil(cell_size / pixel_m) + 1
    pixel = first[:, None] + np.arange(reach)
    shared = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    cell = np.broadcast_to(np.arange(cells)[:, None], pixel.shape)
    ok = (shared > 1e-9) & (pixel < pixels)
    values = shared[ok] * pixel_m / cell_size
    return csr_matrix((values, (cell[ok], pixel[ok])), shape=(cells, pixels))


def _percentiles(
    heights: NDArray[np.float32],
    pixel_m: tuple[float, float],
    cell_size: float,
    shape: tuple[int, int],
    percentile: float,
) -> FloatArray:
    """Percentiles by rank; pixels larger than a cell count in each cell that they cover."""
    index = []
    for axis in (0, 1):
        parts = math.ceil(pixel_m[axis] / cell_size - 1e-9)
        middles = (np.arange(heights.shape[axis] * parts) + 0.5) * pixel_m[axis] / parts
        heights = np.repeat(heights, parts, axis=axis) if parts > 1 else heights
        index.append(np.floor(middles / cell_size + 1e-9).astype(np.int64))
    cell = index[0][:, None] * shape[1] + index[1][None, :]
    inside = (index[0] < shape[0])[:, None] & (index[1] < shape[1])[None, :]
    known = np.isfinite(heights) & inside
    cell, values = cell[known], heights[known].astype(np.float64)
    order = np.lexsort((values, cell))
    cell, values = cell[order], values[order]
    number = np.bincount(cell, minlength=shape[0] * shape[1])
    rank = np.floor(percentile / 100.0 * (number - 1) + 0.5).astype(np.int64)
    out = np.full(len(number), np.nan)
    full = number > 0
    out[full] = values[(np.cumsum(number) - number + rank)[full]]
    return out.reshape(shape)
