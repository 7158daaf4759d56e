"""Stepping stones in a pit."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.families.common import as_terrain, cell_metres, size_metres
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def stones_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Stones on a grid, each somewhere in its own square; difficulty shrinks them.

    The squares are as wide as a mean stone with a mean gap. Every stone has the cell of its centre
    at least.
    """
    cfg = spec.stones
    pitch = max((sum(cfg.side_m) + sum(cfg.gap_m)) / 2, 2 * spec.cell_size)
    count = np.ceil(size_metres(spec) / pitch).astype(int) + 1
    shift = rng.uniform(0.0, pitch, 2)
    side = rng.uniform(*cfg.side_m, (*count, 2))
    gap = (pitch - side) * spec.difficulty
    half = np.maximum(pitch - gap, spec.cell_size) / 2
    middle = rng.uniform(-0.5, 0.5, (*count, 2)) * (pitch - 2 * half).clip(min=0.0)
    level = rng.uniform(*cfg.level_m, tuple(count))
    depth = rng.uniform(*cfg.depth_m)
    position = np.stack(cell_metres(spec), axis=-1) + shift
    square = np.minimum((position / pitch).astype(int), count - 1)
    at = (square[..., 0], square[..., 1])
    offset = position - (square + 0.5) * pitch - middle[at]
    inside = (np.abs(offset) <= half[at]).all(axis=-1)
    inside |= (np.abs(offset) <= spec.cell_size / 2 + 1e-9).all(axis=-1)
    return as_terrain(spec, np.where(inside, level[at], -depth))
