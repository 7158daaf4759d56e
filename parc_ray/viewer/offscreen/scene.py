"""What is drawn: versions of a motion over a terrain, as placed shapes over time.

Shapes: T frames, B bodies, G shapes of the character. World frame, metres, quaternions xyzw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.heightfield import Heightfield

Colour = tuple[int, int, int]
PALETTE: tuple[Colour, ...] = (
    (209, 73, 92),
    (0, 121, 140),
    (237, 174, 73),
    (102, 84, 158),
    (88, 129, 87),
)
"""Colours of the versions of a motion, in order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shapes:
    """G placed shapes of one moment."""

    kinds: tuple[str, ...]
    """"sphere", "capsule" or "box", of each shape."""
    size: NDArray[np.float32]
    """(G, 3) m: radius; radius and half length (along z); half sizes."""
    pos: NDArray[np.float32]
    """(G, 3) m, centres."""
    mat: NDArray[np.float32]
    """(G, 3, 3) rotations: columns are the shape's own axes."""

    def parts(self) -> Iterator[tuple[str, NDArray, NDArray, NDArray]]:
        """Kind, size, position and rotation of each shape."""
        return zip(self.kinds, self.size, self.pos, self.mat, strict=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Actor:
    """One version of a motion."""

    label: str
    """What it is called in the picture."""
    colour: Colour
    """Of its body, 0 to 255."""
    kinds: tuple[str, ...]
    """Kind of each shape."""
    size: NDArray[np.float32]
    """(G, 3) m."""
    pos: NDArray[np.float32]
    """(T, G, 3) m."""
    mat: NDArray[np.float32]
    """(T, G, 3, 3)."""
    root: NDArray[np.float32]
    """(T, 3) m, where the root is."""
    fps: float
    """Frames per second."""
    start_s: float = 0.0
    """When it begins on the clock that all versions share."""

    @property
    def end_s(self) -> float:
        """When its last frame is."""
        return self.start_s + (len(self.root) - 1) / self.fps

    def frame_at(self, time_s: float) -> int | None:
        """Nearest frame, None before the beginning and after the end."""
        frame = round((time_s - self.start_s) * self.fps)
        return frame if 0 <= frame < len(self.root) else None

    def shapes(self, frame: int) -> Shapes:
        """The body at a frame."""
        return Shapes(kinds=self.kinds, size=self.size, pos=self.pos[frame], mat=self.mat[frame])


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One picture: a ground and who moves on it."""

    title: str
    """Written into its corner; empty for none."""
    terrain: Heightfield
    """The ground."""
    actors: Sequence[Actor]
    """One, or several that are laid over each other."""


def make_actor(
    clip: MotionClip,
    character: Character,
    label: str,
    colour: Colour,
    *,
    shift: NDArray | None = None,
    start_s: float = 0.0,
) -> Actor:
    """The character's shapes over the frames of a clip.

    Args:
        clip: the motion.
        character: who moves.
        label: what the version is called.
        colour: of the body.
        shift: (3,) m, from the clip's frame to that of the picture.
        start_s: when the clip begins.
    """
    frames = clip.frames
    pos, quat = fk_from_dof(
        character.skeleton, frames.root_pos.double(), frames.root_rot.double(), frames.dof.double()
    )
    offset = np.zeros(3) if shift is None else np.asarray(shift, dtype=np.float64)
    body_pos, body_mat = pos.numpy() + offset, matrices(quat.numpy())
    bodies = [geom.body for geom in character.geoms]
    local_pos = np.array([geom.pos for geom in character.geoms], dtype=np.float64)
    local_mat = matrices(np.array([geom.quat for geom in character.geoms], dtype=np.float64))
    turned = body_mat[:, bodies]
    return Actor(
        label=label,
        colour=colour,
        kinds=tuple(geom.kind for geom in character.geoms),
        size=np.array([geom.size for geom in character.geoms], dtype=np.float32),
        pos=(body_pos[:, bodies] + (turned @ local_pos[..., None])[..., 0]).astype(np.float32),
        mat=(turned @ local_mat).astype(np.float32),
        root=body_pos[:, 0].astype(np.float32),
        fps=clip.fps,
        start_s=start_s,
    )


def matrices(quat: NDArray) -> NDArray:
    """Rotation matrices (..., 3, 3) of unit quaternions xyzw (..., 4)."""
    x, y, z, w = np.moveaxis(quat, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))
