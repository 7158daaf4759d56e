"""Ramps up and down with level ground between them."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.families.common import as_terrain, cell_metres, size_metres
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def slopes_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """One profile of ramps along a random direction; each cell has its centre's height.

    Ramps go up and down in turn, so that the ground stays near height 0.
    """
    cfg = spec.slopes
    x, y = cell_metres(spec)
    angle = rng.uniform(0.0, 2 * np.pi)
    along = np.cos(angle) * x + np.sin(angle) * y
    length = float(np.hypot(*size_metres(spec)))
    count = 2 + int(length / (cfg.ramp_m[0] + cfg.flat_m[0]))
    ramps, flats = rng.uniform(*cfg.ramp_m, count), rng.uniform(*cfg.flat_m, count)
    signs = np.where(np.arange(count) % 2 == 0, 1.0, -1.0) * rng.choice([-1.0, 1.0])
    rises = signs * np.tan(rng.uniform(*cfg.angle_rad, count)) * ramps
    knots = np.concatenate([[0.0], np.cumsum(np.stack([ramps, flats], axis=1))])
    levels = np.concatenate([[0.0], np.repeat(np.cumsum(rises), 2)])
    shift = rng.uniform(0.0, ramps[0] + flats[0])
    heights = np.interp(along - along.min() + shift, knots, levels)
    return as_terrain(spec, heights - np.median(heights))
