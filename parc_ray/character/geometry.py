"""Collision shapes of a character and their masses.

A geom sits in the frame of its body. Metres, kilograms, quaternions xyzw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from parc_ray.character import rotations as rot

GeomKind = Literal["sphere", "capsule", "box"]
Vec3 = tuple[float, float, float]
Quat = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Geom:
    """One sphere, capsule or box."""

    body: int
    """Index of the body that carries it."""
    kind: GeomKind
    """Shape."""
    pos: Vec3
    """m, centre in the body frame."""
    quat: Quat = (0.0, 0.0, 0.0, 1.0)
    """Rotation in the body frame; a capsule lies along its own z axis."""
    size: Vec3
    """m: sphere (radius, 0, 0), capsule (radius, half length of the segment, 0), box half sizes."""
    density: float
    """kg/m^3."""

    @property
    def radius(self) -> float:
        """Radius of a sphere or capsule, m."""
        return self.size[0]

    @property
    def volume(self) -> float:
        """Volume, m^3."""
        a, b, c = self.size
        if self.kind == "sphere":
            return 4.0 / 3.0 * math.pi * a**3
        if self.kind == "capsule":
            return math.pi * a**2 * (2.0 * b + 4.0 / 3.0 * a)
        return 8.0 * a * b * c

    @property
    def mass(self) -> float:
        """Mass, kg."""
        return self.volume * self.density

    def to_body(self, points: Tensor) -> Tensor:
        """Points (P, 3) of the geom's own frame in the body frame (P, 3)."""
        return rot.quat_rotate(points.new_tensor(self.quat), points) + points.new_tensor(self.pos)

    def ends(self) -> Tensor:
        """(2, 3) float64 m: end points of a capsule's segment in the body frame."""
        half = self.size[1] if self.kind == "capsule" else 0.0
        return self.to_body(torch.tensor([[0.0, 0, -half], [0, 0, half]], dtype=torch.float64))

    def support_points(self) -> tuple[Tensor, float]:
        """Points (P, 3) float64 in the body frame and a radius whose swept hull is the geom."""
        if self.kind == "sphere":
            return torch.tensor([self.pos], dtype=torch.float64), self.radius
        if self.kind == "capsule":
            return self.ends(), self.radius
        signs = torch.tensor(
            [[i, j, k] for k in (-1.0, 1.0) for i in (-1.0, 1.0) for j in (-1.0, 1.0)],
            dtype=torch.float64,
        )
        return self.to_body(signs * signs.new_tensor(self.size)), 0.0


def body_masses(geoms: tuple[Geom, ...], num_bodies: int) -> Tensor:
    """Mass (B,) kg of every body, the sum over its geoms; overlaps count twice, as in MuJoCo."""
    masses = torch.zeros(num_bodies, dtype=torch.float64)
    for geom in geoms:
        masses[geom.body] += geom.mass
    return masses.float()


def lowest_point(geoms: tuple[Geom, ...], body_pos: Tensor, body_rot: Tensor) -> float:
    """Height in m of the lowest point of all geoms in the pose body_pos (B, 3), body_rot (B, 4)."""
    lowest = math.inf
    for geom in geoms:
        points, radius = geom.support_points()
        placed = rot.quat_rotate(body_rot[geom.body].double(), points) + body_pos[geom.body]
        lowest = min(lowest, float(placed[:, 2].min()) - radius)
    return lowest
