"""Cutting terrains: around a motion, at random from a large map, and padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield


def slice_around_motion(
    terrain: Heightfield, root_xy: Tensor, margin_m: float = 1.2
) -> Heightfield:
    """The part of the terrain within ``margin_m`` (PARC: 1.2 m) of the bounding box of a motion.

    Args:
        terrain: the whole terrain.
        root_xy: (T, 2) world metres.
        margin_m: metres added on all sides; beyond the grid the edge cells are repeated.
    """
    return terrain.cropped(root_xy.amin(0), root_xy.amax(0), margin_m)


def local_offset(terrain: Heightfield, root_pos: Tensor) -> Tensor:
    """Translation (3,) that brings frame 0 of (T, 3) over the origin and its ground to z = 0."""
    ground = terrain.height_at(root_pos[0, :2])
    return -torch.cat([root_pos[0, :2], ground[None]])


def random_crop(
    rng: np.random.Generator, terrain: Heightfield, size: tuple[int, int]
) -> tuple[Heightfield, tuple[int, int]]:
    """Uniformly random crop of ``size`` cells and the index of its first cell in ``terrain``.

    The crop is centred on the world origin; heights stay as they are.
    """
    for axis in (0, 1):
        if size[axis] > terrain.shape[axis]:
            raise InputError(
                f"size[{axis}]: {size[axis]} cells do not fit into the terrain's "
                f"{terrain.shape[axis]}; ask for fewer or use a larger map"
            )
    i, j = (int(rng.integers(0, terrain.shape[a] - size[a] + 1)) for a in (0, 1))
    return crop_at(terrain, (i, j), size), (i, j)


def crop_at(terrain: Heightfield, first: tuple[int, int], size: tuple[int, int]) -> Heightfield:
    """The ``size`` cells from cell ``first`` on, centred on the world origin, without bounds."""
    (i, j), (x, y) = first, size
    known = terrain.confidence
    return replace(
        Heightfield.flat(size, cell_size=terrain.cell_size),
        heights=terrain.heights[i : i + x, j : j + y].clone(),
        confidence=None if known is None else known[i : i + x, j : j + y].clone(),
    )


def padded(terrain: Heightfield, cells: int, height: float) -> Heightfield:
    """Surround the terrain with ``cells`` rows of ground at ``height`` metres; bounds are lost."""
    if cells < 0:
        raise InputError(f"cells: {cells} is not allowed; give a number >= 0")
    heights = torch.nn.functional.pad(terrain.heights, [cells] * 4, value=height)
    origin = terrain.origin - cells * terrain.cell_size
    return Heightfield(heights=heights, origin=origin, cell_size=terrain.cell_size)
