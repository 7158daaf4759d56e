"""Decomposition of a heightfield into disjoint boxes for rigid-body simulators.

Why boxes: docs/design/physics.md, Terrain as boxes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.rectangles import Rectangle, merge_rectangles


def merge_boxes(heights: Tensor, *, tolerance: float = 1e-4) -> list[Rectangle]:
    """Disjoint rectangles that cover heights (X, Y), metres; see ``merge_rectangles``."""
    return merge_rectangles(heights.detach().cpu().numpy().astype(np.float64), tolerance)


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
