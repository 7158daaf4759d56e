"""Crops of one large map, which stands in for PARC's hand-made one (PARC 5.1, iterations 3, 4).

PARC cuts 16 x 16 cells from a map of 100 x 100 cells drawn by hand. This project makes the map
from a seed: districts of about 8 m, each with the ground of another family at its own level,
crossed by raised walkways and pits, so that a crop sees several kinds of obstacle at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from parc_ray.errors import InputError
from parc_ray.terrain.families.boxes import boxes_terrain
from parc_ray.terrain.families.paths import paths_terrain
from parc_ray.terrain.families.stairs import stairs_terrain
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.slicing import random_crop
from parc_ray.terrain.spec import TerrainSpec

_DISTRICT_M = 8.0
_LEVELS_M = (-1.2, -0.6, 0.0, 0.6, 1.2)


def slice_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """A random crop of ``spec.cells`` from the map of ``spec.map_seed``; heights as in the map."""
    if spec.cells[0] > spec.map_cells[0] or spec.cells[1] > spec.map_cells[1]:
        raise InputError(
            f"terrain.cells: {spec.cells} does not fit into map_cells {spec.map_cells}; "
            "ask for fewer cells or a larger map"
        )
    large = city_map(spec.map_cells, spec.cell_size, spec.map_seed)
    return random_crop(rng, large, spec.cells)[0]


@lru_cache(maxsize=8)
def city_map(cells: tuple[int, int], cell_size: float, seed: int) -> Heightfield:
    """The large map: a function of its size (cells), its cell size (metres) and its seed only."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, *cells]))
    grid = np.zeros(cells, dtype=np.float32)
    side = max(4, round(_DISTRICT_M / cell_size))
    for i in range(0, cells[0], side):
        for j in range(0, cells[1], side):
            block = grid[i : i + side, j : j + side]
            block[:] = _district(rng, block.shape, cell_size) + rng.choice(_LEVELS_M)
    for _ in range(max(1, cells[0] * cells[1] // (side * side) // 2)):
        _strip(rng, grid, cell_size)
    return replace(Heightfield.flat(cells, cell_size=cell_size), heights=torch.from_numpy(grid))


def _district(rng: np.random.Generator, shape: tuple[int, ...], cell_size: float) -> np.ndarray:
    """Heights of one district around 0: flat, low or high boxes, stairs, or walks."""
    spec = TerrainSpec(
        cells=(shape[0], shape[1]),
        cell_size=cell_size,
        box_count=6,
        box_side_m=(0.8, 3.2),
        path_count=5,
        path_height_m=(-0.6, 1.2),
        path_floor_m=-1.2,
        path_steps=400,
        stair_count=2,
        stair_start_m=(-1.0, 0.4),
        stair_width_m=(1.6, 4.0),
    )
    kind = rng.integers(0, 5)
    if kind == 0:
        return np.zeros(shape, dtype=np.float32)
    if kind == 1:
        return boxes_terrain(rng, replace(spec, box_height_m=(-0.3, 0.3))).heights.numpy()
    if kind == 2:
        return boxes_terrain(rng, replace(spec, box_height_m=(-1.6, 1.6))).heights.numpy()
    if kind == 3:
        return stairs_terrain(rng, spec).heights.numpy()
    return paths_terrain(rng, spec).heights.numpy()


def _strip(rng: np.random.Generator, grid: np.ndarray, cell_size: float) -> None:
    """Draw a walkway (raised) or a pit (sunk) of 0.8 to 2 m width along an axis, in place."""
    axis = int(rng.integers(0, 2))
    view = grid if axis == 0 else grid.T
    length = int(rng.uniform(4.0, 12.0) / cell_size)
    width = max(1, round(rng.uniform(0.8, 2.0) / cell_size))
    i = int(rng.integers(0, view.shape[0]))
    j = int(rng.integers(0, view.shape[1]))
    area = view[i : i + length, j : j + width]
    level = float(np.median(area))
    area[:] = level + (rng.uniform(0.3, 1.6) if rng.random() < 0.6 else -rng.uniform(0.4, 2.0))
