"""Ground strewn with tilted slabs."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.families.common import as_terrain, size_metres, slabs
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def rubble_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Slabs anywhere, as many per square metre as asked, at least one."""
    cfg = spec.rubble
    count = max(1, round(cfg.density_per_m2 * float(np.prod(size_metres(spec)))))
    return as_terrain(spec, slabs(rng, spec, count, cfg.side_m, cfg.height_m, cfg.tilt_rad))
