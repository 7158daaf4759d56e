"""Elevation maps: PNG, GeoTIFF and NPY to grids of heights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from parc_ray.errors import InputError

MAX_PIXELS = 16_000_000
"""Most pixels of a map; they take about 1 GB while a map is imported."""
UNITS_M = {"m": 1.0, "cm": 0.01, "mm": 0.001, "ft": 0.3048, "us-ft": 1200 / 3937, "in": 0.0254}
"""Metres per unit."""
_GEO_UNITS = {9001: "m", 9002: "ft", 9003: "us-ft"}
_GREY_MODES = ("L", "I", "I;16", "I;16B", "I;16L", "F")
_SCALE_TAG, _TRANSFORM_TAG, _KEYS_TAG, _NODATA_TAG = 33550, 34264, 34735, 42113
_MODEL_KEY, _LINEAR_KEY, _VERTICAL_KEY = 1024, 3076, 4099


@dataclass(frozen=True, kw_only=True, eq=False)
class Raster:
    """Heights on a regular grid; x to the right (east) of a picture, y up (north)."""

    heights: NDArray[np.float32]
    """(X, Y) as stored, NaN where the file says that there is nothing."""
    pixel_m: tuple[float, float] | None
    """Metres per pixel along x and y, where the file tells."""
    unit_m: float | None
    """Metres per unit of height, where the file tells."""


def read_raster(path: Path, nodata: float | None = None) -> Raster:
    """Read a PNG, TIFF or NPY elevation map.

    Pictures have north at the top; an NPY array is indexed [x, y].

    Args:
        path: the file, told apart by its ending.
        nodata: value that stands for no height; None: what a GeoTIFF says, if it does.

    Raises:
        InputError: a file that is broken, too large, or no map of heights.
    """
    readers = {".png": _read_png, ".npy": _read_npy, ".tif": _read_tiff, ".tiff": _read_tiff}
    raster, empty = readers[path.suffix.lower()](path)
    heights = raster.heights.astype(np.float32)
    empty = nodata if nodata is not None else empty
    heights[~np.isfinite(heights)] = np.nan
    if empty is not None:
        heights[heights == np.float32(empty)] = np.nan
    return Raster(heights=heights, pixel_m=raster.pixel_m, unit_m=raster.unit_m)


def require_size(path: Path, shape: tuple[int, ...]) -> None:
    """Refuse what is no plane of heights, or too large a one, before it is read.

    Raises:
        InputError: not two axes, no pixels, or more than ``MAX_PIXELS``.
    """
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(
            f"{path}: has shape {tuple(shape)}; heights in one layer (rows x columns) are needed; "
            "export one band"
        )
    if math.prod(shape) > MAX_PIXELS:
        raise InputError(
            f"{path}: has {math.prod(shape)} pixels, up to {MAX_PIXELS} are read; cut or thin it"
        )


def _from_picture(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows from the top to [x, y] with y up."""
    return rows[::-1].T


def _read_png(path: Path) -> tuple[Raster, float | None]:
    try:
        with Image.open(path) as image:
            require_size(path, image.size)
            if image.mode not in _GREY_MODES:
                raise InputError(
                    f"{path}: is a picture of mode {image.mode}; heights are grey, of 8 or 16 bits "
                    "per pixel; export one channel"
                )
            rows = np.array(image)
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: is no PNG that can be read ({error}); export it anew") from error
    return Raster(heights=_from_picture(rows), pixel_m=None, unit_m=None), None


def _read_npy(path: Path) -> tuple[Raster, float | None]:
    try:
        held = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: is no array of numbers ({error}); save it anew") from error
    if not isinstance(held, np.ndarray):
        raise InputError(f"{path}: is an archive and no array; give one .npy array of heights")
    require_size(path, held.shape)
    if held.dtype.kind not in "fiu":
        raise InputError(f"{path}: holds {held.dtype}; real numbers are needed; convert it")
    return Raster(heights=np.array(held), pixel_m=None, unit_m=None), None


def _read_tiff(path: Path) -> tuple[Raster, float | None]:
    try:
        with tifffile.TiffFile(path) as file:
            page = file.pages[0]
            tags = {tag.code: tag.value for tag in page.tags}  # pyright: ignore
            require_size(path, tuple(page.shape))
            rows = page.asarray()
    except InputError:
        raise
    except Exception as error:  # a broken file ends in any of many errors of the reader
        raise InputError(
            f"{path}: is no TIFF that can be read ({error}); export it without compression, or "
            "with DEFLATE"
        ) from error
    if rows.dtype.kind not in "fiu":
        raise InputError(f"{path}: holds {rows.dtype}; real numbers are needed; export heights")
    keys = _geo_keys(tags.get(_KEYS_TAG))
    vertical = _GEO_UNITS.get(keys.get(_VERTICAL_KEY, 0))
    raster = Raster(
        heights=_from_picture(rows),
        pixel_m=_pixel_size(path, tags, keys),
        unit_m=None if vertical is None else UNITS_M[vertical],
    )
    return raster, _number(tags.get(_NODATA_TAG))


def _geo_keys(directory: Any) -> dict[int, int]:
    """Short values of a GeoTIFF key directory, by key."""
    if directory is None:
        return {}
    entries = np.asarray(directory).reshape(-1, 4)[1:]
    return {int(key): int(value) for key, place, _, value in entries if place == 0}


def _pixel_size(
    path: Path, tags: dict[int, Any], keys: dict[int, int]
) -> tuple[float, float] | None:
    """Metres per pixel by the tags of a GeoTIFF; None where they are degrees or missing."""
    if _SCALE_TAG in tags:
        x, y = (float(v) for v in tags[_SCALE_TAG][:2])
    elif _TRANSFORM_TAG in tags:
        matrix = np.asarray(tags[_TRANSFORM_TAG], dtype=float).reshape(4, 4)
        if abs(matrix[0, 1]) > 1e-9 or abs(matrix[1, 0]) > 1e-9:
            raise InputError(f"{path}: the map is turned against its axes; export it north-up")
        x, y = abs(matrix[0, 0]), abs(matrix[1, 1])
    else:
        return None
    if keys.get(_MODEL_KEY) == 2:  # geographic: degrees
        return None
    factor = UNITS_M[_GEO_UNITS.get(keys.get(_LINEAR_KEY, 9001), "m")]
    return x * factor, y * factor


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
