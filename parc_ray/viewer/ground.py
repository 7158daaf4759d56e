"""A heightfield as triangles, and where a ray meets it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.shapes import Mesh

_SKIRT_M = 0.3
_STEP_SHARE = 0.05
_ABOVE_M = 0.004


def ground_mesh(terrain: Heightfield) -> Mesh:
    """Flat tops and vertical walls of all columns, down to a little below the lowest.

    The centre of cell (0, 0) is the origin; heights are the world's.
    """
    heights = terrain.heights.double().cpu().numpy()
    size, half = terrain.cell_size, terrain.cell_size / 2
    floor = float(heights.min()) - _SKIRT_M
    rows, cols = heights.shape
    x, y = np.meshgrid(np.arange(rows) * size, np.arange(cols) * size, indexing="ij")
    around = np.array([(-half, -half), (half, -half), (half, half), (-half, half)])
    corners = np.stack([x, y], -1)[:, :, None] + around  # (X, Y, 4, 2)
    tops = np.concatenate(
        [corners, np.broadcast_to(heights[..., None, None], (*corners.shape[:3], 1))], -1
    )
    quads = [tops.reshape(-1, 4, 3)]
    padded = np.pad(heights, 1, constant_values=floor)
    for side, (di, dj) in enumerate([(0, -1), (1, 0), (0, 1), (-1, 0)]):
        other = padded[1 + di : 1 + di + rows, 1 + dj : 1 + dj + cols]
        i, j = np.nonzero(heights > other + 1e-9)
        if len(i) == 0:
            continue
        a, b = corners[i, j, side], corners[i, j, (side + 1) % 4]
        high, low = heights[i, j, None], other[i, j, None]
        walls = [np.concatenate(p, -1) for p in ((a, low), (b, low), (b, high), (a, high))]
        quads.append(np.stack(walls, 1))
    points = np.concatenate(quads).astype(np.float32)
    first = np.arange(len(points), dtype=np.uint32)[:, None] * 4
    faces = np.concatenate([first + np.array(t, np.uint32) for t in ((0, 1, 2), (0, 2, 3))])
    return Mesh(vertices=points.reshape(-1, 3), faces=faces)


def cell_lines(terrain: Heightfield) -> NDArray[np.float32]:
    """Segments (S, 2, 3) m along two edges of the top of every cell, just above it.

    Placed as ``ground_mesh``.
    """
    heights = terrain.heights.double().cpu().numpy() + _ABOVE_M
    size, half = terrain.cell_size, terrain.cell_size / 2
    rows, cols = heights.shape
    x, y = np.meshgrid(np.arange(rows) * size, np.arange(cols) * size, indexing="ij")
    corner = np.stack([x - half, y - half, heights], -1).reshape(-1, 3)
    ends = [corner + np.array(step) for step in ((size, 0.0, 0.0), (0.0, size, 0.0))]
    return np.concatenate([np.stack([corner, end], 1) for end in ends]).astype(np.float32)


def hit(
    terrain: Heightfield,
    origin: NDArray[np.float64],
    direction: NDArray[np.float64],
    reach_m: float = 200.0,
) -> NDArray[np.float64] | None:
    """First point (3,) m where a ray goes into the ground; None where it does not.

    Args:
        terrain: the ground.
        origin: (3,) m, world.
        direction: (3,), any length.
        reach_m: how far to look, m.
    """
    heights = terrain.heights.double().cpu().numpy()
    unit = np.asarray(direction, float) / max(float(np.linalg.norm(direction)), 1e-12)
    step = terrain.cell_size * _STEP_SHARE
    along = np.arange(0.0, reach_m, step)
    points = np.asarray(origin, float) + along[:, None] * unit
    cells = (points[:, :2] - terrain.origin.double().cpu().numpy()) / terrain.cell_size
    index = np.rint(cells).astype(int)
    inside = ((index >= 0) & (index < np.array(heights.shape))).all(-1)
    safe = np.clip(index, 0, np.array(heights.shape) - 1)
    under = inside & (points[:, 2] <= heights[safe[:, 0], safe[:, 1]])
    if not under.any():
        return None
    return points[int(np.argmax(under))]
