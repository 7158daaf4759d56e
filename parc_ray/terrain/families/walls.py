"""Walls to vault and to climb."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.families.common import along_and_across, as_terrain, band_of, strips
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def walls_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Walls across one axis, each at least one cell thick, on level ground."""
    cfg = spec.walls
    along, _, length, _ = along_and_across(rng, spec)
    low, high = (max(v, spec.cell_size) for v in cfg.thickness_m)
    starts, widths = strips(rng, length, cfg.space_m, (low, high))
    climb = rng.random(len(starts)) < cfg.climb_share
    vaults, climbs = (rng.uniform(*r, len(starts)) for r in (cfg.vault_m, cfg.climb_m))
    heights = np.where(climb, climbs, vaults)
    near = band_of(along, starts, widths)
    inside = np.abs(along - (starts + widths / 2)[near]) <= widths[near] / 2
    return as_terrain(spec, np.where(inside, heights[near], 0.0))
