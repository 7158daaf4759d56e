"""Which contact forces are the terrain's, for engines that sum all contacts of a body.

A body that the engine reports a force on counts as touching the terrain where its shapes come
within the contact distance of a column. What a body gets from the terrain and from another body at
the same time cannot be told apart; the sum is kept (docs/isaacgym.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parc_ray.character.geometry import Geom
from parc_ray.character.rotations import quat_rotate
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_REACH_M = 0.04
"""Twice the engine's contact offset: the distance at which two shapes begin to touch."""
_SPACING_M = 0.06
Array = NDArray[np.float32]
Indices = NDArray[np.intp]


class TerrainContact:
    """Tells the terrain's forces from those between bodies.

    Args:
        character: gives the shapes.
        terrains: those that the environments stand on.
        extension_m: how far border cells reach beyond the grid.
    """

    def __init__(
        self, character: Character, terrains: Sequence[Heightfield], extension_m: float
    ) -> None:
        """Tabulate shapes and heights."""
        bodies = range(character.skeleton.num_bodies)
        geoms = [[g for g in character.geoms if g.body == b] for b in bodies]
        self._coarse = _table([[_spheres(g, math.inf) for g in own] for own in geoms])
        self._fine = _table([[_spheres(g, _SPACING_M) for g in own] for own in geoms])
        shape = np.max([t.shape for t in terrains], axis=0)
        self._heights = np.full((len(terrains), *shape), -np.inf, dtype=np.float32)
        for k, terrain in enumerate(terrains):
            nx, ny = terrain.shape
            self._heights[k, :nx, :ny] = terrain.heights.numpy()
        self._origin = np.array([t.origin.numpy() for t in terrains], dtype=np.float32)
        self._cell = np.array([t.cell_size for t in terrains], dtype=np.float32)
        self._size = np.array([t.shape for t in terrains], dtype=np.int64)

    def keep_terrain(
        self, force: Tensor, env: Indices, body: Indices, pose: Array, terrain: Indices
    ) -> None:
        """Set forces to zero that cannot be the terrain's.

        Args:
            force: (N, B, 3) N, changed in place.
            env: (K,) environments of the bodies that forces act on.
            body: (K,) these bodies.
            pose: (K, 7) their position and quaternion xyzw in the frame of their terrain.
            terrain: (K,) terrains they are on.
        """
        away = np.flatnonzero(~self._stands(body, pose, terrain))
        if len(away):
            lone = away[~self._touches(body[away], pose[away], terrain[away])]
            force.numpy()[env[lone], body[lone]] = 0.0

    def _stands(self, body: Indices, pose: Array, terrain: Indices) -> NDArray[np.bool_]:
        """(K,) whether the lowest point is near the top of the column that it is over."""
        x, y, z, w = pose[:, 3:].T
        up = np.stack((2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)), axis=1)
        centres, radii = self._coarse
        rise = np.empty(len(body), dtype=np.float32)
        lowest = np.empty((len(body), 3), dtype=np.float32)
        for one in np.flatnonzero(np.bincount(body)):
            rows = np.flatnonzero(body == one)
            above = up[rows] @ centres[one].T - radii[one]
            rise[rows] = above.min(axis=1)
            lowest[rows] = centres[one, above.argmin(axis=1)]
        at = pose[:, :3] + _rotated(pose[:, 3:], lowest)
        cell = np.rint((at[:, :2] - self._origin[terrain]) / self._cell[terrain][:, None])
        column = np.clip(cell.astype(np.int64), 0, self._size[terrain] - 1)
        height = self._heights[terrain, column[:, 0], column[:, 1]]
        return pose[:, 2] + rise - height <= _REACH_M

    def _touches(self, body: Indices, pose: Array, terrain: Indices) -> NDArray[np.bool_]:
        """(K,) whether any part is near any column around it."""
        centre, radius = self._fine[0][body], self._fine[1][body]
        at = pose[:, None, :3] + _rotated(pose[:, None, 3:], centre)
        cell = self._cell[terrain][:, None, None]
        local = (at[..., :2] - self._origin[terrain][:, None]) / cell
        base = np.rint(local).astype(np.int64)
        reach = radius + _REACH_M
        rings = math.ceil(float(reach.max()) / float(self._cell.min()))
        found = np.zeros(len(body), dtype=np.bool_)
        last = self._size[terrain][:, None] - 1
        steps = range(-rings, rings + 1)
        for step in np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2):
            column = base + step
            inside = np.clip(column, 0, last)
            height = self._heights[terrain[:, None], inside[..., 0], inside[..., 1]]
            side = np.maximum(np.abs(local - column) - 0.5, 0.0) * cell
            above = np.maximum(at[..., 2] - height, 0.0)
            square = side[..., 0] ** 2 + side[..., 1] ** 2 + above**2
            found |= ((square <= reach**2) & (reach > 0)).any(axis=-1)
        return found


def _rotated(quat: Array, vector: Array) -> Array:
    """Vectors (..., 3) turned by quaternions xyzw (..., 4)."""
    return quat_rotate(torch.from_numpy(quat), torch.from_numpy(vector)).numpy()


def _spheres(geom: Geom, spacing: float) -> tuple[Array, float]:
    """Spheres (S, 3) of one radius along a shape: its ends or corners, and between them."""
    points, radius = geom.support_points()
    corners = points.numpy()
    if len(corners) == 1 or math.isinf(spacing):
        return corners.astype(np.float32), radius
    if geom.kind == "capsule":
        steps = np.linspace(0.0, 1.0, max(2, math.ceil(2.0 * geom.size[1] / spacing) + 1))
        return (corners[0] + steps[:, None] * (corners[1] - corners[0])).astype(np.float32), radius
    edges = corners[[1, 2, 4]] - corners[0]
    counts = [max(2, math.ceil(float(np.linalg.norm(e)) / spacing) + 1) for e in edges]
    grid = np.stack(np.meshgrid(*(np.linspace(0, 1, c) for c in counts), indexing="ij"), axis=-1)
    return (corners[0] + grid.reshape(-1, 3) @ edges).astype(np.float32), radius


def _table(parts: list[list[tuple[Array, float]]]) -> tuple[Array, Array]:
    """Centres (B, S, 3) and radii (B, S) per body; what fills up has no reach."""
    longest = max(1, *(sum(len(p) for p, _ in own) for own in parts))
    centres = np.zeros((len(parts), longest, 3), dtype=np.float32)
    radii = np.full((len(parts), longest), -_REACH_M, dtype=np.float32)
    for body, own in enumerate(parts):
        at = 0
        for points, radius in own:
            centres[body, at : at + len(points)] = points
            radii[body, at : at + len(points)] = radius
            at += len(points)
    return centres, radii
