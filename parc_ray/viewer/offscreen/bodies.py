"""Spheres, capsules and boxes by exact ray intersection within their frames on the screen.

A ray is ``eye + t d`` with ``d`` of length 1 along the view, so that t is the depth. Legend: H, W
pixels of the block that a shape can cover.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parc_ray.viewer.offscreen.camera import NEAR_M

Pixels = NDArray[Any]  # float32; numpy's types widen what stays single in fact
Hit = tuple[Pixels, Pixels]
"""Depths (H, W), infinite where nothing is hit, and unit normals (H, W, 3)."""


def shape_hit(
    kind: str, size: Pixels, centre: Pixels, mat: Pixels, eye: Pixels, rays: Pixels
) -> Hit:
    """Where rays (H, W, 3) from ``eye`` (3,) meet a shape first."""
    if kind == "box":
        return box_hit(size, centre, mat, eye, rays)
    half = mat[:, 2] * (size[1] if kind == "capsule" else 0.0)
    return capsule_hit(centre - half, centre + half, float(size[0]), eye, rays)


def capsule_hit(a: Pixels, b: Pixels, radius: float, eye: Pixels, rays: Pixels) -> Hit:
    """A capsule between ``a`` and ``b`` (3,); a sphere where they are one point."""
    axis, from_a = b - a, eye - a
    length_sq = float(axis @ axis)
    ray_sq = np.square(rays).sum(-1)
    if length_sq < 1e-12:
        t = _nearest_root(ray_sq, rays @ from_a, float(from_a @ from_a) - radius**2)
        return t, _normals(t, rays, from_a, np.float32(0.0), axis, radius)
    along, offset = rays @ axis, float(axis @ from_a)
    across = rays @ from_a
    t = _nearest_root(
        length_sq * ray_sq - along * along,
        length_sq * across - offset * along,
        length_sq * (float(from_a @ from_a) - radius**2) - offset**2,
    )
    place = (offset + np.where(np.isfinite(t), t, 0.0) * along) / length_sq
    beyond = np.isfinite(t) & ((place < 0.0) | (place > 1.0))
    if beyond.any():
        from_b = eye - b
        first = place < 0.0
        ends = np.where(first, across, rays @ from_b)
        rest = np.where(first, float(from_a @ from_a), float(from_b @ from_b)) - radius**2
        t = np.where(beyond, _nearest_root(ray_sq, ends, rest), t)
    return t, _normals(t, rays, from_a, np.clip(place, 0.0, 1.0), axis, radius)


def _nearest_root(a: Pixels, half_b: Pixels, c: Pixels | float) -> Pixels:
    """Smaller root of a t^2 + 2 half_b t + c, infinite where there is none in front."""
    inner = half_b * half_b - a * c
    t = (-half_b - np.sqrt(np.maximum(inner, 0.0))) / np.maximum(a, 1e-12)
    return np.where((inner > 0.0) & (t > NEAR_M), t, np.inf).astype(np.float32)


def _normals(
    t: Pixels, rays: Pixels, from_a: Pixels, place: Pixels | np.float32, axis: Pixels, r: float
) -> Pixels:
    at = np.where(np.isfinite(t), t, 0.0)[..., None] * rays + from_a
    if isinstance(place, np.ndarray):
        at = at - place[..., None] * axis
    return at / r


def box_hit(half: Pixels, centre: Pixels, mat: Pixels, eye: Pixels, rays: Pixels) -> Hit:
    """A box with half sizes (3,), turned by ``mat`` (3, 3)."""
    origin, local = (eye - centre) @ mat, rays @ mat
    safe = np.where(np.abs(local) < 1e-9, np.float32(1e-9), local)
    one, other = (-half - origin) / safe, (half - origin) / safe
    near, far = np.minimum(one, other), np.maximum(one, other)
    axis = near.argmax(-1)
    enter = np.take_along_axis(near, axis[..., None], -1)[..., 0]
    t = np.where((enter < far.min(-1)) & (enter > NEAR_M), enter, np.inf).astype(np.float32)
    sign = -np.sign(np.take_along_axis(safe, axis[..., None], -1))
    return t, sign * mat.T[axis]


def shadow_of(
    kind: str, size: Pixels, centre: Pixels, mat: Pixels, across: Pixels, flat: Pixels
) -> NDArray[np.bool_]:
    """Bool (P,): a shape keeps the light from points; boxes count as capsules.

    Args:
        kind: of the shape.
        size: (3,) m.
        centre: (3,) m.
        mat: (3, 3).
        across: (2, 3) axes of a plane across the light.
        flat: (2, P) the points in this plane.
    """
    radius, reach = float(size[0]), mat[:, 2] * (size[1] if kind == "capsule" else 0.0)
    if kind == "box":
        longest = int(np.argmax(size))
        radius = float(np.sort(size)[1])
        reach = mat[:, longest] * max(float(size[longest]) - radius, 0.0)
    start, axis = across @ (centre - reach), across @ (2.0 * reach)
    low, high = np.minimum(start, start + axis) - radius, np.maximum(start, start + axis) + radius
    out = np.zeros(flat.shape[1], dtype=bool)
    u, v = flat
    near = np.flatnonzero((u > low[0]) & (u < high[0]) & (v > low[1]) & (v < high[1]))
    du, dv = start[0] - u[near], start[1] - v[near]
    share = -(du * axis[0] + dv * axis[1]) / max(float(axis @ axis), 1e-9)
    share = np.clip(share, 0.0, 1.0)
    out[near] = np.square(du + share * axis[0]) + np.square(dv + share * axis[1]) < radius**2
    return out
