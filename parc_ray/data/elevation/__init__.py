"""Real ground: elevation maps and scans become terrain maps.

Read, resampled to cells, holes filled, unreachable parts marked, levelled to the median.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from parc_ray.data.elevation.mesh import read_scan
from parc_ray.data.elevation.raster import UNITS_M, Raster, read_raster
from parc_ray.data.elevation.resample import to_cells
from parc_ray.errors import InputError
from parc_ray.terrain.files import TerrainMap
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.mending import fill_holes, largest_hole_m, reachable_cells

__all__ = ["FORMATS", "ImportedMap", "MapImport", "import_map", "parse_reduce"]

SCANS = (".obj", ".stl", ".ply")
FORMATS = (".png", ".tif", ".tiff", ".npy", *SCANS)
"""Endings of files that can be imported."""
GREATEST_HEIGHT_M = 20_000.0
"""Heights beyond are a wrong unit or a value that stands for nothing."""


@dataclass(frozen=True, kw_only=True)
class MapImport:
    """How a file becomes a map."""

    cell_size: float = 0.4
    """Metres per cell."""
    percentile: float | None = None
    """Of the heights in a cell, 0 to 100 (100: the greatest); None: their mean by area."""
    fill: Literal["nearest", "laplace"] = "nearest"
    """How cells without a height get one."""
    max_step_m: float = 2.1
    """Largest step up or down that counts as reachable, metres."""
    pixel_m: tuple[float, float] | None = None
    """Metres per pixel along x and y; None: what the file says."""
    height_scale: float | None = None
    """Units of height per number in the file; None: 1 (a PNG needs it)."""
    unit: str | None = None
    """Unit of heights, of scans of all lengths; None: what the file says, else metres."""
    nodata: float | None = None
    """Number that stands for no height; None: what the file says."""
    up: Literal["z", "y"] = "z"
    """Which axis of a scan points up."""
    ceiling_m: float | None = None
    """What of a scan lies higher is not seen, metres in the file's frame."""
    keep_altitude: bool = False
    """Keep heights as they are, instead of the median of what can be reached becoming 0."""

    def __post_init__(self) -> None:
        """Refuse sizes and units that nothing can be imported with, naming the option."""
        for name in ("cell_size", "height_scale"):
            value = getattr(self, name)
            if value is not None and not 0.0 < abs(value) < math.inf:
                _refuse(name, value, "give a finite number other than 0")
        if self.cell_size < 0.0:
            _refuse("cell_size", self.cell_size, "give metres > 0")
        if self.pixel_m is not None and not all(0.0 < p < math.inf for p in self.pixel_m):
            _refuse("pixel_size", self.pixel_m, "give metres > 0")
        if not self.max_step_m >= 0.0:
            _refuse("max_step", self.max_step_m, "give metres >= 0")
        if self.percentile is not None and not 0.0 <= self.percentile <= 100.0:
            _refuse("reduce", f"p{self.percentile:g}", "give p0 to p100")
        if self.unit is not None and self.unit not in UNITS_M:
            _refuse("unit", self.unit, f"choose one of {', '.join(UNITS_M)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedMap:
    """A map and what was done to make it."""

    made: TerrainMap
    """The map, centred on the world origin."""
    filled: int
    """Cells without a height of their own; their confidence is 0."""
    largest_hole_m: float
    """Side of a square of the size of the largest hole, metres."""
    lowered_m: float
    """What was subtracted from all heights, metres."""


def import_map(path: str | Path, cfg: MapImport) -> ImportedMap:
    """Make a terrain map of an elevation map or a scan.

    Raises:
        InputError: no such file, an unknown ending, a broken or too large file, or one that does
            not tell its scale where ``cfg`` does not either.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"{path}: no such file; give one of {', '.join(FORMATS)}")
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: {path.suffix or 'no ending'} is not known; {', '.join(FORMATS)}")
    if path.suffix.lower() in SCANS:
        raster = read_scan(
            path,
            cfg.cell_size,
            unit_m=UNITS_M[cfg.unit or "m"],
            up=cfg.up,
            ceiling_m=cfg.ceiling_m,
        )
        pixel, scale = _pixel_size(path, raster, MapImport()), 1.0
    else:
        raster = read_raster(path, cfg.nodata)
        pixel, scale = _pixel_size(path, raster, cfg), _height_scale(path, raster, cfg)
    _check_heights(path, raster, scale)
    cells = to_cells(raster.heights, pixel, cfg.cell_size, cfg.percentile) * scale
    return _finished(path, cells, cfg)


def parse_reduce(text: str) -> float | None:
    """``mean``, ``max`` or ``p0`` to ``p100`` as ``MapImport.percentile``.

    Raises:
        InputError: anything else.
    """
    if text in ("mean", "max"):
        return None if text == "mean" else 100.0
    try:
        if text.startswith("p"):
            return float(text[1:])
    except ValueError:
        pass
    raise InputError(f"--reduce: {text!r} is not known; choose mean, max, or p0 to p100")


def _pixel_size(path: Path, raster: Raster, cfg: MapImport) -> tuple[float, float]:
    pixel = cfg.pixel_m or raster.pixel_m
    if pixel is None:
        raise InputError(
            f"{path}: does not tell how many metres a pixel is; say it with --pixel-size"
        )
    if not all(0.0 < p < math.inf for p in pixel):
        raise InputError(f"{path}: says that a pixel is {pixel} m; say better with --pixel-size")
    return pixel


def _height_scale(path: Path, raster: Raster, cfg: MapImport) -> float:
    """Metres per number in the file."""
    if cfg.height_scale is None and path.suffix.lower() == ".png":
        raise InputError(
            f"{path}: a PNG does not tell what height a grey level is; say it with --height-scale"
        )
    unit = UNITS_M[cfg.unit] if cfg.unit else raster.unit_m or 1.0
    return (cfg.height_scale or 1.0) * unit


def _check_heights(path: Path, raster: Raster, scale: float) -> None:
    known = raster.heights[np.isfinite(raster.heights)]
    if not len(known):
        raise InputError(f"{path}: no pixel has a height; check the file, --nodata or --ceiling")
    low, high = float(known.min()) * scale, float(known.max()) * scale
    if max(abs(low), abs(high)) > GREATEST_HEIGHT_M:
        raise InputError(
            f"{path}: heights reach from {low:.4g} to {high:.4g} m; name the number that stands "
            "for no height with --nodata, or correct --unit or --height-scale"
        )


def _finished(path: Path, cells: np.ndarray, cfg: MapImport) -> ImportedMap:
    """Fill, mark and level heights (X, Y) in metres."""
    hole = ~np.isfinite(cells)
    if hole.all():
        raise InputError(f"{path}: no cell of {cfg.cell_size:g} m has a height; use smaller cells")
    heights = fill_holes(cells, cfg.fill)
    reachable = reachable_cells(heights, cfg.max_step_m)
    lowered = 0.0 if cfg.keep_altitude else float(np.median(heights[reachable]))
    base = Heightfield.flat((cells.shape[0], cells.shape[1]), cell_size=cfg.cell_size)
    terrain = replace(
        base,
        heights=torch.from_numpy((heights - lowered).astype(np.float32)),
        confidence=torch.from_numpy((~hole).astype(np.float32)) if hole.any() else None,
    )
    return ImportedMap(
        made=TerrainMap(terrain=terrain.validate(str(path)), reachable=reachable),
        filled=int(hole.sum()),
        largest_hole_m=largest_hole_m(hole, cfg.cell_size),
        lowered_m=lowered,
    )


def _refuse(option: str, value: object, allowed: str) -> None:
    name = option.replace("_", "-")
    raise InputError(f"--{name}: {value} is not allowed; {allowed}")
