"""Disjoint rectangles of equal height that cover a grid; numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rectangle = tuple[int, int, int, int, float]
"""(i0, i1, j0, j1, height): cells i0 <= i < i1 and j0 <= j < j1, all of one height in metres."""


def merge_rectangles(values: NDArray[np.float64], tolerance: float = 1e-4) -> list[Rectangle]:
    """Cover a grid with disjoint rectangles of equal height, greedily.

    From every cell that is not covered yet, in row-major order, the larger of two rectangles is
    taken: grown along y and then x, or along x and then y.

    Args:
        values: (X, Y) metres.
        tolerance: heights are equal when they round to the same multiple of this (metres); the
            rectangle gets the height of its first cell.

    Returns:
        Rectangles that together cover each cell exactly once.
    """
    keys = np.round(values / tolerance).astype(np.int64)
    free = np.ones(keys.shape, dtype=bool)
    rectangles: list[Rectangle] = []
    for i, j in np.ndindex(*keys.shape):
        if not free[i, j]:
            continue
        usable = free & (keys == keys[i, j])
        rows, cols = max(
            _grow(usable[i:, j:]),
            _grow(usable[i:, j:].T)[::-1],
            key=lambda shape: shape[0] * shape[1],
        )
        free[i : i + rows, j : j + cols] = False
        rectangles.append((i, i + rows, j, j + cols, float(values[i, j])))
    return rectangles


def _grow(usable: NDArray[np.bool_]) -> tuple[int, int]:
    """Rows and columns of the rectangle at the corner: as wide as can be, then as long."""
    first = usable[0]
    cols = int(first.argmin()) if not first.all() else first.size
    full = usable[:, :cols].all(axis=1)
    rows = int(full.argmin()) if not full.all() else full.size
    return rows, cols
