"""Pits that narrow beams bridge."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.families.common import along_and_across, as_terrain, band_of, strips
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def beams_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Pits across one axis with beams along it; difficulty narrows the beams.

    Every pit has at least one beam, and a beam is at least one cell wide.
    """
    cfg = spec.beams
    along, across, length, width = along_and_across(rng, spec)
    starts, widths = strips(rng, length, cfg.land_m, cfg.pit_m)
    count = 2 + int(width / cfg.spacing_m[0])
    spacing = rng.uniform(*cfg.spacing_m, (len(starts), count))
    middles = np.cumsum(spacing, axis=1) - rng.uniform(0.0, 1.0, (len(starts), 1)) * spacing[:, :1]
    middles[:, 0] = np.minimum(middles[:, 0], width - spec.cell_size / 2)
    thick = rng.uniform(*cfg.width_m, middles.shape) / max(spec.difficulty, 1e-6)
    thick = np.maximum(thick, spec.cell_size)
    levels = rng.uniform(*cfg.level_m, middles.shape)
    depths = rng.uniform(*cfg.depth_m, len(starts))
    near = band_of(along, starts, widths)
    in_pit = np.abs(along - (starts + widths / 2)[near]) <= widths[near] / 2
    away = np.abs(across[..., None] - middles[near])
    beam = away.argmin(axis=-1)
    on_beam = np.take_along_axis(away, beam[..., None], -1)[..., 0] <= thick[near, beam] / 2
    heights = np.where(on_beam, levels[near, beam], -depths[near])
    return as_terrain(spec, np.where(in_pit, heights, 0.0))
