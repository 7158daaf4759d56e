"""Flights of stairs between random points (published code only)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def stairs_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Stairs on flat ground: one step per cell length along the line between two points.

    Step j is centred ``j`` cells from the start and rises ``j`` times the step height over it.
    Later flights overwrite earlier ones.
    """
    count = spec.stair_count
    size = np.asarray(spec.cells)
    ends = rng.uniform(0.0, 1.0, (count, 2, 2)) * (size - 1) * spec.cell_size
    width = rng.uniform(*spec.stair_width_m, count)
    start = rng.uniform(*spec.stair_start_m, count)
    rise = rng.uniform(*spec.stair_step_m, count)
    grid = np.stack(np.meshgrid(*map(np.arange, spec.cells), indexing="ij"), axis=-1)
    centers = grid * spec.cell_size
    heights = np.zeros(spec.cells)
    for flight in range(count):
        run = ends[flight, 1] - ends[flight, 0]
        length = float(np.hypot(*run))
        forward = run / length if length > 0.0 else np.array([1.0, 0.0])
        offset = centers - ends[flight, 0]
        along = offset @ forward
        across = offset[..., 1] * forward[0] - offset[..., 0] * forward[1]
        step = np.rint(along / spec.cell_size)
        steps = max(1, int(np.ceil(length / spec.cell_size)))
        inside = (step >= 0) & (step < steps) & (np.abs(across) < width[flight] / 2)
        heights = np.where(inside, start[flight] + step * rise[flight], heights)
    base = Heightfield.flat(spec.cells, cell_size=spec.cell_size)
    return replace(base, heights=torch.from_numpy(heights.astype(np.float32)))
