"""Triangles of a character's shapes and of terrain columns, for files that other programs draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from parc_ray.character.geometry import Geom
from parc_ray.terrain.boxes import boxes_to_world
from parc_ray.terrain.heightfield import Heightfield

Mesh = tuple[NDArray[np.float32], NDArray[np.uint32]]
"""Vertices (V, 3) m and triangles (F, 3), outward by the right hand."""

_SIDES, _RINGS = 16, 6
_BASE_M = 0.5
_CORNERS = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], np.float64)
_BOX_FACES = np.array(
    [
        *([0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1]),
        *([2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]),
    ],
    dtype=np.uint32,
)


def geom_mesh(geom: Geom) -> Mesh:
    """A shape in the frame of its body."""
    if geom.kind == "box":
        points, faces = _CORNERS * np.array(geom.size), _BOX_FACES
    else:
        half = geom.size[1] if geom.kind == "capsule" else 0.0
        points, faces = _round(geom.radius, half)
    points = Rotation.from_quat(geom.quat).apply(points) + np.array(geom.pos)
    return points.astype(np.float32), faces


def _round(radius: float, half: float) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
    """A sphere cut at its equator, the halves ``half`` metres away from the middle along z."""
    south = np.linspace(-np.pi / 2, 0.0, _RINGS + 1)[1:]
    north = -south[::-1] if half > 0 else -south[-2::-1]
    latitude = np.concatenate([south, north])
    lift = np.concatenate([np.full(len(south), -half), np.full(len(north), half)])
    turn = np.arange(_SIDES) * (2 * np.pi / _SIDES)
    flat = radius * np.cos(latitude)[:, None]
    z = np.broadcast_to((radius * np.sin(latitude) + lift)[:, None], (len(latitude), _SIDES))
    rings = np.stack([flat * np.cos(turn), flat * np.sin(turn), z], axis=-1).reshape(-1, 3)
    reach = half + radius
    points = np.concatenate([rings, [[0.0, 0.0, -reach], [0.0, 0.0, reach]]])
    ring, side = np.meshgrid(np.arange(len(latitude) - 1), np.arange(_SIDES), indexing="ij")
    a = (ring * _SIDES + side).ravel()
    b = (ring * _SIDES + (side + 1) % _SIDES).ravel()
    first, after = np.arange(_SIDES), (np.arange(_SIDES) + 1) % _SIDES
    top = len(rings) - _SIDES
    bottom_pole, top_pole = np.full(_SIDES, len(rings)), np.full(_SIDES, len(rings) + 1)
    faces = np.concatenate(
        [
            np.stack([a, b, b + _SIDES], axis=1),
            np.stack([a, b + _SIDES, a + _SIDES], axis=1),
            np.stack([bottom_pole, after, first], axis=1),
            np.stack([top_pole, top + first, top + after], axis=1),
        ]
    )
    return points, faces.astype(np.uint32)


def joined(meshes: list[Mesh]) -> Mesh:
    """Several meshes as one."""
    starts = np.cumsum([0, *(len(points) for points, _ in meshes)])[:-1]
    points = np.concatenate([points for points, _ in meshes])
    faces = [faces + np.uint32(start) for (_, faces), start in zip(meshes, starts, strict=True)]
    return points, np.concatenate(faces)


def flat_shaded(mesh: Mesh) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Corners (3 F, 3) of all triangles in turn, and their normals."""
    points, faces = mesh
    corners = points[faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    return corners.reshape(-1, 3), np.repeat(normal, 3, axis=0).astype(np.float32)


def terrain_mesh(terrain: Heightfield) -> Mesh:
    """The columns as boxes down to half a metre below the lowest, world frame, z up."""
    bottom = float(terrain.heights.min()) - _BASE_M
    boxes = boxes_to_world(terrain, bottom).numpy().astype(np.float64)
    parts: list[Mesh] = [
        ((box[:3] + _CORNERS * box[3:]).astype(np.float32), _BOX_FACES) for box in boxes
    ]
    return joined(parts)
