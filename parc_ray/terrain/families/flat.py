"""Level ground at height 0."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def flat_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Flat terrain; nothing is drawn from ``rng``."""
    return Heightfield.flat(spec.cells, cell_size=spec.cell_size)
