"""Pictures of bare terrain: its columns seen from above one corner."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

MAX_CELLS = 40_000
"""Most cells of a picture."""
_TURN_RAD = np.deg2rad(35.0)
_TILT_RAD = np.deg2rad(35.0)
_SHADES = (1.0, 0.78, 0.6)
"""Brightness of tops, of walls to the one side and of walls to the other."""
_COLOURS = 64
_UNREACHABLE = (0.86, 0.42, 0.30, 1.0)


def draw_terrain(
    terrain: Heightfield, title: str, reachable: NDArray[np.bool_] | None = None
) -> Figure:
    """Draw a terrain's columns, far ones first, coloured by height.

    Args:
        terrain: the ground.
        title: before size and heights.
        reachable: (X, Y) cells; the others are red.

    Raises:
        InputError: more cells than can be seen.
    """
    heights = terrain.heights.double().cpu().numpy()
    if heights.size > MAX_CELLS:
        raise InputError(
            f"--picture: {heights.size} cells are too many, up to {MAX_CELLS} can be drawn; use "
            "larger cells or a crop (kind file)"
        )
    lost = np.zeros(heights.shape, bool) if reachable is None else ~reachable
    faces, colours = _faces(heights, terrain.cell_size, lost)
    figure = Figure(figsize=(4.4, 3.1), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.add_collection(
        PolyCollection(list(faces), facecolors=colours, edgecolors=colours, linewidths=0.25)
    )
    axes.autoscale_view()
    axes.set_aspect("equal")
    axes.set_axis_off()
    size = " x ".join(f"{n * terrain.cell_size:.4g}" for n in terrain.shape)
    said = f"{title}: {size} m, {heights.min():.1f} to {heights.max():.1f} m"
    if lost.any():
        said += f"; red: {100 * lost.mean():.1f} % out of reach"
    axes.set_title(said, fontsize=8)
    return figure


def small_png(figure: Figure) -> bytes:
    """The figure as a PNG of few colours: some 10 to 50 KB."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    small = io.BytesIO()
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(_COLOURS).save(small, format="png", optimize=True)
    return small.getvalue()


def _faces(heights: NDArray, cell: float, lost: NDArray[np.bool_]) -> tuple[NDArray, NDArray]:
    """Visible faces in drawing order, (F, 4, 2) on the picture, and their colours (F, 4)."""
    nx, ny = heights.shape
    i, j = np.meshgrid(np.arange(nx), np.arange(ny), indexing="ij")
    floor = heights.min() - 2 * cell
    x0, y0 = i * cell, j * cell
    x1, y1 = x0 + cell, y0 + cell
    # Neighbours on the two sides that are seen; the border shows the columns down to the floor.
    front_x = np.pad(heights[:-1], ((1, 0), (0, 0)), constant_values=floor)
    front_y = np.pad(heights[:, :-1], ((0, 0), (1, 0)), constant_values=floor)
    top = _quads(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), (heights,) * 4)
    wall_x = _quads(((x0, y0), (x0, y1), (x0, y1), (x0, y0)), (heights, heights, front_x, front_x))
    wall_y = _quads(((x0, y0), (x1, y0), (x1, y0), (x0, y0)), (heights, heights, front_y, front_y))
    span = max(float(np.ptp(heights)), 1e-6)
    base = mpl.colormaps["YlGnBu_r"](0.15 + 0.75 * (heights - heights.min()) / span)
    base[lost] = _UNREACHABLE
    shades = np.array([[s, s, s, 1.0] for s in _SHADES])
    colours = base[:, :, None] * shades
    faces = np.stack([top, wall_x, wall_y], axis=2)
    seen = np.stack([np.ones((nx, ny), bool), heights > front_x, heights > front_y], axis=2)
    far_first = np.argsort(-(np.cos(_TURN_RAD) * i + np.sin(_TURN_RAD) * j), axis=None)
    order = seen.reshape(-1, 3)[far_first]
    return (
        faces.reshape(-1, 3, 4, 2)[far_first][order],
        colours.reshape(-1, 3, 4)[far_first][order],
    )


def _quads(corners: tuple[tuple[NDArray, NDArray], ...], levels: tuple[NDArray, ...]) -> NDArray:
    """(X, Y, 4, 2) corners on the picture of faces in space."""
    points = []
    for (x, y), z in zip(corners, levels, strict=True):
        right = np.sin(_TURN_RAD) * x - np.cos(_TURN_RAD) * y
        away = np.cos(_TURN_RAD) * x + np.sin(_TURN_RAD) * y
        points.append(np.stack([right, np.sin(_TILT_RAD) * away + np.cos(_TILT_RAD) * z], -1))
    return np.stack(points, axis=2)
