"""Trenches to jump over."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.families.common import along_and_across, as_terrain, band_of, strips
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def gaps_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Trenches across one axis; difficulty widens them about their middles."""
    cfg = spec.gaps
    along, _, length, _ = along_and_across(rng, spec)
    starts, widths = strips(rng, length, cfg.land_m, cfg.width_m)
    middles = starts + widths / 2
    depths = rng.uniform(*cfg.depth_m, len(starts))
    levels = rng.uniform(*cfg.level_m, len(starts) + 1)
    near = band_of(along, starts, widths)
    sunk = np.abs(along - middles[near]) <= widths[near] * spec.difficulty / 2
    land = levels[np.searchsorted(middles, along)]
    return as_terrain(spec, np.where(sunk, -depths[near], land))
