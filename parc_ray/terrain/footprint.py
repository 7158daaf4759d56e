"""Cells of the ground plan that bodies pass over, for whole batches of training windows.

The same answer as ``augment.touched_cells`` of the world positions of all surface points, at a
tenth of the cost: only x and y are made, in units of cells, by one matrix product over all bodies,
and what falls outside a terrain lands on a border that is cut off.

Legend: N windows, T frames, B bodies, P surface points, M terrains of X by Y cells.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from parc_ray.character.surface import SurfacePoints
from parc_ray.terrain.heightfield import HeightfieldBatch

_CHUNK = 32
"""Windows at a time: their points stay in a core's cache."""


def passed_cells(
    points: SurfacePoints,
    body_pos: Tensor,
    body_rot: Tensor,
    terrain: HeightfieldBatch,
    ids: Tensor,
    origin: Tensor,
    heading: Tensor,
) -> Tensor:
    """Cells over or under any surface point of a window.

    Args:
        points: P points on B bodies.
        body_pos: (N, T, B, 3) m, in the window's canonical frame.
        body_rot: (N, T, B, 4) xyzw, likewise.
        terrain: M terrains.
        ids: (N,) long, the terrain of each window.
        origin: (N, 3) m, where the canonical frame stands in the world.
        heading: (N,) rad, its heading.

    Returns:
        (N, X, Y) bool; cells beyond a terrain's own size mean nothing.
    """
    n, (x, y) = body_pos.shape[0], terrain.heights.shape[1:]
    scatter = _offsets(points, body_pos.device, body_pos.dtype)
    marks = torch.zeros(n, (x + 2) * (y + 2), dtype=torch.bool, device=body_pos.device)
    corner = (origin[:, :2] - terrain.origin[ids]) / terrain.cell_size
    for start in range(0, n, _CHUNK):
        part = slice(start, start + _CHUNK)
        rows = _plan_rows(body_pos[part], body_rot[part], heading[part])
        rows.div_(terrain.cell_size)
        rows[..., 3].add_(corner[part, None, :, None])
        cells = (rows.flatten(-2) @ scatter).round_()
        ix, iy = cells[:, :, 0].clamp_(-1.0, x), cells[:, :, 1].clamp_(-1.0, y)
        flat = ix.add_(1.0).mul_(y + 2.0).add_(iy).add_(1.0).flatten(1).long()
        marks[part].scatter_(1, flat, True)
    return marks.view(n, x + 2, y + 2)[:, 1:-1, 1:-1]


def _plan_rows(body_pos: Tensor, body_rot: Tensor, heading: Tensor) -> Tensor:
    """(N, T, 2, B, 4): the first two rows of world rotation and position of every body."""
    x, y, z, w = body_rot.unbind(-1)
    px, py, _ = body_pos.unbind(-1)
    first = (1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z), 2.0 * (x * z + w * y), px)
    second = (2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z - w * x), py)
    cos, sin = heading.cos()[:, None, None], heading.sin()[:, None, None]
    world_x = [cos * a - sin * b for a, b in zip(first, second, strict=True)]
    world_y = [sin * a + cos * b for a, b in zip(first, second, strict=True)]
    return torch.stack([torch.stack(world_x, -1), torch.stack(world_y, -1)], dim=2)


@lru_cache(maxsize=16)
def _offsets(points: SurfacePoints, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(4 B, P): offset of each point in its body's three rows, and 1 for the body's position."""
    matrix = torch.zeros(points.num_bodies, 4, len(points), dtype=torch.float64)
    column = torch.arange(len(points))
    matrix[points.body, :3, column] = points.offset.double()
    matrix[points.body, 3, column] = 1.0
    return matrix.flatten(0, 1).to(device, dtype)
