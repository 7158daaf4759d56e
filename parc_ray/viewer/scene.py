"""What is drawn at a time: figures, where they stand, and three batches of shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.character.character import Character
from parc_ray.character.rotations import heading_angle
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.local_grid import GridSpec, world_grid_xy
from parc_ray.viewer.poses import ClipPoses
from parc_ray.viewer.shapes import KINDS, shape_sets
from parc_ray.viewer.tint import Colour, Tint, body_colours

Floats = NDArray[np.float32]
Arrangement = Literal["overlay", "side by side"]
ARRANGEMENTS: tuple[Arrangement, ...] = ("overlay", "side by side")
_GAP_M = 0.8


@dataclass(kw_only=True, eq=False)
class Figure:
    """One motion in the scene.

    Attributes:
        key: its clip's key.
        title: what it is called on the screen.
        poses: its frames.
        colour: of the version.
        start_s: time on the time line at which its first frame is shown.
        shift: (3,) m from its own frame into that of the motion it is compared with.
        opacity: 0 to 1.
        place: (3,) m, where the arrangement puts it.
        terrain_shown: whether its ground is drawn.
    """

    key: str
    title: str
    poses: ClipPoses
    colour: Colour
    start_s: float = 0.0
    shift: Floats = field(default_factory=lambda: np.zeros(3, np.float32))
    opacity: float = 1.0
    place: Floats = field(default_factory=lambda: np.zeros(3, np.float32))
    terrain_shown: bool = True
    _colours: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """Time of its last frame on the time line."""
        return self.start_s + self.poses.clip.duration_s

    @property
    def terrain(self) -> Heightfield:
        """Its ground, in its own frame."""
        return self.poses.clip.terrain

    @property
    def offset(self) -> Floats:
        """(3,) m from its own frame to the scene's."""
        return self.shift + self.place

    def frame(self, time_s: float) -> int:
        """Frame shown at a time of the time line."""
        return self.poses.frame_at(time_s - self.start_s)

    def root(self, time_s: float) -> Floats:
        """(3,) m, the root in the scene."""
        return self.poses.bodies[0][self.frame(time_s), 0] + self.offset

    def colours(self, tint: Tint) -> NDArray[np.uint8]:
        """(T, B, 3), worked out once per kind of colour."""
        if tint not in self._colours:
            self._colours[tint] = body_colours(self.poses, tint, self.colour)
        return self._colours[tint]

    def forget_colours(self) -> None:
        """After other poses were set."""
        self._colours.clear()


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Instances of one unit mesh: positions (N, 3), turns (N, 4) wxyz, colours (N, 3)."""

    position: Floats
    wxyz: Floats
    colour: NDArray[np.uint8]


@dataclass(kw_only=True, eq=False)
class Scene:
    """Figures and how they are shown.

    Attributes:
        character: of all figures.
        figures: first the one that the camera follows.
        tint: what the colours tell.
    """

    character: Character
    figures: list[Figure] = field(default_factory=list)
    tint: Tint = "plain"

    @property
    def length_s(self) -> float:
        """Time of the last frame of all figures."""
        return max((figure.end_s for figure in self.figures), default=0.0)

    def counts(self) -> dict[str, int]:
        """Instances of each kind."""
        sets = shape_sets(self.character)
        return {kind: len(sets[kind].body) * len(self.figures) for kind in KINDS}

    def scales(self, kind: str) -> Floats:
        """(N, 3) by which the unit mesh of a kind is stretched."""
        return np.tile(shape_sets(self.character)[kind].scale, (len(self.figures), 1))

    def opacities(self, kind: str) -> Floats:
        """(N,) of a kind."""
        count = len(shape_sets(self.character)[kind].body)
        return np.repeat(np.array([f.opacity for f in self.figures], np.float32), count)

    def batches(self, time_s: float) -> dict[str, Batch]:
        """All shapes at a time, by kind, figure after figure."""
        out = {}
        for kind in KINDS:
            body = shape_sets(self.character)[kind].body
            position, turn, colour = [], [], []
            for figure in self.figures:
                at = figure.frame(time_s)
                centres, turns = figure.poses.placed[kind]
                position.append(centres[at] + figure.offset)
                turn.append(turns[at])
                colour.append(figure.colours(self.tint)[at][body])
            out[kind] = Batch(
                position=np.concatenate(position) if position else np.zeros((0, 3), np.float32),
                wxyz=np.concatenate(turn) if turn else np.zeros((0, 4), np.float32),
                colour=np.concatenate(colour) if colour else np.zeros((0, 3), np.uint8),
            )
        return out


def arrange(figures: Sequence[Figure], how: Arrangement) -> None:
    """Set where figures stand and whose ground is drawn.

    Overlay: all in the frame of the first, on its ground. Side by side: as a square, each on its
    own ground.
    """
    for number, figure in enumerate(figures):
        figure.place = np.zeros(3, np.float32)
        figure.terrain_shown = how == "side by side" or number == 0
    if how == "overlay" or len(figures) < 2:
        return
    columns = math.ceil(math.sqrt(len(figures))) if len(figures) > 3 else 1
    spans = [(f.terrain.extent[1] - f.terrain.extent[0]).tolist() for f in figures]
    wide, deep = (max(span[k] for span in spans) + _GAP_M for k in (0, 1))
    for number, figure in enumerate(figures):
        middle = (figure.terrain.extent[0] + figure.terrain.extent[1]).numpy() / 2
        slot = np.array([number % columns * wide, -(number // columns) * deep])
        place = slot - middle - figure.shift[:2]
        figure.place = np.array([*place, -figure.shift[2]], np.float32)


def height_samples(figure: Figure, time_s: float, grid: GridSpec) -> Floats:
    """(N, 3) m: the points of the generator's height map around the root at a time."""
    frames, at = figure.poses.clip.frames, figure.frame(time_s)
    heading = heading_angle(frames.root_rot[at : at + 1])
    xy = world_grid_xy(grid, frames.root_pos[at : at + 1, :2], heading)[0].reshape(-1, 2)
    z = figure.terrain.height_at(xy)
    points = torch.cat((xy, z[:, None] + 0.02), dim=-1).numpy().astype(np.float32)
    return points + figure.offset
