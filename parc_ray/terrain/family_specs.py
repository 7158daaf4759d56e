"""Ranges of the obstacle families, one frozen config each; all lengths are metres.

Numbers are what difficulty 1 means. Difficulty multiplies all heights; where a field says so, it
also widens gaps or narrows what there is to stand on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from parc_ray.errors import InputError

Range = tuple[float, float]
"""Lowest and highest value of a uniform draw."""

_SIGNED = ("level_m",)
"""Ranges that may be negative."""


def check_ranges(owner: object, where: str) -> None:
    """Refuse ranges of a config that are not finite or not ordered, naming the field.

    Raises:
        InputError: the first such field of ``owner``, as ``where.field``.
    """
    prefix = f"{where}." if where else ""
    for f in fields(owner):  # pyright: ignore[reportArgumentType]
        if f.type == "Range":
            low, high = getattr(owner, f.name)
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                refuse(prefix + f.name, (low, high), "give finite (low, high) with low <= high")


def refuse(field: str, value: object, allowed: str) -> None:
    """Raise the one-line error of a terrain field.

    Raises:
        InputError: always.
    """
    raise InputError(f"terrain.{field}: {value} is not allowed; {allowed}")


@dataclass(frozen=True, kw_only=True)
class FamilySpec:
    """What the families' configs share: ranges are checked, lengths are not negative."""

    def __post_init__(self) -> None:
        """Refuse ranges and numbers that cannot be drawn from, naming the field."""
        name = type(self).__name__.removesuffix("Spec").lower()
        check_ranges(self, name)
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "Range" and f.name not in _SIGNED and value[0] < 0.0:
                refuse(f"{name}.{f.name}", value, "give numbers >= 0")
            if f.type == "float" and not 0.0 <= value < math.inf:
                refuse(f"{name}.{f.name}", value, "give a finite number >= 0")

    def _positive(self, *names: str) -> None:
        """Refuse lengths of 0 where a family would not end."""
        owner = type(self).__name__.removesuffix("Spec").lower()
        for name in names:
            if getattr(self, name)[0] <= 0.0:
                refuse(f"{owner}.{name}", getattr(self, name), "lengths must be > 0 m")


@dataclass(frozen=True, kw_only=True)
class SlopesSpec(FamilySpec):
    """Ramps up and down with level ground between, along one direction, a step per cell."""

    angle_rad: Range = (0.2, 0.55)
    """Steepness of each ramp, radians, below a right angle."""
    ramp_m: Range = (1.5, 4.0)
    """Horizontal length of each ramp, metres."""
    flat_m: Range = (0.8, 2.0)
    """Level ground between ramps, metres."""

    def __post_init__(self) -> None:
        """Refuse ramps without length and walls."""
        super().__post_init__()
        self._positive("ramp_m")
        if self.angle_rad[1] >= math.pi / 2:
            refuse("slopes.angle_rad", self.angle_rad, "give radians below pi / 2")


@dataclass(frozen=True, kw_only=True)
class RubbleSpec(FamilySpec):
    """Tilted slabs of any direction, the highest of those that cover a cell."""

    density_per_m2: float = 0.7
    """Slabs per square metre."""
    side_m: Range = (0.4, 1.6)
    """Side lengths, metres."""
    height_m: Range = (0.05, 0.6)
    """Height of a slab's middle, metres."""
    tilt_rad: Range = (0.0, 0.3)
    """Tilt of a slab's top, radians, below a right angle."""

    def __post_init__(self) -> None:
        """Refuse slabs without area and upright ones."""
        super().__post_init__()
        self._positive("side_m")
        if self.tilt_rad[1] >= math.pi / 2:
            refuse("rubble.tilt_rad", self.tilt_rad, "give radians below pi / 2")


@dataclass(frozen=True, kw_only=True)
class StonesSpec(FamilySpec):
    """Stepping stones in a pit."""

    side_m: Range = (0.5, 1.0)
    """Side lengths of stones, metres; at least one cell."""
    gap_m: Range = (0.4, 1.0)
    """Gaps between stones, metres; difficulty widens them."""
    level_m: Range = (-0.25, 0.25)
    """Height of each stone, metres."""
    depth_m: Range = (1.5, 3.0)
    """Depth of the pit, metres."""

    def __post_init__(self) -> None:
        """Refuse stones without area."""
        super().__post_init__()
        self._positive("side_m")


