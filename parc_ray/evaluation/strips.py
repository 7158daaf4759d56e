"""Film strips of motions as SVG: small, sharp, and drawn without a display.

A strip is the view from the side, unrolled along the root's path: the ground's profile under the
path and the character's shapes at moments that lie apart. One unit of the drawing is a centimetre.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.image import imsave
from numpy.typing import NDArray

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import quat_rotate
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield

_CM = 100.0
_MARGIN_M = 0.5
_PROFILE_STEP_M = 0.02
_APART_M = 0.45
_MAP_PIXELS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class _View:
    """A motion unrolled along its path: arc length and unit tangent of every frame."""

    along: NDArray
    tangent: NDArray
    root: NDArray


def strip_svg(
    character: Character,
    layers: list[tuple[MotionFrames, str]],
    terrain: Heightfield,
    fps: float,
    pause_s: float = 1.5,
) -> str:
    """The side view of motions over one terrain.

    Args:
        character: whose shapes are drawn.
        layers: motions (T, ...) and their colours; the last one gives the path of the profile.
        terrain: the ground.
        fps: frames per second.
        pause_s: a resting motion is drawn again after so many seconds.

    Returns:
        An ``<svg>`` element without external references.
    """
    main = _view(layers[-1][0])
    shown = _moments(main, round(pause_s * fps))
    figures = [_figures(character, frames, shown, colour) for frames, colour in layers]
    s, ground = _profile(main, terrain)
    low = min(float(ground.min()), float(main.root[:, 2].min()) - 0.9) - 0.15
    high = float(main.root[:, 2].max()) + 0.95
    width, height = (s[-1] - s[0]) * _CM, (high - low) * _CM
    edge = np.flatnonzero(np.diff(ground, prepend=np.nan, append=np.nan))
    corners = [
        f"{_num(float(s[i]))} {_num(-float(ground[k]))}" for i in edge[1:-1] for k in (i - 1, i)
    ]
    ends = (f"{_num(s[0])} {_num(-ground[0])}", f"{_num(s[-1])} {_num(-ground[-1])}")
    points = "L".join([ends[0], *corners, ends[1]])
    soil = f"M{_num(s[0])} {_num(-low)}L{points}L{_num(s[-1])} {_num(-low)}Z"
    box = f"{_num(s[0])} {_num(-high)} {width:.0f} {height:.0f}"
    return (
        f'<svg viewBox="{box}" style="aspect-ratio:{width:.0f}/{height:.0f}" class="strip">'
        f'<path d="{soil}" fill="#cdbd98" stroke="#8a7a55" stroke-width="1"/>'
        f"{''.join(figures)}</svg>"
    )


def map_svg(terrain: Heightfield, frames: MotionFrames, colour: str) -> str:
    """The terrain from above, dark is low, with the root's path."""
    heights = terrain.heights.numpy()
    low, high = float(heights.min()), float(heights.max())
    share = (heights - low) / max(high - low, 1e-6)
    buffer = io.BytesIO()
    imsave(buffer, mpl.colormaps["cividis"](share.T[::-1])[..., :3], format="png")
    uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    nx, ny = heights.shape
    cells = (frames.root_pos[:, :2] - terrain.origin).numpy() / terrain.cell_size + 0.5
    points = " ".join(f"{x:.2f},{ny - y:.2f}" for x, y in cells[:: max(1, len(cells) // 60)])
    start = f"{cells[0, 0]:.2f}", f"{ny - cells[0, 1]:.2f}"
    return (
        f'<svg viewBox="0 0 {nx} {ny}" width="{nx * _MAP_PIXELS}" height="{ny * _MAP_PIXELS}" '
        f'class="map"><image href="{uri}" width="{nx}" height="{ny}" '
        'preserveAspectRatio="none" style="image-rendering:pixelated"/>'
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="0.35"/>'
        f'<circle cx="{start[0]}" cy="{start[1]}" r="0.5" fill="{colour}"/></svg>'
    )


def _num(metres: float) -> str:
    return f"{metres * _CM:.0f}"


def _view(frames: MotionFrames) -> _View:
    root = frames.root_pos.numpy().astype(float)
    steps = np.diff(root[:, :2], axis=0, prepend=root[:1, :2])
    tangent = np.gradient(root[:, :2], axis=0) if len(root) > 1 else np.zeros((1, 2))
    size = np.linalg.norm(tangent, axis=1, keepdims=True)
    moving = np.flatnonzero(size[:, 0] > 5e-3)
    unit = np.where(size > 5e-3, tangent / np.maximum(size, 1e-9), [[1.0, 0.0]])
    if len(moving):  # a resting motion keeps the direction in which it came
        at = np.clip(np.searchsorted(moving, np.arange(len(root)), side="right") - 1, 0, None)
        unit = unit[moving[at]]
    return _View(along=np.cumsum(np.linalg.norm(steps, axis=1)), tangent=unit, root=root)


def _moments(view: _View, pause: int) -> list[int]:
    """Frames in which the root has moved on, or a pause has passed."""
    chosen = [0]
    for t in range(1, len(view.root)):
        place = np.array([view.along[t] - view.along[chosen[-1]], view.root[t, 2]])
        gone = np.hypot(place[0], place[1] - view.root[chosen[-1], 2])
        if gone >= _APART_M or t - chosen[-1] >= pause:
            chosen.append(t)
    return chosen


def _profile(view: _View, terrain: Heightfield) -> tuple[NDArray, NDArray]:
    """Distance along the path, straight beyond its ends, and the ground there, metres."""
    s = np.arange(-_MARGIN_M, view.along[-1] + _MARGIN_M, _PROFILE_STEP_M)
    inner = np.clip(s, 0.0, view.along[-1])
    xy = np.stack([np.interp(inner, view.along, view.root[:, k]) for k in range(2)], axis=1)
    ends = np.where(s[:, None] < 0, view.tangent[0], view.tangent[-1])
    xy = xy + (s - inner)[:, None] * ends
    return s, terrain.height_at(torch.as_tensor(xy, dtype=torch.float32)).numpy()


def _figures(character: Character, frames: MotionFrames, shown: list[int], colour: str) -> str:
    """The character's shapes at some frames: one path per thickness."""
    view = _view(frames)
    moments = [t for t in shown if t < len(view.root)]
    pos, quat = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    paths: dict[float, list[str]] = {}
    for geom in character.geoms:
        a, b, c = geom.size
        if geom.kind == "box":
            longest = int(np.argmax(geom.size))
            half = torch.zeros(2, 3, dtype=torch.float64)
            half[0, longest], half[1, longest] = -geom.size[longest], geom.size[longest]
            ends, radius = geom.to_body(half), sorted((a, b, c))[0]
        else:
            ends, radius = geom.ends(), geom.radius
        place = quat_rotate(quat[moments, geom.body][:, None], ends.float()[None])
        place = (place + pos[moments, geom.body][:, None]).numpy()
        for number, t in enumerate(moments):
            offset = place[number, :, :2] - view.root[t, :2]
            s = view.along[t] + offset @ view.tangent[t]
            z = place[number, :, 2]
            words = f"M{_num(s[0])} {_num(-z[0])}L{_num(s[1])} {_num(-z[1])}"
            paths.setdefault(round(radius, 3), []).append(words)
    drawn = [
        f'<path d="{"".join(words)}" stroke-width="{200 * radius:.0f}"/>'
        for radius, words in sorted(paths.items(), reverse=True)
    ]
    group = f'<g stroke="{colour}" stroke-linecap="round" fill="none" opacity="0.75">'
    return f"{group}{''.join(drawn)}</g>"
