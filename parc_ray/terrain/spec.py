"""What random terrain to make: one frozen config for all families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from parc_ray.terrain.family_specs import (
    BeamsSpec,
    FileSpec,
    GapsSpec,
    Range,
    RubbleSpec,
    RuinsSpec,
    SlopesSpec,
    StonesSpec,
    WallsSpec,
    check_ranges,
    refuse,
)


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
    """Factor on all heights, and on gaps of families that have them, >= 0: 0 is flat, 1 is PARC."""
    difficulty_spread: float = 0.0
    """Each terrain draws its own difficulty from (1 - spread) to 1 times the above. PARC: 0."""
    mix: tuple[str, ...] = (
        "boxes",
        "paths",
        "stairs",
        "slopes",
        "rubble",
        "stones",
        "gaps",
        "beams",
        "walls",
        "ruins",
    )
    """Families of which kind ``mixed`` draws one per terrain. PARC: one family per iteration."""
    mix_weights: tuple[float, ...] = ()
    """Weight of each family of ``mix``; empty: all alike."""
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
    slopes: SlopesSpec = field(default_factory=SlopesSpec)
    """Ranges of kind ``slopes``. PARC: none, as of all below."""
    rubble: RubbleSpec = field(default_factory=RubbleSpec)
    """Ranges of kind ``rubble``."""
    stones: StonesSpec = field(default_factory=StonesSpec)
    """Ranges of kind ``stones``."""
    gaps: GapsSpec = field(default_factory=GapsSpec)
    """Ranges of kind ``gaps``."""
    beams: BeamsSpec = field(default_factory=BeamsSpec)
    """Ranges of kind ``beams``."""
    walls: WallsSpec = field(default_factory=WallsSpec)
    """Ranges of kind ``walls``."""
    ruins: RuinsSpec = field(default_factory=RuinsSpec)
    """Ranges of kind ``ruins``."""
    file: FileSpec = field(default_factory=FileSpec)
    """The map that kind ``file`` cuts from."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Numbers for families that this project does not know."""

    def __post_init__(self) -> None:
        """Refuse sizes, counts and ranges that no family can use, naming the field."""
        for name in ("cells", "map_cells"):
            if min(getattr(self, name)) < 1:
                refuse(name, getattr(self, name), "give at least one cell along x and y")
        for name in ("box_count", "path_count", "path_steps", "stair_count", "map_seed"):
            if getattr(self, name) < 0:
                refuse(name, getattr(self, name), "give an integer >= 0")
        for name in ("difficulty", "path_widen_m", "path_curviness"):
            if not 0.0 <= getattr(self, name) < math.inf:
                refuse(name, getattr(self, name), "give a finite number >= 0")
        if not 0.0 <= self.difficulty_spread <= 1.0:
            refuse("difficulty_spread", self.difficulty_spread, "give a share from 0 to 1")
        if not 0.0 < self.cell_size < math.inf:
            refuse("cell_size", self.cell_size, "give metres > 0")
        if not math.isfinite(self.path_floor_m):
            refuse("path_floor_m", self.path_floor_m, "give finite metres")
        check_ranges(self, "")
        for name in ("box_side_m", "stair_width_m"):
            if getattr(self, name)[0] <= 0.0:
                refuse(name, getattr(self, name), "lengths must be > 0 m")
        self._check_mix()

    def _check_mix(self) -> None:
        """Refuse an empty mix, and weights that are no weights of its families."""
        if not self.mix:
            refuse("mix", "()", "name at least one family")
        if not self.mix_weights:
            return
        if len(self.mix_weights) != len(self.mix):
            refuse("mix_weights", self.mix_weights, f"give {len(self.mix)}, one per family of mix")
        ok = all(0.0 <= w < math.inf for w in self.mix_weights) and sum(self.mix_weights) > 0.0
        if not ok:
            refuse("mix_weights", self.mix_weights, "give finite numbers >= 0, not all 0")
