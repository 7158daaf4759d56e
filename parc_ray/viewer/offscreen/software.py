"""A renderer that needs no graphics library: NumPy and Pillow alone.

Terrain columns are polygons in the order in which they hide each other, bodies are intersected ray
by ray, and both meet in one depth buffer. The camera keeps its direction over a film, so rays are
made once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.offscreen.bodies import shadow_of, shape_hit
from parc_ray.viewer.offscreen.camera import FIELD_OF_VIEW_DEG, NEAR_M, View
from parc_ray.viewer.offscreen.ground import Ground
from parc_ray.viewer.offscreen.scene import Colour, Shapes

_LIGHT = np.array([-0.35, -0.45, 0.82], dtype=np.float32)
_LIGHT /= np.linalg.norm(_LIGHT)
_ACROSS_LIGHT = np.linalg.svd(_LIGHT[None])[2][1:].astype(np.float32)
"""(2, 3) axes of a plane across the light."""
_FAR_M = 200.0
_SKY_TOP, _SKY_LOW = (214.0, 225.0, 236.0), (246.0, 247.0, 248.0)
_SOIL_LOW, _SOIL_HIGH = (164.0, 146.0, 112.0), (222.0, 209.0, 178.0)
_FACE_LIGHT = (0.80, 0.66, 1.0)
_TILE_M = 0.4
_TILE_SHADE = np.float32(0.93)
_SHADE = np.float32(0.66)
_SHADOW_DROP_M = 1.0
"""Shadows are looked for down to this depth below the feet."""


class SoftwareRenderer:
    """Pictures of characters on one terrain.

    Args:
        terrain: the ground.
        view: direction and distance of the camera.
        size: W, H of a picture in pixels.
        supersample: pixels per pixel and axis that are drawn and averaged.
    """

    name = "software"

    def __init__(
        self, terrain: Heightfield, view: View, size: tuple[int, int], supersample: int = 1
    ) -> None:
        """Prepare faces, colours and rays; see the class."""
        self.view, self.supersample = view, supersample
        self.size = (size[0] * supersample, size[1] * supersample)
        width, height = self.size
        self.focal = height / 2 / np.tan(np.radians(FIELD_OF_VIEW_DEG) / 2)
        x = (np.arange(width) - width / 2 + 0.5) / self.focal
        y = (height / 2 - 0.5 - np.arange(height)) / self.focal
        right, up, forward = view.axes
        rays = forward + x[None, :, None] * right + y[:, None, None] * up
        self.rays = rays.astype(np.float32)
        safe = np.where(np.abs(self.rays) < 1e-7, np.float32(1e-7), self.rays)
        self._per_slope = np.ascontiguousarray((1.0 / safe).reshape(-1, 3).T)
        self.ground = Ground(terrain)
        self._prepare_colours()

    def _prepare_colours(self) -> None:
        ground = self.ground
        spread = max(ground.high_z - ground.low_z, 0.5)
        share = ((ground.height - ground.low_z) / spread)[:, None]
        soil = np.array(_SOIL_LOW) * (1 - share) + np.array(_SOIL_HIGH) * share
        self._face = (soil * np.array(_FACE_LIGHT)[ground.axis][:, None]).astype(np.float32)
        self._face = np.concatenate([self._face, np.zeros((1, 3), np.float32)])
        self._level = np.append(ground.level, 0.0).astype(np.float32)
        self._axis = np.append(ground.axis, 2)
        down = np.linspace(0.0, 1.0, self.size[1], dtype=np.float32)[:, None, None]
        sky = np.array(_SKY_TOP, np.float32) * (1 - down) + np.array(_SKY_LOW, np.float32) * down
        self._sky = np.broadcast_to(sky, (*self.size[::-1], 3))
        self._tile = ground.cell if ground.cell >= 0.2 else _TILE_M

    def draw(
        self, versions: Sequence[Sequence[tuple[Shapes, Colour]]], target: NDArray
    ) -> list[NDArray[np.uint8]]:
        """Pictures (H, W, 3), the camera looking at ``target`` (3,) m.

        Args:
            versions: bodies in their colours, of each picture; the ground is drawn once for all.
            target: (3,) m.
        """
        eye = self.view.eye(target)
        ground, ground_depth = self._draw_ground(eye, np.asarray(target))
        eye = eye.astype(np.float32)
        drawn = []
        for number, bodies in enumerate(versions):
            last = number == len(versions) - 1
            colour = ground if last else ground.copy()
            depth = ground_depth if last else ground_depth.copy()
            for shapes, _ in bodies:
                self._draw_shadow(colour, depth, shapes, eye)
            for shapes, tint in bodies:
                self._draw_body(colour, depth, shapes, tint, eye)
            picture = np.minimum(colour, 255.0).astype(np.uint8)
            if self.supersample > 1:
                picture = np.asarray(Image.fromarray(picture).reduce(self.supersample))
            drawn.append(picture)
        return drawn

    def close(self) -> None:
        """Nothing to release."""

    def _draw_ground(self, eye: NDArray, target: NDArray) -> tuple[NDArray, NDArray]:
        """Colours (H, W, 3) and depths (H, W) of ground and sky."""
        numbers = self.ground.numbers(eye, target, self.view, float(self.focal), self.size)
        axis = self._axis[numbers]
        slope = np.take_along_axis(self.rays, axis[..., None], -1)[..., 0]
        offset = (self._level - eye.astype(np.float32)[self._axis])[numbers]
        known = np.abs(slope) > 1e-7
        depth = np.where(known, offset / np.where(known, slope, 1.0), _FAR_M)
        depth = np.clip(depth, NEAR_M, _FAR_M).astype(np.float32)
        colour = self._face[numbers]
        at = depth[..., None] * self.rays[..., :2] + (eye[:2] - self.ground.origin).astype(
            np.float32
        )
        tile = np.floor(at * np.float32(1.0 / self._tile)).astype(np.int32)
        odd = ((tile[..., 0] + tile[..., 1]) & 1).astype(np.float32)
        colour *= (1.0 - 0.07 * odd * (axis == 2))[..., None]
        nothing = numbers < 0
        colour[nothing] = self._sky[nothing]
        depth[nothing] = np.inf
        return colour, depth

    def _draw_body(
        self, colour: NDArray, depth: NDArray, shapes: Shapes, tint: Colour, eye: NDArray
    ) -> None:
        paint = np.array(tint, dtype=np.float32)
        for kind, size, centre, mat in shapes.parts():
            block = self._block(_hull(kind, size, centre, mat), eye)
            if block is None:
                continue
            t, normal = shape_hit(kind, size, centre, mat, eye, self.rays[block])
            nearer = t < depth[block]
            if not nearer.any():
                continue
            light = np.clip(normal[nearer] @ _LIGHT, 0.0, 1.0)
            rim = np.clip(-(normal[nearer] * self.rays[block][nearer]).sum(-1), 0.0, 1.0)
            shade = 0.42 + 0.5 * light + 0.14 * rim
            gloss = 60.0 * light**24
            colour[block][nearer] = paint * shade[:, None] + gloss[:, None]
            depth[block][nearer] = t[nearer]

    def _draw_shadow(self, colour: NDArray, depth: NDArray, shapes: Shapes, eye: NDArray) -> None:
        """Darken the ground behind a body as seen from the light."""
        top = float(shapes.pos[:, 2].max())
        hulls = [_hull(kind, size, pos, mat) for kind, size, pos, mat in shapes.parts()]
        points = np.concatenate([points for points, _ in hulls])
        low = float(points[:, 2].min()) - _SHADOW_DROP_M
        fall = (points[:, 2] - low)[:, None] / _LIGHT[2]
        block = self._block((np.concatenate([points, points - fall * _LIGHT]), 0.2), eye)
        if block is None:
            return
        seen = depth[block]
        fits = np.isfinite(seen)
        at = seen[fits][:, None] * self.rays[block][fits] + eye
        below = (at[:, 2] < top) & (at[:, 2] > low)
        flat = _ACROSS_LIGHT @ at.T
        dark = np.zeros(len(at), dtype=bool)
        for kind, size, pos, mat in shapes.parts():
            dark |= shadow_of(kind, size, pos, mat, _ACROSS_LIGHT, flat)
        shade = np.ones(fits.shape, dtype=np.float32)
        shade[fits] = np.where(dark & below, _SHADE, np.float32(1.0))
        colour[block] *= shade[..., None]

    def _block(self, hull: tuple[NDArray, float], eye: NDArray) -> tuple[slice, slice] | None:
        """Rows and columns that spheres around points (P, 3) can cover; None off the screen."""
        points, radius = hull
        seen = (points - eye) @ self.view.axes.T
        if float(seen[:, 2].max()) < NEAR_M:
            return None
        front = np.maximum(seen[:, 2] - radius, NEAR_M)
        spread = 1.3 * self.focal * radius / front + 2.0
        x = self.size[0] / 2 + self.focal * seen[:, 0] / np.maximum(seen[:, 2], NEAR_M)
        y = self.size[1] / 2 - self.focal * seen[:, 1] / np.maximum(seen[:, 2], NEAR_M)
        x0, x1 = int(max((x - spread).min(), 0)), int(min((x + spread).max() + 1, self.size[0]))
        y0, y1 = int(max((y - spread).min(), 0)), int(min((y + spread).max() + 1, self.size[1]))
        return (slice(y0, y1), slice(x0, x1)) if x0 < x1 and y0 < y1 else None


def _hull(kind: str, size: NDArray, centre: NDArray, mat: NDArray) -> tuple[NDArray, float]:
    """Points (P, 3) and a radius around them that hold a shape."""
    if kind == "box":
        signs = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])
        return centre + (signs * size) @ mat.T, 0.0
    half = mat[:, 2] * (size[1] if kind == "capsule" else 0.0)
    return np.stack([centre - half, centre + half]), float(size[0])
