"""Sample points on the surface of a character, for distances to terrain.

Full set (304 points of the humanoid): 12 icosahedron vertices per sphere; four rings of four
points along a capsule's segment, without caps; 3 x 6 points on the bottom and on the top of a
box. Minimal set (42 points): sphere centres, two points on a capsule's axis, box corners. Points
of one body are contiguous. Counts as in the published code.

The published set is the full set with one quirk of the published code: where a capsule lies along
z, its rings are turned about it by acos(length in metres, signed by direction). That side-effect
of a wrong orientation formula shifts the contact metric by up to 3 %, so figures that are compared
with published ones use it; being lopsided, it serves nothing else.

Legend: P points, B bodies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.geometry import Geom

PointKind = Literal["full", "minimal", "published"]

_CAPSULE_SLICES = 4
_CIRCLE_POINTS = 4
_BOX_POINTS = (3, 6, 2)
_SOLE_TOLERANCE_M = 1e-4
_PARALLEL_TOLERANCE_M = 1e-6


@dataclass(frozen=True, eq=False)
class SurfacePoints:
    """Points fixed to bodies.

    Attributes:
        body: (P,) long, the body of each point, ascending.
        offset: (P, 3) m, position in the body frame.
        num_bodies: number of bodies B of the character.
    """

    body: Tensor
    offset: Tensor
    num_bodies: int

    @property
    def point_ranges(self) -> tuple[slice, ...]:
        """Slice of the points of each of the B bodies."""
        counts = torch.bincount(self.body, minlength=self.num_bodies).tolist()
        ranges, start = [], 0
        for count in counts:
            ranges.append(slice(start, start + count))
            start += count
        return tuple(ranges)

    def of_body(self, body: int) -> Tensor:
        """(n, 3) m, the points of ``body`` in its own frame."""
        return self.offset[self.point_ranges[body]]

    def __len__(self) -> int:
        """Number of points P."""
        return self.body.shape[0]


@lru_cache(maxsize=64)
def surface_points(character: Character, kind: PointKind = "full") -> SurfacePoints:
    """The sample points of ``character``; the same object for the same arguments."""
    sample = {"full": _full_points, "minimal": _minimal_points, "published": _published_points}[
        kind
    ]
    bodies: list[int] = []
    offsets: list[Tensor] = []
    for geom in sorted(character.geoms, key=lambda g: g.body):
        points = geom.to_body(sample(geom))
        bodies += [geom.body] * points.shape[0]
        offsets.append(points)
    return SurfacePoints(
        body=torch.tensor(bodies, dtype=torch.long),
        offset=torch.cat(offsets).float(),
        num_bodies=character.skeleton.num_bodies,
    )


@lru_cache(maxsize=64)
def sole_points(character: Character) -> SurfacePoints:
    """The lowest points of the full set on each foot: the sole of a box foot."""
    points = surface_points(character, "full")
    keep = torch.zeros(len(points), dtype=torch.bool)
    for foot in character.feet:
        span = points.point_ranges[foot]
        height = points.offset[span, 2]
        keep[span] = height < height.min() + _SOLE_TOLERANCE_M
    return SurfacePoints(points.body[keep], points.offset[keep], points.num_bodies)


def place_points(points: SurfacePoints, body_pos: Tensor, body_rot: Tensor) -> Tensor:
    """World positions of surface points.

    The rotations of all bodies meet all points in one matrix product, several times faster than
    rotating point by point.

    Args:
        points: P points on B bodies.
        body_pos: (..., B, 3) m, world.
        body_rot: (..., B, 4) xyzw, world.

    Returns:
        (..., P, 3) m, differentiable.
    """
    body, scatter = _placement(points, body_pos.device, body_pos.dtype)
    with torch.autocast(body_pos.device.type, enabled=False):
        matrix = rot.quat_to_matrix(body_rot)
        rows = matrix.transpose(-3, -2).flatten(-2)
        turned = (rows @ scatter).transpose(-1, -2)
    return turned + body_pos.index_select(-2, body)


@lru_cache(maxsize=64)
def _placement(
    points: SurfacePoints, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Body of each point (P,) and the matrix (3 B, P) that holds its offset in that body's rows."""
    scatter = torch.zeros(points.num_bodies, 3, len(points), dtype=torch.float64)
    scatter[points.body, :, torch.arange(len(points))] = points.offset.double()
    return points.body.to(device), scatter.flatten(0, 1).to(device, dtype)


def _icosahedron(radius: float) -> Tensor:
    """(12, 3) vertices at ``radius``: the cyclic permutations of (0, +-1, +-golden ratio)."""
    phi = 0.5 * (1.0 + math.sqrt(5.0))
    base = [[0.0, a, b * phi] for a in (-1.0, 1.0) for b in (-1.0, 1.0)]
    vertices = [v[-shift:] + v[:-shift] for shift in (0, 1, 2) for v in base]
    return radius * torch.tensor(vertices, dtype=torch.float64) / math.sqrt(1.0 + phi**2)


def _full_points(geom: Geom) -> Tensor:
    """(n, 3) float64 points of the full set in the geom's own frame."""
    a, b, c = geom.size
    if geom.kind == "sphere":
        return _icosahedron(a)
    if geom.kind == "capsule":
        angle = torch.arange(_CIRCLE_POINTS, dtype=torch.float64) * (2.0 * math.pi / _CIRCLE_POINTS)
        z = torch.linspace(-b, b, _CAPSULE_SLICES, dtype=torch.float64)
        z, angle = (g.flatten() for g in torch.meshgrid(z, angle, indexing="ij"))
        return torch.stack((a * torch.cos(angle), a * torch.sin(angle), z), dim=-1)
    axes = [
        torch.linspace(-h, h, n, dtype=torch.float64)
        for h, n in zip((c, a, b), (_BOX_POINTS[2], *_BOX_POINTS[:2]), strict=True)
    ]
    z, x, y = (g.flatten() for g in torch.meshgrid(*axes, indexing="ij"))
    return torch.stack((x, y, z), dim=-1)


def _published_points(geom: Geom) -> Tensor:
    """(n, 3) float64 points of the full set, rings of capsules along z turned as published."""
    points = _full_points(geom)
    axis = geom.ends()[1] - geom.ends()[0]
    if geom.kind != "capsule" or float(axis[:2].abs().max()) > _PARALLEL_TOLERANCE_M:
        return points
    downwards = geom.pos[2] < 0  # limbs are written from the joint outwards
    length = min(float(axis.norm()), 1.0)
    angle = torch.tensor(math.acos(-length if downwards else length), dtype=torch.float64)
    return rot.quat_rotate(rot.yaw_quat(angle), points)


def _minimal_points(geom: Geom) -> Tensor:
    """(n, 3) float64 points of the minimal set in the geom's own frame."""
    a, b, c = geom.size
    if geom.kind == "sphere":
        return torch.zeros(1, 3, dtype=torch.float64)
    if geom.kind == "capsule":
        third = 2.0 * b / 3.0
        return torch.tensor([[0.0, 0.0, -third], [0.0, 0.0, third]], dtype=torch.float64)
    corners = [[x, y, z] for z in (-c, c) for x in (-a, a) for y in (-b, b)]
    return torch.tensor(corners, dtype=torch.float64)
