"""Still pictures of motions on terrain, drawn with matplotlib and no display.

A motion is drawn twice: from above (height map and root path) and from the side, unrolled along
the path, with stick figures at regular times over the terrain's profile.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.heightfield import Heightfield

GENERATED_COLOUR = "#d1495b"
CORRECTED_COLOUR = "#00798c"
TERRAIN_COLOUR = "#c8b68f"


@dataclass(frozen=True, kw_only=True)
class Track:
    """One motion to draw.

    Attributes:
        label: legend text.
        colour: matplotlib colour.
        body_pos: (T, B, 3) m, world positions of the bodies.
    """

    label: str
    colour: str
    body_pos: NDArray[np.float32]


def track_of(
    clip: MotionClip, character: Character, label: str, colour: str, shift: NDArray | None = None
) -> Track:
    """Bodies of a clip, moved by ``shift`` (3,) m into the frame of the picture."""
    frames = clip.frames
    pos, _ = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    body_pos = pos.numpy().astype(np.float32)
    if shift is not None:
        body_pos = body_pos + np.asarray(shift, dtype=np.float32)
    return Track(label=label, colour=colour, body_pos=body_pos)


def draw_motion(
    terrain: Heightfield,
    tracks: list[Track],
    character: Character,
    title: str,
    path_nodes: NDArray | None = None,
    figures_per_second: float = 2.5,
    fps: float = 30.0,
) -> Figure:
    """Draw motions over one terrain: above left, side view right.

    Args:
        terrain: the terrain all tracks share.
        tracks: motions in the terrain's frame; the first one gives the side view its path.
        character: names the skeleton's bones.
        title: heading of the picture.
        path_nodes: (M, 3) m, planned way-points.
        figures_per_second: stick figures per second of motion.
        fps: frames per second of the tracks.
    """
    figure = Figure(figsize=(11, 3.4), dpi=100, layout="constrained")
    above, side = figure.subplots(1, 2, width_ratios=[1, 2.4])
    _draw_above(above, terrain, tracks, path_nodes)
    _draw_side(side, terrain, tracks, character, max(1, round(fps / figures_per_second)))
    figure.suptitle(title, fontsize=10)
    return figure


def draw_long_motion(
    terrain: Heightfield,
    track: Track,
    character: Character,
    title: str,
    path_nodes: NDArray | None = None,
    seconds_per_strip: float = 6.0,
    fps: float = 30.0,
) -> Figure:
    """Draw one long motion: above left, on the right side views of a few seconds each, in order.

    Args:
        terrain: the terrain.
        track: the motion.
        character: names the skeleton's bones.
        title: heading of the picture.
        path_nodes: (M, 3) m, planned way-points.
        seconds_per_strip: length of a side view.
        fps: frames per second of the track.
    """
    length = max(2, round(seconds_per_strip * fps))
    starts = range(0, max(1, len(track.body_pos) - 1), length)
    rows = len(starts)
    figure = Figure(figsize=(13, max(4.0, 1.5 * rows)), dpi=80, layout="constrained")
    grid = figure.add_gridspec(rows, 2, width_ratios=[1, 1.6])
    _draw_above(figure.add_subplot(grid[:, 0]), terrain, [track], path_nodes)
    for row, start in enumerate(starts):
        axes = figure.add_subplot(grid[row, 1])
        body_pos = track.body_pos[start : start + length + 1]
        part = Track(label=f"from {start / fps:.0f} s", colour=track.colour, body_pos=body_pos)
        _draw_side(axes, terrain, [part], character, max(1, round(fps / 2.5)))
        if row < rows - 1:
            axes.set_xlabel("")
    figure.suptitle(title, fontsize=10)
    return figure


def _draw_above(
    axes: Axes, terrain: Heightfield, tracks: list[Track], path_nodes: NDArray | None
) -> None:
    heights = terrain.heights.numpy()
    half = terrain.cell_size / 2
    low = terrain.origin.numpy() - half
    high = low + np.array(heights.shape) * terrain.cell_size
    image = axes.imshow(
        heights.T,
        origin="lower",
        extent=(low[0], high[0], low[1], high[1]),
        cmap="cividis",
        interpolation="nearest",
    )
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label="height (m)")
    if path_nodes is not None:
        axes.plot(path_nodes[:, 0], path_nodes[:, 1], "w.", markersize=2)
    for track in tracks:
        root = track.body_pos[:, 0]
        axes.plot(root[:, 0], root[:, 1], color=track.colour, linewidth=1.5)
        axes.plot(root[0, 0], root[0, 1], "o", color=track.colour, markersize=4)
    axes.set_xlabel("x (m)", fontsize=8)
    axes.set_ylabel("y (m)", fontsize=8)
    axes.tick_params(labelsize=7)


def _arc_length(xy: NDArray) -> NDArray:
    steps = np.linalg.norm(np.diff(xy, axis=0), axis=1)
    return np.concatenate([[0.0], np.cumsum(steps)])


def _draw_side(
    axes: Axes, terrain: Heightfield, tracks: list[Track], character: Character, stride: int
) -> None:
    """Unroll every track along its own root path; the terrain along the first one's.

    A track that begins later, such as a recorded segment, is drawn from where it begins.
    """
    root = tracks[0].body_pos[:, 0]
    along = _arc_length(root[:, :2])
    dense = np.linspace(0.0, along[-1], 400) if along[-1] > 0 else np.zeros(1)
    xy = np.stack([np.interp(dense, along, root[:, k]) for k in range(2)], axis=1)
    ground = terrain.height_at(torch.as_tensor(xy, dtype=torch.float32)).numpy()
    floor = float(min(ground.min(), root[:, 2].min() - 1.0)) - 0.1
    axes.fill_between(dense, ground, floor, color=TERRAIN_COLOUR, step="mid")
    for track in tracks:
        away = np.linalg.norm(root[:, :2] - track.body_pos[0, 0, :2], axis=1)
        _draw_sticks(axes, track, character, stride, float(along[away.argmin()]))
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("distance along the path (m)", fontsize=8)
    axes.set_ylabel("z (m)", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7, loc="upper right")


def _draw_sticks(
    axes: Axes, track: Track, character: Character, stride: int, start_m: float
) -> None:
    root = track.body_pos[:, 0]
    along = start_m + _arc_length(root[:, :2])
    tangent = np.gradient(root[:, :2], axis=0) if len(root) > 1 else np.zeros_like(root[:, :2])
    norm = np.linalg.norm(tangent, axis=1, keepdims=True)
    tangent = np.where(norm > 1e-4, tangent / np.maximum(norm, 1e-4), [[1.0, 0.0]])
    parents = character.skeleton.parents
    for number, t in enumerate(range(0, len(root), stride)):
        pos = track.body_pos[t]
        s = along[t] + (pos[:, :2] - root[t, :2]) @ tangent[t]
        for body, parent in enumerate(parents):
            if parent >= 0:
                axes.plot(
                    [s[body], s[parent]],
                    [pos[body, 2], pos[parent, 2]],
                    color=track.colour,
                    linewidth=1.0,
                    alpha=0.85,
                    label=track.label if number == 0 and body == 1 else None,
                )
    axes.plot(along, root[:, 2], color=track.colour, linewidth=0.6, alpha=0.6)


def draw_curves(
    curves: dict[str, tuple[NDArray, NDArray]], title: str, x_label: str, y_label: str
) -> Figure:
    """Draw named curves ``{label: (x, y)}`` into one picture."""
    figure = Figure(figsize=(5.2, 3.0), dpi=100, layout="constrained")
    axes = figure.subplots()
    colours = mpl.colormaps["tab10"].colors  # pyright: ignore[reportAttributeAccessIssue]
    for number, (label, (x, y)) in enumerate(curves.items()):
        axes.plot(x, y, label=label, color=colours[number % len(colours)], linewidth=1.2)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x_label, fontsize=8)
    axes.set_ylabel(y_label, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(fontsize=7)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The picture as a PNG file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def data_uri(figure: Figure) -> str:
    """The picture as a ``data:`` URI for a self-contained page."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(figure)).decode("ascii")
