"""Real ground made usable: holes filled, parts that nobody can reach marked."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, label
from scipy.sparse import coo_matrix, diags
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import cg

from parc_ray.errors import InputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
MAX_SMOOTH_HOLES = 500_000
"""Most cells that ``laplace`` fills."""


def fill_holes(heights: FloatArray, how: Literal["nearest", "laplace"]) -> FloatArray:
    """Give cells without a height one; a new array.

    ``nearest`` takes the nearest known height; ``laplace`` stretches a membrane between the known
    ones (every filled cell is the mean of its neighbours), to about 1e-6 of the range of heights.

    Args:
        heights: (X, Y) metres, NaN where unknown.
        how: way of filling.

    Raises:
        InputError: nothing is known, or more holes than ``laplace`` fills.
    """
    hole = ~np.isfinite(heights)
    if hole.all():
        raise InputError("heights: no cell has a height; give a map or scan with known ground")
    if not hole.any():
        return heights.copy()
    nearest = np.asarray(distance_transform_edt(hole, return_distances=False, return_indices=True))
    filled = heights[nearest[0], nearest[1]]
    if how == "nearest":
        return filled
    if int(hole.sum()) > MAX_SMOOTH_HOLES:
        raise InputError(
            f"--fill: laplace fills up to {MAX_SMOOTH_HOLES} cells, {int(hole.sum())} are holes; "
            "use nearest or larger cells"
        )
    return _membrane(filled, hole)


def _membrane(filled: FloatArray, hole: BoolArray) -> FloatArray:
    """Solve Laplace's equation over the holes, from a first guess; the border is free."""
    number = np.full(hole.shape, -1)
    number[hole] = np.arange(int(hole.sum()))
    rows, cols, degree = [], [], np.zeros(int(hole.sum()))
    known = np.zeros_like(degree)
    for a, b in _neighbour_pairs(diagonal=False):
        for one, two in ((a, b), (b, a)):
            here = hole[one]
            inner, outer = here & hole[two], here & ~hole[two]
            np.add.at(degree, number[one][here], 1.0)
            rows.append(number[one][inner])
            cols.append(number[two][inner])
            np.add.at(known, number[one][outer], filled[two][outer])
    row, col = np.concatenate(rows), np.concatenate(cols)
    links = coo_matrix((np.ones(len(row)), (row, col)), shape=(len(degree), len(degree)))
    system = (diags(degree) - links).tocsr()
    start = filled[hole]
    base = float(filled.mean())  # so that the tolerance is one of the relief, not the altitude
    ones = system @ np.ones(len(degree))
    values, _ = cg(system, known - base * ones, x0=start - base, rtol=1e-9, maxiter=20_000)
    result = filled.copy()
    result[hole] = values + base
    return result


def reachable_cells(heights: FloatArray, max_step_m: float) -> BoolArray:
    """The largest part of the ground that steps connect, (X, Y) bool.

    A step leads to one of the 8 neighbours, up or down by at most ``max_step_m``, as walk edges of
    the planner do; jumps are not counted. Of equally large parts the first by index counts.
    """
    ids = np.arange(heights.size).reshape(heights.shape)
    src, dst = [], []
    for a, b in _neighbour_pairs(diagonal=True):
        ok = np.abs(heights[a] - heights[b]) <= max_step_m
        src.append(ids[a][ok])
        dst.append(ids[b][ok])
    row, col = np.concatenate(src), np.concatenate(dst)
    graph = coo_matrix((np.ones(len(row), dtype=np.int8), (row, col)), shape=(heights.size,) * 2)
    part = connected_components(graph, directed=False)[1]
    return (part == np.bincount(part).argmax()).reshape(heights.shape)


def largest_hole_m(hole: BoolArray, cell_size: float) -> float:
    """Side of the square with the area of the largest connected hole, metres; 0 without holes."""
    parts = np.asarray(label(hole)[0])  # pyright: ignore[reportIndexIssue]
    areas = np.bincount(parts.ravel())[1:]
    return float(np.sqrt(areas.max()) * cell_size) if len(areas) else 0.0


def _neighbour_pairs(*, diagonal: bool) -> list[tuple[tuple[slice, slice], tuple[slice, slice]]]:
    """Views of a grid and of its cells' neighbours; each pair of neighbours once."""
    every, low, high = slice(None), slice(None, -1), slice(1, None)
    pairs = [((low, every), (high, every)), ((every, low), (every, high))]
    if diagonal:
        pairs += [((low, low), (high, high)), ((low, high), (high, low))]
    return pairs
