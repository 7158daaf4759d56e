"""Scans: the upper surface of OBJ, STL and PLY files as a grid of heights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import trimesh
from numpy.typing import NDArray

from parc_ray.data.elevation.raster import MAX_PIXELS, Raster
from parc_ray.errors import InputError

MAX_FILE_MB = 512.0
"""Largest scan, MB; its triangles take several times that."""
SAMPLES_PER_CELL = 4
"""Samples per cell along each axis where a scan has surfaces."""
_CHUNK = 2_000_000
FloatArray = NDArray[np.float64]


def read_scan(
    path: Path, cell_size: float, *, unit_m: float, up: str, ceiling_m: float | None
) -> Raster:
    """The highest surface over each sample of a grid; of point clouds, the highest point per cell.

    Args:
        path: OBJ, STL or PLY.
        cell_size: of the terrain to make, metres; surfaces are sampled 4 x 4 times per cell.
        unit_m: metres per unit of the file.
        up: the file's axis that points up, ``z`` or ``y``.
        ceiling_m: samples above this height (in the file's frame, metres) are not seen; None: all.

    Returns:
        Heights in metres, NaN where the scan has nothing.

    Raises:
        InputError: a file that is broken, too large, or without surface and points.
    """
    vertices, faces = _load(path)
    vertices = vertices * unit_m
    if up == "y":
        vertices = np.stack([vertices[:, 0], -vertices[:, 2], vertices[:, 1]], axis=1)
    low, high = vertices[:, :2].min(0), vertices[:, :2].max(0)
    pixel = cell_size / SAMPLES_PER_CELL if len(faces) else cell_size
    count = np.maximum(np.ceil((high - low) / pixel - 1e-6), 1.0)
    if not count.prod() <= MAX_PIXELS:
        raise InputError(
            f"{path}: is {high[0] - low[0]:.4g} x {high[1] - low[1]:.4g} m, which makes "
            f"{count.prod():.3g} samples; up to {MAX_PIXELS} are taken; --unit tells the scan's "
            "unit, or choose larger cells"
        )
    size = (int(count[0]), int(count[1]))
    top = np.full(size[0] * size[1], -np.inf)
    ceiling = np.inf if ceiling_m is None else ceiling_m
    local = (vertices - [*low, 0.0]) / [pixel, pixel, 1.0]
    if len(faces):
        _raise_to_triangles(top, size, local[faces], ceiling)
    else:
        _raise_to_points(top, size, local, ceiling)
    heights = np.where(np.isfinite(top), top, np.nan).reshape(size)
    return Raster(heights=heights.astype(np.float32), pixel_m=(pixel, pixel), unit_m=1.0)


def _load(path: Path) -> tuple[FloatArray, NDArray[np.int64]]:
    """(V, 3) vertices and (F, 3) triangles of all parts of a file; F is 0 for point clouds."""
    megabytes = path.stat().st_size / 1e6
    if megabytes > MAX_FILE_MB:
        raise InputError(
            f"{path}: has {megabytes:.0f} MB, up to {MAX_FILE_MB:.0f} are read; thin the scan"
        )
    kind = path.suffix.lower()[1:]
    try:
        with path.open("rb") as file:  # a handle: nothing beside the file is looked for
            scene = trimesh.load_scene(file, file_type=kind, process=False, skip_materials=True)
        parts = list(scene.dump())
    except Exception as error:  # a broken file ends in any of many errors of the reader
        raise InputError(f"{path}: is no {kind.upper()} that can be read ({error})") from error
    vertices, faces, first = [], [], 0
    for part in parts:
        points = np.asarray(getattr(part, "vertices", np.zeros((0, 3))), dtype=float)
        if points.ndim == 2 and points.shape[1] == 3 and len(points):
            vertices.append(points)
            own = np.asarray(getattr(part, "faces", np.zeros((0, 3))), dtype=np.int64)
            faces.append(own.reshape(-1, 3) + first)
            first += len(points)
    if not vertices:
        raise InputError(f"{path}: holds no surface and no points; export triangles or points")
    joined = np.concatenate(vertices)
    if not np.isfinite(joined).all():
        raise InputError(f"{path}: has vertices that are not finite; clean the scan")
    return joined, np.concatenate(faces)


def _raise_to_points(
    top: FloatArray, size: tuple[int, int], points: FloatArray, ceiling: float
) -> None:
    """Raise the cells (row-major) that points (V, 3) in cell units lie in, in place."""
    points = points[points[:, 2] <= ceiling]
    cell = np.minimum(points[:, :2].astype(np.int64), np.array(size) - 1)
    np.maximum.at(top, cell[:, 0] * size[1] + cell[:, 1], points[:, 2])


def _raise_to_triangles(
    top: FloatArray, size: tuple[int, int], corners: FloatArray, ceiling: float
) -> None:
    """Raise samples to the triangles (F, 3, 3) over them, in place; sample i is at i + 0.5.

    Every triangle is cut along the samples' rows of equal x; each cut is a segment in y and z.
    """
    xs = corners[:, :, 0]
    first = np.ceil(xs.min(1) - 0.5).clip(0, size[0]).astype(np.int64)
    last = np.floor(xs.max(1) - 0.5).clip(-1, size[0] - 1).astype(np.int64)
    rows = (last - first + 1).clip(min=0)
    for part in _chunks(rows):
        face, number = _expand(rows[part])
        row = first[part][face] + number
        cut = _cut(corners[part][face], row + 0.5)
        _raise_to_segments(top, size, row, *cut, ceiling)


def _cut(corners: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Segments in which triangles (S, 3, 3) meet planes of equal x (S,).

    Returns:
        Ends with the least and with the greatest y, (S, 2) as y and z.
    """
    a, b = corners, np.roll(corners, -1, axis=1)
    span = b[:, :, 0] - a[:, :, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (x[:, None] - a[:, :, 0]) / span
    met = (span != 0.0) & (share >= 0.0) & (share <= 1.0)
    share = np.where(met, share, 0.0)[..., None]
    point = a[..., 1:] + share * (b[..., 1:] - a[..., 1:])
    lowest = np.where(met, point[..., 0], np.inf).argmin(1)
    highest = np.where(met, point[..., 0], -np.inf).argmax(1)
    s = np.arange(len(x))
    # A triangle within one such plane meets it in no segment; its walls have no width.
    empty = ~met.any(1)
    left, right = point[s, lowest], point[s, highest]
    left[empty, 0], right[empty, 0] = np.inf, -np.inf
    return left, right


def _raise_to_segments(
    top: FloatArray,
    size: tuple[int, int],
    row: NDArray[np.int64],
    left: FloatArray,
    right: FloatArray,
    ceiling: float,
) -> None:
    """Raise the samples of rows (S,) that lie between two ends (S, 2), in place."""
    first = np.ceil(left[:, 0] - 0.5).clip(0, size[1]).astype(np.int64)
    last = np.floor(right[:, 0] - 0.5).clip(-1, size[1] - 1).astype(np.int64)
    counts = (last - first + 1).clip(min=0)
    for part in _chunks(counts):
        segment, number = _expand(counts[part])
        column = first[part][segment] + number
        a, b = left[part][segment], right[part][segment]
        share = (column + 0.5 - a[:, 0]) / np.maximum(b[:, 0] - a[:, 0], 1e-12)
        z = a[:, 1] + share.clip(0.0, 1.0) * (b[:, 1] - a[:, 1])
        seen = z <= ceiling
        np.maximum.at(top, (row[part][segment] * size[1] + column)[seen], z[seen])


def _chunks(counts: NDArray[np.int64]) -> list[slice]:
    """Slices whose counts sum to about ``_CHUNK`` (single ones may have more)."""
    total = np.cumsum(counts)
    if len(total) == 0 or total[-1] == 0:
        return []
    marks = np.arange(_CHUNK, total[-1], _CHUNK)
    cuts = np.unique(np.concatenate([[0], np.searchsorted(total, marks) + 1, [len(total)]]))
    return [slice(int(a), int(b)) for a, b in pairwise(cuts)]


def _expand(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Owner and number within it of every item, for owners with ``counts`` items each."""
    owner = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - before[owner]
