"""What random terrain to make: one frozen config for all families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from parc_ray.errors import InputError

Range = tuple[float, float]
"""Lowest and highest value of a uniform draw."""


@dataclass(frozen=True, kw_only=True)
class TerrainSpec:
    """Size, family and ranges of random terrains. Fields of other families are ignored."""

    kind: str = "boxes"
    """Family: a name of ``parc_ray.terrain.generators.TERRAINS`` (boxes, paths, stairs, ...)."""
    cells: tuple[int, int] = (16, 16)
    """Cells along x and y. PARC: 16 x 16 in training, 32 x 32 in tests."""
    cell_size: float = 0.4
    """Metres per cell. PARC: 0.4."""
    difficulty: float = 1.0
    """Factor on all heights, >= 0: 0 is flat, 1 is PARC."""
    box_count: int = 10
    """Boxes per terrain. PARC: 10."""
    box_height_m: Range = (-2.0, 2.0)
    """Metres, absolute. PARC: -2 to 2."""
    box_side_m: Range = (2.0, 4.0)
    """Side lengths in metres. PARC: 5 to 10 cells, 2 to 4 m."""
    box_angle_rad: Range = (0.0, 0.0)
    """Turn of each box about z, radians. PARC: 0."""
    path_count: int = 8
    """Random walks per terrain. PARC: 8 in the published settings, 10 in the paper's test set."""
    path_height_m: Range = (-1.6, 2.0)
    """Height of each walk, metres. PARC: -1.6 to 2."""
    path_floor_m: float = -2.0
    """Height of the ground that no walk visits, metres. PARC: -2."""
    path_widen_m: float = 0.4
    """How far a walk is widened to all sides, metres (rounded to cells). PARC: one cell, 0.4 m."""
    path_curviness: float = 7.0
    """Standard deviation of the turn per step over dt, rad/s. PARC: 7."""
    path_steps: int = 1000
    """Steps of 1/30 s at 1 m/s or more. PARC: 1000."""
    stair_count: int = 4
    """Flights of stairs. PARC: 4."""
    stair_start_m: Range = (-3.0, 1.0)
    """Height of the lowest step, metres. PARC: -3 to 1."""
    stair_step_m: Range = (0.15, 0.25)
    """Rise of each step, metres. PARC: 0.15 to 0.25."""
    stair_width_m: Range = (2.0, 8.0)
    """Width across the flight, metres. PARC: 2 to 8."""
    map_cells: tuple[int, int] = (100, 100)
    """Cells of the large map from which ``slice`` crops. PARC: 100 x 100, made by hand."""
    map_seed: int = 0
    """Seed of the large map."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Numbers for families that this project does not know."""

    def __post_init__(self) -> None:
        """Refuse sizes, counts and ranges that no family can use, naming the field."""
        for name in ("cells", "map_cells"):
            if min(getattr(self, name)) < 1:
                _refuse(name, getattr(self, name), "give at least one cell along x and y")
        for name in ("box_count", "path_count", "path_steps", "stair_count", "map_seed"):
            if getattr(self, name) < 0:
                _refuse(name, getattr(self, name), "give an integer >= 0")
        for name in ("difficulty", "path_widen_m", "path_curviness"):
            if not 0.0 <= getattr(self, name) < math.inf:
                _refuse(name, getattr(self, name), "give a finite number >= 0")
        if not 0.0 < self.cell_size < math.inf:
            _refuse("cell_size", self.cell_size, "give metres > 0")
        if not math.isfinite(self.path_floor_m):
            _refuse("path_floor_m", self.path_floor_m, "give finite metres")
        for f in fields(self):
            if f.type == "Range":
                low, high = getattr(self, f.name)
                if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                    _refuse(f.name, (low, high), "give finite (low, high) with low <= high")
        for name in ("box_side_m", "stair_width_m"):
            if getattr(self, name)[0] <= 0.0:
                _refuse(name, getattr(self, name), "lengths must be > 0 m")


def _refuse(name: str, value: object, allowed: str) -> None:
    raise InputError(f"terrain.{name}: {value} is not allowed; {allowed}")
