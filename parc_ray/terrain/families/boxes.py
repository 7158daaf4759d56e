"""Random boxes on flat ground (PARC, iterations 1 and 2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def boxes_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Boxes of random place, sides, angle and height; later ones overwrite earlier ones.

    A cell belongs to a box when its centre lies strictly inside. A centre is drawn from the
    rectangle [0, X) x [0, Y) in cells, with cell (0, 0) at its corner, as PARC does.
    """
    count = spec.box_count
    center = rng.uniform(0.0, 1.0, (count, 2)) * spec.cells
    half = rng.uniform(*spec.box_side_m, (count, 2)) / (2 * spec.cell_size)
    angle = rng.uniform(*spec.box_angle_rad, count)
    height = rng.uniform(*spec.box_height_m, count)
    grid = np.stack(np.meshgrid(*map(np.arange, spec.cells), indexing="ij"), axis=-1)
    offset = grid[None] - center[:, None, None]
    cos, sin = (f(angle)[:, None, None] for f in (np.cos, np.sin))
    along = cos * offset[..., 0] + sin * offset[..., 1]
    across = -sin * offset[..., 0] + cos * offset[..., 1]
    inside = (np.abs(along) < half[:, 0, None, None]) & (np.abs(across) < half[:, 1, None, None])
    # The last box that covers a cell decides; 0 stands for the ground.
    order = (inside * np.arange(1, count + 1)[:, None, None]).max(axis=0, initial=0)
    heights = np.concatenate([[0.0], height])[order]
    base = Heightfield.flat(spec.cells, cell_size=spec.cell_size)
    return replace(base, heights=torch.from_numpy(heights.astype(np.float32)))
