"""Rooms of broken walls among rubble."""

from __future__ import annotations

import numpy as np

from parc_ray.terrain.families.common import as_terrain, cell_metres, size_metres, slabs
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def ruins_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """Rooms anywhere; where two overlap, walls stay and the later floor counts.

    A room's walls are as high as asked at most, sink to nothing in places, and have one door.
    """
    cfg, rubble = spec.ruins, spec.rubble
    x, y = cell_metres(spec)
    size = size_metres(spec)
    area = float(np.prod(size))
    floors, walls = np.zeros(spec.cells), np.full(spec.cells, -np.inf)
    for _ in range(max(1, round(cfg.rooms_per_m2 * area))):
        middle, half = rng.uniform(0.0, 1.0, 2) * size, rng.uniform(*cfg.room_m, 2) / 2
        level, top = rng.uniform(*cfg.level_m), rng.uniform(*cfg.wall_m)
        door, waves = rng.uniform(0.0, 2 * np.pi), rng.uniform(0.0, 2 * np.pi, 2)
        door_half = rng.uniform(*cfg.door_m) / 2
        dx, dy = x - middle[0], y - middle[1]
        # Distance inside the outline; walls are where it is less than their thickness.
        depth = np.minimum(half[0] - np.abs(dx), half[1] - np.abs(dy))
        inside = depth >= 0.0
        angle = np.arctan2(dy / half[1], dx / half[0])
        broken = 0.55 + 0.3 * np.cos(2 * angle + waves[0]) + 0.3 * np.cos(5 * angle + waves[1])
        away = np.abs((angle - door + np.pi) % (2 * np.pi) - np.pi) * half.mean()
        wall = inside & (depth < max(cfg.thickness_m, spec.cell_size)) & (away > door_half)
        floors = np.where(inside, level, floors)
        walls = np.where(wall, np.maximum(walls, level + top * broken.clip(0.0, 1.0)), walls)
    count = round(cfg.rubble_per_m2 * area)
    floors = floors + slabs(rng, spec, count, rubble.side_m, rubble.height_m, rubble.tilt_rad)
    return as_terrain(spec, np.maximum(floors, walls))
