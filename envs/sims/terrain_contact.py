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
from numpy.typing import NDArray
from torch import Tensor

from parc_ray.character.geometry import Geom
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_REACH_M = 0.04
"""Twice the engine's contact offset: the distance at which two shapes begin to touch."""
_SPACING_M = 0.06
Array = NDArray[np.float32]


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
        self, force: Tensor, bodies: Array, offsets: Array, terrain: NDArray[np.int64]
    ) -> None:
        """Set forces to zero that cannot be the terrain's.

        Args:
            force: (N, B, 3) N, changed in place.
            bodies: (N, B, 13) states of the bodies in the frame of the mesh; position and
                quaternion xyzw come first.
            offsets: (T, 3) m, of each terrain in the mesh.
            terrain: (N,) terrain of each environment.
        """
        values = force.numpy()
        env, body = np.nonzero(np.abs(values).max(axis=-1) > 0)
        if not len(env):
            return
        which = terrain[env]
        pose = bodies[env, body, :7].astype(np.float32)
        pose[:, :3] -= offsets[which]
        away = ~self._touch(self._coarse, body, pose, which, rings=False)
        if away.any():
            left = np.flatnonzero(away)
            touch = self._touch(self._fine, body[left], pose[left], which[left], rings=True)
            lone = left[~touch]
            values[env[lone], body[lone]] = 0.0

    def _touch(
        self,
        table: tuple[Array, Array],
        body: NDArray[np.int64],
        pose: Array,
        which: NDArray[np.int64],
        *,
        rings: bool,
    ) -> NDArray[np.bool_]:
        """(K,) whether a sphere comes near its own column or, with ``rings``, any around it."""
        centre, radius = table[0][body], table[1][body]
        u, w = np.broadcast_to(pose[:, None, 3:6], centre.shape), pose[:, None, 6:7]
        twice = 2.0 * np.cross(u, centre)
        at = pose[:, None, :3] + centre + w * twice + np.cross(u, twice)
        cell = self._cell[which][:, None, None]
        local = (at[..., :2] - self._origin[which][:, None]) / cell
        base = np.rint(local).astype(np.int64)
        reach = radius + _REACH_M
        count = math.ceil(float(reach.max()) / float(self._cell.min())) if rings else 0
        found = np.zeros(len(body), dtype=np.bool_)
        last = self._size[which][:, None] - 1
        for di in range(-count, count + 1):
            for dj in range(-count, count + 1):
                column = base + np.array([di, dj])
                inside = np.clip(column, 0, last)
                height = self._heights[which[:, None], inside[..., 0], inside[..., 1]]
                side = np.maximum(np.abs(local - column) - 0.5, 0.0) * cell
                above = np.maximum(at[..., 2] - height, 0.0)
                square = side[..., 0] ** 2 + side[..., 1] ** 2 + above**2
                found |= (square <= reach**2).any(axis=-1)
        return found


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
