"""Decomposition of a heightfield into disjoint boxes for rigid-body simulators.

Why boxes: docs/design/physics.md, Terrain as boxes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

Rectangle = tuple[int, int, int, int, float]
"""(i0, i1, j0, j1, height): cells i0 <= i < i1 and j0 <= j < j1, all of one height in metres."""


def merge_boxes(heights: Tensor, *, tolerance: float = 1e-4) -> list[Rectangle]:
    """Cover a grid with disjoint rectangles of equal height, greedily.

    From every cell that is not covered yet, in row-major order, the larger of two rectangles is
    taken: grown along y and then x, or along x and then y.

    Args:
        heights: (X, Y) metres.
        tolerance: heights are equal when they round to the same multiple of this (metres); the
            rectangle gets the height of its first cell.

    Returns:
        Rectangles that together cover each cell exactly once.
    """
    values = heights.detach().cpu().numpy().astype(np.float64)
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


def _grow(usable: np.ndarray) -> tuple[int, int]:
    """Rows and columns of the rectangle at the corner: as wide as can be, then as long."""
    first = usable[0]
    cols = int(first.argmin()) if not first.all() else first.size
    full = usable[:, :cols].all(axis=1)
    rows = int(full.argmin()) if not full.all() else full.size
    return rows, cols


def boxes_to_world(
    terrain: Heightfield,
    base_z: float | None = None,
    *,
    apron_m: float = 0.0,
    tolerance: float = 1e-4,
) -> Tensor:
    """Disjoint world boxes with the terrain's tops as their tops.

    Args:
        terrain: the heightfield.
        base_z: world z of all bottoms; None puts them one metre below the lowest top.
        apron_m: how far the border cells go on beyond the grid, metres.
        tolerance: see ``merge_boxes``.

    Returns:
        (K, 6) float32: centre xyz and half sizes xyz, metres.

    Raises:
        InputError: ``base_z`` is not below every column's top.
    """
    lowest = float(terrain.heights.min())
    bottom = lowest - 1.0 if base_z is None else base_z
    if bottom >= lowest:
        raise InputError(
            f"base_z: {bottom} is not allowed; it must lie below the lowest column ({lowest} m)"
        )
    rectangles = torch.tensor(
        merge_boxes(terrain.heights, tolerance=tolerance), dtype=torch.float64
    )
    low, high = rectangles[:, [0, 2]], rectangles[:, [1, 3]]
    at_low, at_high = low == 0, high == torch.tensor(terrain.shape)
    corner = terrain.origin.double() - terrain.cell_size / 2
    low = corner + low * terrain.cell_size - at_low * apron_m
    high = corner + high * terrain.cell_size + at_high * apron_m
    top = rectangles[:, 4:]
    floor = torch.full_like(top, bottom)
    low, high = torch.cat([low, floor], dim=1), torch.cat([high, top], dim=1)
    return torch.cat([(low + high) / 2, (high - low) / 2], dim=1).float()
