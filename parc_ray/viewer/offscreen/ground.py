"""Terrain columns as polygons, drawn from far to near into a picture of face numbers.

Rows of columns that lie behind each other as seen from the camera never hide what is in front of
them, so no depth is compared here: the order alone is right. What depth a pixel has follows from
the plane of its face. Neighbours of one height in a row are one polygon.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.offscreen.camera import NEAR_M, View

_SKIRT_M = 0.6
_REACH_M = 16.0
"""Ground further than this from the target is left out."""


class Ground:
    """The faces of one terrain.

    Attributes:
        axis: (F,) axis of each face's normal.
        level: (F,) m, where the face cuts that axis.
        corners: (F, 4, 3) m.
        box: (F, 4) m, the rectangle of xy (low x, low y, high x, high y) of the run it belongs to.
        side: (F,) 0 for tops, -1 and 1 for walls that look to the lower and the higher side.
    """

    def __init__(self, terrain: Heightfield) -> None:
        """Cut the terrain into runs of equal height along x, with their walls."""
        heights = terrain.heights.numpy().astype(np.float64)
        low = (terrain.origin.numpy() - terrain.cell_size / 2).astype(np.float64)
        self.low_z, self.high_z = float(heights.min()), float(heights.max())
        self.cell = terrain.cell_size
        self.origin = low
        floor = self.low_z - _SKIRT_M
        rows: list[tuple[float, ...]] = []
        padded = np.pad(heights, 1, constant_values=floor)
        for j in range(heights.shape[1]):
            column = heights[:, j]
            cuts = np.flatnonzero(np.abs(np.diff(column)) > 1e-4) + 1
            bounds = [0, *cuts.tolist(), len(column)]
            for first, last in pairwise(bounds):
                x0, x1 = low[0] + first * self.cell, low[0] + last * self.cell
                y0, y1 = low[1] + j * self.cell, low[1] + (j + 1) * self.cell
                top = float(column[first])
                rows.append((2, 0, x0, y0, x1, y1, top, top, x0, y0, x1, y1))
                for side, edge, beside in ((-1, x0, first), (1, x1, last + 1)):
                    foot = float(padded[beside, j + 1])
                    if foot < top - 1e-4:
                        rows.append((0, side, edge, y0, edge, y1, foot, top, x0, y0, x1, y1))
                for side, edge, across in ((-1, y0, j), (1, y1, j + 2)):
                    feet = padded[first + 1 : last + 1, across]
                    steps = [0, *(np.flatnonzero(np.abs(np.diff(feet)) > 1e-4) + 1), len(feet)]
                    for a, b in pairwise(steps):
                        if feet[a] < top - 1e-4:
                            u, v = x0 + a * self.cell, x0 + b * self.cell
                            foot = float(feet[a])
                            rows.append((1, side, u, edge, v, edge, foot, top, x0, y0, x1, y1))
        table = np.array(rows)
        self.axis = table[:, 0].astype(np.int64)
        self.side = table[:, 1]
        x0, y0, x1, y1, foot, top = table[:, 2:8].T
        self.box = table[:, 8:]
        flat = self.axis == 2
        first = np.stack([x0, y0, top], axis=1)
        second = np.stack([np.where(flat, x1, x0), y0, top], axis=1)
        second[~flat] = np.stack([x1, y1, top], axis=1)[~flat]
        third = np.stack([x1, y1, foot], axis=1)
        fourth = np.stack([x0, np.where(flat, y1, y0), foot], axis=1)
        self.corners = np.stack([first, second, third, fourth], axis=1)
        self.level = np.choose(self.axis, [x0, y0, top])
        self.height = top

    def order(self, eye: NDArray, target: NDArray) -> NDArray[np.int64]:
        """Faces that look at the eye and are near the target, from far to near."""
        gap = np.maximum(self.box[:, :2] - target[:2], target[:2] - self.box[:, 2:])
        near = (gap < _REACH_M).all(axis=1)
        facing = np.where(
            self.axis == 2,
            float(eye[2]) > self.level,
            self.side * (eye[np.minimum(self.axis, 1)] - self.level) > 0.0,
        )
        chosen = np.flatnonzero(near & facing)
        away: NDArray = np.maximum(self.box[chosen, :2] - eye[:2], eye[:2] - self.box[chosen, 2:])
        away = np.maximum(away, 0.0)
        return chosen[np.lexsort((-away[:, 0], -np.round(away[:, 1], 4)))]

    def numbers(
        self, eye: NDArray, target: NDArray, view: View, focal: float, size: tuple[int, int]
    ) -> NDArray[np.int32]:
        """(H, W) number of the face in each pixel, -1 for none.

        Args:
            eye: (3,) m.
            target: (3,) m.
            view: gives the axes.
            focal: pixels per unit of slope.
            size: W, H.
        """
        chosen = self.order(eye, target)
        image = Image.new("I", size, -1)
        draw = ImageDraw.Draw(image)
        seen = (self.corners[chosen] - eye) @ view.axes.T
        deep: NDArray = seen[..., 2]
        whole = deep.min(axis=1) > NEAR_M
        off = (deep <= NEAR_M).all(axis=1)
        for axis in (0, 1):
            edge = deep * (size[axis] / 2 / focal)
            off |= (seen[..., axis] > edge).all(axis=1) | (seen[..., axis] < -edge).all(axis=1)
        flat = _project(seen, focal, size).reshape(len(seen), -1).tolist()
        polygon = draw.polygon
        for k in np.flatnonzero(~off).tolist():
            if whole[k]:
                polygon(flat[k], fill=int(chosen[k]))
                continue
            clipped = _clip_near(seen[k])
            polygon(_project(clipped, focal, size).reshape(-1).tolist(), fill=int(chosen[k]))
        return np.asarray(image)


def _project(seen: NDArray, focal: float, size: tuple[int, int]) -> NDArray[np.float64]:
    """Pixels (..., 2) of points (..., 3) in right, up, forward; small depths are lifted."""
    scale = focal / np.maximum(seen[..., 2], NEAR_M)
    x = size[0] / 2 - 0.5 + seen[..., 0] * scale
    y = size[1] / 2 - 0.5 - seen[..., 1] * scale
    return np.clip(np.stack([x, y], axis=-1), -1e5, 1e5)


def _clip_near(corners: NDArray) -> NDArray[np.float64]:
    """The part of a polygon (4, 3) in right, up, forward that lies in front of the near plane."""
    out = []
    for here, there in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        inside, next_inside = here[2] >= NEAR_M, there[2] >= NEAR_M
        if inside:
            out.append(here)
        if inside != next_inside:
            out.append(here + (NEAR_M - here[2]) / (there[2] - here[2]) * (there - here))
    return np.array(out)
