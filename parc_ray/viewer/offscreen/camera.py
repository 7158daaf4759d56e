"""Where pictures are taken from: a camera that goes with the root and keeps its direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.offscreen.scene import Actor

FIELD_OF_VIEW_DEG = 42.0
NEAR_M = 0.1
_ELEVATION_DEG = -18.0
_SMOOTH_S = 0.5
_CLEARANCE_M = 0.15
_TURNS_DEG = (60.0, -60.0, 90.0, -90.0, 35.0, -35.0, 120.0, -120.0, 150.0, -150.0, 0.0, 180.0)
"""Directions to look in, relative to that of travel; the first from which most is seen."""


@dataclass(frozen=True)
class View:
    """A direction and a distance; angles as in MuJoCo: the camera looks along them.

    Attributes:
        azimuth_deg: 0 looks along x, 90 along y.
        elevation_deg: negative looks down.
        distance_m: from the target.
    """

    azimuth_deg: float
    elevation_deg: float
    distance_m: float
    axes: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    """(3, 3) rows: right, up, forward."""

    def __post_init__(self) -> None:
        """Work out the axes."""
        azimuth, elevation = math.radians(self.azimuth_deg), math.radians(self.elevation_deg)
        flat = math.cos(elevation)
        forward = np.array(
            [flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(elevation)]
        )
        right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
        object.__setattr__(self, "axes", np.stack([right, np.cross(right, forward), forward]))

    def eye(self, target: NDArray) -> NDArray[np.float64]:
        """Where the camera stands, (..., 3) m, to look at ``target`` (..., 3)."""
        return np.asarray(target, dtype=np.float64) - self.distance_m * self.axes[2]


def follow(actor: Actor, times: Sequence[float] | NDArray) -> NDArray[np.float64]:
    """Targets (len(times), 3) m: the root's path without its bobbing, held at the ends."""
    smooth = gaussian_filter1d(
        actor.root.astype(np.float64), _SMOOTH_S * actor.fps, axis=0, mode="nearest"
    )
    clock = actor.start_s + np.arange(len(smooth)) / actor.fps
    return np.stack([np.interp(times, clock, smooth[:, k]) for k in range(3)], axis=1)


def choose_view(
    actor: Actor,
    terrain: Heightfield,
    height_m: float,
    azimuth_deg: float | None = None,
    elevation_deg: float | None = None,
    distance_m: float | None = None,
) -> View:
    """A view from the side from which the ground hides the root least often.

    Args:
        actor: who is followed.
        terrain: what may stand in the way.
        height_m: of the standing root; the default distance is a multiple of it.
        azimuth_deg: of the camera; None chooses.
        elevation_deg: None takes 18 degrees downwards.
        distance_m: None takes 5.2 root heights.
    """
    elevation = _ELEVATION_DEG if elevation_deg is None else elevation_deg
    distance = 5.2 * height_m if distance_m is None else distance_m
    if azimuth_deg is not None:
        return View(azimuth_deg, elevation, distance)
    way = actor.root[-1] - actor.root[0]
    travel = math.degrees(math.atan2(way[1], way[0])) if np.hypot(way[0], way[1]) > 0.3 else 0.0
    views = [View(travel + turn, elevation, distance) for turn in _TURNS_DEG]
    targets = follow(actor, actor.start_s + np.arange(0, len(actor.root), 5) / actor.fps)
    hidden = [_hidden_share(view, targets, terrain) for view in views]
    return views[int(np.argmin(np.round(hidden, 2)))]


def _hidden_share(view: View, targets: NDArray, terrain: Heightfield) -> float:
    """Share of targets (T, 3) between which and the eye there is ground."""
    along = np.linspace(0.0, 1.0, 24)[None, :, None]
    points = targets[:, None] * (1 - along) + view.eye(targets)[:, None] * along
    xy = torch.as_tensor(points[..., :2], dtype=torch.float32)
    ground = terrain.height_at(xy).numpy()
    inside = terrain.contains(xy).numpy()
    return float((inside & (ground > points[..., 2] - _CLEARANCE_M)).any(axis=1).mean())
