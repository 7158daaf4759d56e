"""Shapes of a character as instances of three unit meshes: box, ball and tube.

A capsule is a tube and two balls, so that every shape of every character is one of three meshes,
moved, turned and stretched, and a picture of any number of characters is three batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from parc_ray.character.character import Character
from parc_ray.character.geometry import Geom

Floats = NDArray[np.float32]
KINDS = ("box", "ball", "tube")
_RINGS, _SIDES = 10, 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """Triangles: vertices (V, 3) and faces (F, 3)."""

    vertices: Floats
    faces: NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShapeSet:
    """All shapes of one kind of a character, K of them, in the frames of their bodies.

    Attributes:
        body: (K,) bodies that carry them.
        offset: (K, 3) m, centres.
        turn: (K, 4) xyzw.
        scale: (K, 3) by which the unit mesh is stretched.
    """

    body: NDArray[np.int64]
    offset: Floats
    turn: Floats
    scale: Floats


def unit_mesh(kind: str) -> Mesh:
    """A box of side 2, a ball of radius 1, or a tube of radius 1 from z = -1 to 1."""
    if kind == "box":
        corners = [[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]
        quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
        faces = [t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))]
        # Own corners for every side, so that the edges stay sharp when normals are smoothed.
        points = np.array(corners, np.float32)[np.array(faces).reshape(-1)]
        return Mesh(vertices=points, faces=np.arange(len(points), dtype=np.uint32).reshape(-1, 3))
    angle = np.arange(_SIDES) * (2 * np.pi / _SIDES)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    if kind == "tube":
        rows = [(1.0, -1.0), (1.0, 1.0)]
    else:
        tilt = np.linspace(-np.pi / 2, np.pi / 2, _RINGS + 1)
        rows = list(zip(np.cos(tilt).tolist(), np.sin(tilt).tolist(), strict=True))
    points = np.concatenate(
        [np.concatenate([r * circle, np.full((_SIDES, 1), z)], axis=-1) for r, z in rows]
    )
    faces = []
    for row in range(len(rows) - 1):
        for k in range(_SIDES):
            a, b = row * _SIDES + k, row * _SIDES + (k + 1) % _SIDES
            faces += [(a, b, b + _SIDES), (a, b + _SIDES, a + _SIDES)]
    return Mesh(vertices=points.astype(np.float32), faces=np.array(faces, np.uint32))


@lru_cache(maxsize=16)
def shape_sets(character: Character) -> dict[str, ShapeSet]:
    """The shapes of ``character`` by kind; kinds that it has none of are empty."""
    rows: dict[str, list[tuple[int, list[float], tuple[float, ...], list[float]]]] = {
        kind: [] for kind in KINDS
    }
    for geom in character.geoms:
        _add(rows, geom)
    out = {}
    for kind, found in rows.items():
        out[kind] = ShapeSet(
            body=np.array([r[0] for r in found], np.int64),
            offset=np.array([r[1] for r in found], np.float32).reshape(-1, 3),
            turn=np.array([r[2] for r in found], np.float32).reshape(-1, 4),
            scale=np.array([r[3] for r in found], np.float32).reshape(-1, 3),
        )
    return out


def _add(
    rows: dict[str, list[tuple[int, list[float], tuple[float, ...], list[float]]]], geom: Geom
) -> None:
    centre, radius = list(geom.pos), geom.radius
    if geom.kind == "box":
        rows["box"].append((geom.body, centre, geom.quat, list(geom.size)))
        return
    if geom.kind == "sphere":
        rows["ball"].append((geom.body, centre, geom.quat, [radius] * 3))
        return
    for end in geom.ends().tolist():
        rows["ball"].append((geom.body, end, geom.quat, [radius] * 3))
    rows["tube"].append((geom.body, centre, geom.quat, [radius, radius, geom.size[1]]))


def rotate(quat: Floats, vector: Floats) -> Floats:
    """Vectors (..., 3) turned by quaternions (..., 4) xyzw."""
    u, w = quat[..., :3], quat[..., 3:]
    t = 2.0 * np.cross(u, vector)
    return (vector + w * t + np.cross(u, t)).astype(np.float32)


def multiply(a: Floats, b: Floats) -> Floats:
    """Products (..., 4) of quaternions xyzw."""
    av, aw, bv, bw = a[..., :3], a[..., 3:], b[..., :3], b[..., 3:]
    xyz = aw * bv + bw * av + np.cross(av, bv)
    last = aw * bw - (av * bv).sum(-1, keepdims=True)
    return np.concatenate([xyz, last], axis=-1).astype(np.float32)


def place(shapes: ShapeSet, body_pos: Floats, body_rot: Floats) -> tuple[Floats, Floats]:
    """World centres (..., K, 3) and wxyz turns (..., K, 4) of shapes on bodies.

    Args:
        shapes: of one kind.
        body_pos: (..., B, 3) m, world.
        body_rot: (..., B, 4) xyzw, world.
    """
    pos, quat = body_pos[..., shapes.body, :], body_rot[..., shapes.body, :]
    centre = pos + rotate(quat, np.broadcast_to(shapes.offset, pos.shape))
    turn = multiply(quat, np.broadcast_to(shapes.turn, quat.shape))
    return centre.astype(np.float32), turn[..., [3, 0, 1, 2]].astype(np.float32)
