"""Random walks over a low floor: PARC's test terrains (ranges of the published code)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec

_STEP_S = 1.0 / 30.0


def paths_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Curved walks, each at its own height, widened by taking the highest neighbour.

    A walk begins anywhere with speed sqrt(1 + n^2) m/s, n normal, turns by a normal angle in
    every step, and writes its height into the visited cells (those of the border when it leaves
    the terrain). Later walks overwrite earlier ones.
    """
    count, steps = spec.path_count, spec.path_steps
    size = np.asarray(spec.cells)
    start = rng.uniform(0.0, 1.0, (count, 1, 2)) * (size - 1) * spec.cell_size
    sideways = rng.normal(size=(count, 1))
    heading = rng.uniform(0.0, 2 * np.pi, (count, 1)) + np.arctan2(sideways, 1.0)
    turns = rng.normal(size=(count, steps)) * _STEP_S * spec.path_curviness
    height = rng.uniform(*spec.path_height_m, count).astype(np.float32)
    angle = heading + np.cumsum(turns, axis=1)
    velocity = np.hypot(1.0, sideways)[..., None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    position = start + np.cumsum(velocity * _STEP_S, axis=1)
    visited = np.rint(position / spec.cell_size).astype(np.int64).clip(0, size - 1)
    grid = np.full(spec.cells, spec.path_floor_m, dtype=np.float32)
    for walk in range(count):
        grid[visited[walk, :, 0], visited[walk, :, 1]] = height[walk]
    widen = round(spec.path_widen_m / spec.cell_size)
    heights = torch.from_numpy(grid)
    if widen > 0:
        heights = torch.nn.functional.max_pool2d(
            heights[None, None], 2 * widen + 1, stride=1, padding=widen
        )[0, 0]
    return replace(Heightfield.flat(spec.cells, cell_size=spec.cell_size), heights=heights)
