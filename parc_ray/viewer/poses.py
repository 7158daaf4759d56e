"""Everything that is drawn of a clip, worked out once for all its frames."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.evaluation.metrics import joint_jerk
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.distance import penetration_depth
from parc_ray.terrain.heightfield import HeightfieldBatch
from parc_ray.viewer.shapes import KINDS, place, shape_sets

Floats = NDArray[np.float32]
_KEPT = 64


@dataclass(eq=False)
class ClipPoses:
    """Poses of a clip; what costs more is worked out when it is first asked for.

    Attributes:
        clip: the motion.
        character: whose shapes are placed.
    """

    clip: MotionClip
    character: Character

    @property
    def num_frames(self) -> int:
        """Frames T."""
        return self.clip.num_frames

    @cached_property
    def bodies(self) -> tuple[Floats, Floats]:
        """Origins (T, B, 3) m and rotations (T, B, 4) xyzw of all bodies, world."""
        f = self.clip.frames
        pos, rot = fk_from_dof(self.character.skeleton, f.root_pos, f.root_rot, f.dof)
        return pos.numpy().astype(np.float32), rot.numpy().astype(np.float32)

    @cached_property
    def placed(self) -> dict[str, tuple[Floats, Floats]]:
        """Centres (T, K, 3) m and turns (T, K, 4) wxyz of the shapes, by kind."""
        sets = shape_sets(self.character)
        return {kind: place(sets[kind], *self.bodies) for kind in KINDS}

    @cached_property
    def contacts(self) -> Floats:
        """Labels (T, B)."""
        return self.clip.frames.contacts.numpy().astype(np.float32)

    @cached_property
    def penetration(self) -> Floats:
        """Depth (T, B), m, of each body's deepest surface point below the ground."""
        points = surface_points(self.character, "full")
        pos, rot = (torch.from_numpy(x) for x in self.bodies)
        batch = HeightfieldBatch.stack([self.clip.terrain])
        depth = penetration_depth(place_points(points, pos, rot)[None], batch)[0]
        ranges = points.point_ranges
        columns = [
            depth[:, r].amax(-1) if r.stop > r.start else depth.new_zeros(len(depth))
            for r in ranges
        ]
        return torch.stack(columns, -1).numpy().astype(np.float32)

    @cached_property
    def jerk(self) -> Floats:
        """Jerk (T, B), m/s^3, of the bodies' origins; the first and last frames repeat."""
        pos = torch.from_numpy(self.bodies[0])
        if self.num_frames < 4:
            return np.zeros(pos.shape[:2], np.float32)
        inner = joint_jerk(pos, self.clip.fps).numpy()
        return np.pad(inner, ((1, 2), (0, 0)), mode="edge").astype(np.float32)

    def frame_at(self, time_s: float) -> int:
        """The frame shown at a time of the clip; its ends are held."""
        return int(np.clip(round(time_s * self.clip.fps), 0, self.num_frames - 1))


class PoseCache:
    """Poses by key; the least recently used ones are given up."""

    def __init__(self, character: Character, kept: int = _KEPT) -> None:
        """An empty cache for one character."""
        self.character, self.kept = character, kept
        self._poses: OrderedDict[str, ClipPoses] = OrderedDict()

    def get(self, key: str, clip: MotionClip) -> ClipPoses:
        """Poses of ``clip``, known as ``key``."""
        found = self._poses.get(key)
        if found is None or found.clip is not clip:
            found = self._poses[key] = ClipPoses(clip, self.character)
        self._poses.move_to_end(key)
        while len(self._poses) > self.kept:
            self._poses.popitem(last=False)
        return found