@dataclass(frozen=True, kw_only=True)
class GapsSpec(FamilySpec):
    """Trenches across the whole terrain, with land of other levels between."""

    width_m: Range = (0.6, 1.6)
    """Width of each trench, metres; difficulty widens it."""
    land_m: Range = (1.2, 2.8)
    """Land between trenches, metres."""
    level_m: Range = (-0.3, 0.3)
    """Height of each piece of land, metres."""
    depth_m: Range = (1.5, 3.0)
    """Depth of each trench, metres."""

    def __post_init__(self) -> None:
        """Refuse land without length."""
        super().__post_init__()
        self._positive("land_m")


@dataclass(frozen=True, kw_only=True)
class BeamsSpec(FamilySpec):
    """Wide pits that narrow beams bridge."""

    pit_m: Range = (2.0, 4.0)
    """Width of each pit, metres: the length of its beams."""
    land_m: Range = (1.2, 2.4)
    """Land between pits, metres."""
    width_m: Range = (0.3, 0.8)
    """Width of beams, metres, at least one cell; divided by difficulty."""
    spacing_m: Range = (2.0, 4.0)
    """Distance between the beams of a pit, metres."""
    level_m: Range = (-0.2, 0.2)
    """Height of each beam, metres."""
    depth_m: Range = (1.5, 3.0)
    """Depth of each pit, metres."""

    def __post_init__(self) -> None:
        """Refuse land without length and beams without distance."""
        super().__post_init__()
        self._positive("pit_m", "land_m", "spacing_m")


@dataclass(frozen=True, kw_only=True)
class WallsSpec(FamilySpec):
    """Walls across the whole terrain: low ones to vault, high ones to climb."""

    vault_m: Range = (0.4, 1.0)
    """Height of walls to vault, metres."""
    climb_m: Range = (1.2, 1.9)
    """Height of walls to climb, metres."""
    climb_share: float = 0.4
    """Share of walls to climb, 0 to 1."""
    thickness_m: Range = (0.3, 0.9)
    """Thickness, metres; at least one cell."""
    space_m: Range = (1.8, 3.2)
    """Level ground between walls, metres."""

    def __post_init__(self) -> None:
        """Refuse walls that touch and shares above 1."""
        super().__post_init__()
        self._positive("space_m")
        if self.climb_share > 1.0:
            refuse("walls.climb_share", self.climb_share, "give a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class RuinsSpec(FamilySpec):
    """Rooms of broken walls with doors, floors of other levels, and rubble over all."""

    room_m: Range = (2.5, 5.0)
    """Side lengths of rooms, metres."""
    rooms_per_m2: float = 0.06
    """Rooms per square metre; at least one."""
    wall_m: Range = (0.6, 2.2)
    """Greatest height of a room's walls, metres."""
    thickness_m: float = 0.4
    """Thickness of walls, metres; at least one cell."""
    door_m: Range = (0.9, 1.6)
    """Width of each room's door, metres."""
    level_m: Range = (-0.3, 0.5)
    """Floors of rooms, metres."""
    rubble_per_m2: float = 0.15
    """Slabs per square metre; their sizes are those of ``rubble``."""

    def __post_init__(self) -> None:
        """Refuse rooms without area."""
        super().__post_init__()
        self._positive("room_m")


@dataclass(frozen=True, kw_only=True)
class FileSpec(FamilySpec):
    """Crops of one map that ``parc terrain`` wrote."""

    path: str = ""
    """The map's ``.npz``; all nodes must see it."""
    sha256: str = ""
    """What ``parc terrain`` printed for it: other contents are refused. Empty: not compared."""
    min_reachable: float = 0.7
    """Least share of a crop's cells that can be reached on foot, 0 to 1."""

    def __post_init__(self) -> None:
        """Refuse shares above 1."""
        super().__post_init__()
        if self.min_reachable > 1.0:
            refuse("file.min_reachable", self.min_reachable, "give a share from 0 to 1")
