"""Reference motions of all clips in flat tensors, with batched look-ups.

Frames of all clips lie behind each other; a place in a clip is (clip index, frame number), the
latter whole or fractional. Whole numbers are gathered, fractional ones interpolated: rotations by
slerp, positions and contacts linearly, velocities taken from the frame below.
Past its last frame a clip stands still. Shapes: F frames in all, C clips, B bodies, D dofs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from envs.tracking.columns import Posing, columns, slerp
from parc_ray.character.kinematics import (
    dof_to_joint_rot,
    finite_velocities,
    forward_kinematics,
)
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.resample import unroll_loop
from parc_ray.terrain.heightfield import Heightfield

if TYPE_CHECKING:
    from parc_ray.character.character import Character

_LOOP_MIN_S = 3.0


@dataclass
class Reference:
    """Reference at some places of clips; leading dimensions as asked for.

    Attributes:
        root_pos: (..., 3) m.
        root_rot: (..., 4) xyzw.
        joint_rot: (..., J, 4) xyzw.
        dof: (..., D) rad.
        contacts: (..., B) in [0, 1].
        root_lin_vel: (..., 3) m/s, world.
        root_ang_vel: (..., 3) rad/s, world.
        dof_vel: (..., D) rad/s.
        body_pos: (..., B, 3) m, world.
    """

    root_pos: Tensor
    root_rot: Tensor
    joint_rot: Tensor
    dof: Tensor
    contacts: Tensor
    root_lin_vel: Tensor
    root_ang_vel: Tensor
    dof_vel: Tensor
    body_pos: Tensor

    def index(self, ids: object) -> Reference:
        """Select along the leading dimension(s) with any tensor index."""
        return Reference(**{f.name: getattr(self, f.name)[ids] for f in fields(self)})


class Packing:
    """All numbers of a `Reference` side by side, so that one look-up brings them.

    Args:
        character: gives the sizes.
    """

    def __init__(self, character: Character) -> None:
        """Fix shapes and places."""
        bodies, dofs = character.skeleton.num_bodies, character.skeleton.num_dofs
        joints = character.skeleton.num_joints
        self.shapes: dict[str, tuple[int, ...]] = {
            "root_pos": (3,),
            "root_rot": (4,),
            "joint_rot": (joints, 4),
            "dof": (dofs,),
            "contacts": (bodies,),
            "root_lin_vel": (3,),
            "root_ang_vel": (3,),
            "dof_vel": (dofs,),
            "body_pos": (bodies, 3),
        }
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        ends = list(itertools.accumulate(self.sizes))
        self.slices = {
            name: slice(end - size, end)
            for name, size, end in zip(self.shapes, self.sizes, ends, strict=True)
        }
        self.width = ends[-1]

    def pack(self, reference: Reference) -> Tensor:
        """(..., width) of the fields (..., *shape)."""
        lead = reference.root_pos.shape[:-1]
        return torch.cat([getattr(reference, k).reshape(*lead, -1) for k in self.shapes], dim=-1)

    def split(self, rows: Tensor) -> Reference:
        """Views of rows (..., width)."""
        parts = rows.split(self.sizes, dim=-1)
        return Reference(
            **{
                name: part if len(shape) == 1 else part.unflatten(-1, shape)
                for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
            }
        )


def clip_reference(
    character: Character, clip: MotionClip, control_hz: float
) -> tuple[Reference, Tensor]:
    """All frames (T, ...) of a clip, velocities by forward differences, and body rotations."""
    if abs(clip.fps - control_hz) > 1e-6:
        raise InputError(
            f"{clip.clip_id}.fps: {clip.fps} differs from the control rate {control_hz}; "
            "resample the clip first"
        )
    if clip.num_frames < 2:
        raise InputError(f"{clip.clip_id}: {clip.num_frames} frame; give 2 or more")
    frames, skeleton = clip.frames, character.skeleton
    joint_rot = dof_to_joint_rot(skeleton, frames.dof)
    lin, ang, dof_vel = finite_velocities(
        skeleton, frames.root_pos, frames.root_rot, frames.dof, clip.fps
    )
    body_pos, body_rot = forward_kinematics(skeleton, frames.root_pos, frames.root_rot, joint_rot)
    reference = Reference(
        root_pos=frames.root_pos,
        root_rot=frames.root_rot,
        joint_rot=joint_rot,
        dof=frames.dof,
        contacts=frames.contacts,
        root_lin_vel=lin,
        root_ang_vel=ang,
        dof_vel=dof_vel,
        body_pos=body_pos,
    )
    return reference, body_rot


class TerrainBank:
    """Heights of many terrains of any sizes, looked up by terrain index.

    Args:
        terrains: the heightfields, each in its clip's frame.
    """

    def __init__(self, terrains: Sequence[Heightfield]) -> None:
        """Lay the cells of all terrains behind each other."""
        self.heights = torch.cat([t.heights.reshape(-1) for t in terrains])
        self.size = torch.stack([t.size for t in terrains])
        self.origin = torch.stack([t.origin for t in terrains])
        self.cell_size = torch.tensor([float(t.cell_size) for t in terrains])
        counts = self.size.prod(-1)
        self.start = torch.cumsum(counts, 0) - counts
        self._zero = torch.zeros(1, 1)

    def height_at(self, terrain_ids: Tensor, xy: Tensor) -> Tensor:
        """Ground height (N, ...) under points xy (N, ..., 2) of terrains (N,); edges extend."""
        shape = (-1, *([1] * (xy.ndim - 1)))
        origin = self.origin[terrain_ids].view(*shape[:-1], 2)
        cells = (xy - origin) / self.cell_size[terrain_ids].view(shape)
        flat = cells.reshape(len(terrain_ids), -1, 2)
        return self._lookup(terrain_ids, flat[..., 0], flat[..., 1]).view(xy.shape[:-1])

    def local_heights(
        self, terrain_ids: Tensor, xy: Tensor, heading: Tensor, points: Tensor
    ) -> Tensor:
        """Ground heights (N, P) under heading-frame points.

        Args:
            terrain_ids: (N,) long.
            xy: (N, 2) where the frames stand.
            heading: (N,) rad, how they are turned.
            points: (P, 2) metres in the frames.
        """
        c, s = torch.cos(heading), torch.sin(heading)
        place = xy - self.origin[terrain_ids]
        rows = torch.stack((c, -s, place[:, 0], s, c, place[:, 1]), dim=-1)
        rows = rows / self.cell_size[terrain_ids][:, None]
        columns = torch.cat((points.T, torch.ones_like(points[:, :1]).T))
        return self._lookup(terrain_ids, rows[:, :3] @ columns, rows[:, 3:] @ columns)

    def _lookup(self, terrain_ids: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Heights (N, P) at cell coordinates (N, P), rounded half to even and clamped."""
        size = self.size[terrain_ids]
        limit = (size - 1).to(u.dtype)
        i = torch.clamp(u.round(), self._zero, limit[:, :1])
        j = torch.clamp(v.round(), self._zero, limit[:, 1:])
        within = torch.addcmul(j, i, size[:, 1:].to(u.dtype)).long()
        flat = within.add_(self.start[terrain_ids][:, None])
        return self.heights.index_select(0, flat.reshape(-1)).view(u.shape)


class MotionBank:
    """Clips ready for tracking.

    Args:
        character: the character that moves.
        clips: the motions at the control rate; looping clips are unrolled to 3 s or more.
        control_hz: rate of control, Hz.

    Raises:
        InputError: no clips, a clip at another rate, or a clip of fewer than two frames.
    """

    def __init__(
        self, character: Character, clips: Sequence[MotionClip], control_hz: float = 30.0
    ) -> None:
        """Flatten the clips; see the class."""
        if not clips:
            raise InputError("clips: the list is empty; give at least one motion clip")
        self.character = character
        self.clips = [self._unrolled(character, clip) for clip in clips]
        self.fps = control_hz
        parts = [clip_reference(character, clip, control_hz) for clip in self.clips]
        self._body_rot = torch.cat([rot for _, rot in parts])
        self.packing = Packing(character)
        self.posing = Posing(character.skeleton)
        self._rows = torch.cat([self.packing.pack(reference) for reference, _ in parts])
        self.frames = self.packing.split(self._rows)
        self.length = torch.tensor([clip.num_frames for clip in self.clips])
        self.start = torch.cumsum(self.length, 0) - self.length
        self.terrain = TerrainBank([clip.terrain for clip in self.clips])
        self.weight = torch.tensor([float(clip.weight) for clip in self.clips])
        self.class_names = tuple(clip.provenance.class_name for clip in self.clips)

    @staticmethod
    def _unrolled(character: Character, clip: MotionClip) -> MotionClip:
        if clip.loop == "wrap":
            return unroll_loop(character.skeleton, clip, _LOOP_MIN_S)
        return clip

    @property
    def num_clips(self) -> int:
        """Number of clips C."""
        return len(self.clips)

    def terrains(self, margin_m: float = 3.0) -> list[Heightfield]:
        """Terrains for a simulator: each cropped to its motion's path and ``margin_m`` around."""
        return [crop_to_path(clip, margin_m) for clip in self.clips]

    def query(self, clip_ids: Tensor, frame: Tensor) -> Reference:
        """References at places of clips.

        Args:
            clip_ids: (N,) long.
            frame: (N, K) or (N,) frame numbers, long (gathered) or float (interpolated).
        """
        return self.packing.split(self.rows(clip_ids, frame))

    def rows(self, clip_ids: Tensor, frame: Tensor) -> Tensor:
        """As `query`, packed: (N, K, width) or (N, width)."""
        if not frame.is_floating_point():
            index = self.index(clip_ids, frame)
            return self._rows.index_select(0, index.reshape(-1)).unflatten(0, index.shape)
        shape = (-1, *([1] * (frame.ndim - 1)))
        last = (self.length[clip_ids] - 1).view(shape)
        place = torch.minimum(frame, last.to(frame.dtype)).clamp(min=0.0)
        below = torch.minimum(place.floor().long(), (last - 1).clamp(min=0))
        index = self.start[clip_ids].view(shape) + below
        return self._between(index.reshape(-1), (place - below).reshape(-1)).unflatten(
            0, index.shape
        )

    def index(self, clip_ids: Tensor, frame: Tensor) -> Tensor:
        """Row (N, K) or (N,) among all frames, of whole frame numbers; ends are held."""
        shape = (-1, *([1] * (frame.ndim - 1)))
        last = (self.length[clip_ids] - 1).view(shape)
        start = self.start[clip_ids].view(shape)
        return start + torch.minimum(frame, last).clamp(min=0)

    def body_rot(self, clip_ids: Tensor, frame: Tensor) -> Tensor:
        """World rotations (N, B, 4) of all bodies at frames (N,) of clips (N,)."""
        if not frame.is_floating_point():
            return self._body_rot[self.start[clip_ids] + torch.minimum(frame, self._last(clip_ids))]
        ref = self.query(clip_ids, frame)
        skeleton = self.character.skeleton
        return forward_kinematics(skeleton, ref.root_pos, ref.root_rot, ref.joint_rot)[1]

    def _last(self, clip_ids: Tensor) -> Tensor:
        return self.length[clip_ids] - 1

    def _between(self, index: Tensor, blend: Tensor) -> Tensor:
        """Rows (M, width) between frames ``index`` (M,) and the next, at ``blend`` in [0, 1]."""
        at, t = self.packing.slices, blend.numpy()
        low = columns(self._rows.index_select(0, index))
        high = columns(self._rows.index_select(0, index + 1))
        out = low.copy()  # velocities are those of the frame below
        for name in ("root_pos", "contacts"):
            out[at[name]] += t * (high[at[name]] - low[at[name]])
        turns = slice(at["root_rot"].start, at["joint_rot"].stop)
        first, second = (np.swapaxes(x[turns].reshape(-1, 4, len(t)), 0, 1) for x in (low, high))
        turned = slerp(first, second, t)
        out[turns] = np.swapaxes(turned, 0, 1).reshape(-1, len(t))
        joints = turned[:, 1:]
        out[at["dof"]] = self.posing.dofs(joints)
        pos, rot = (torch.from_numpy(out[at[name]].T) for name in ("root_pos", "root_rot"))
        bodies = self.posing.place(pos, rot, self.posing.slots(joints))
        out[at["body_pos"]] = bodies.flatten(1).T.numpy()
        return torch.from_numpy(out.T.copy())


def crop_to_path(clip: MotionClip, margin_m: float) -> Heightfield:
    """The ground under a clip's path and ``margin_m`` metres around it, as far as there is any."""
    xy = clip.frames.root_pos[:, :2]
    low, high = xy.min(0).values, xy.max(0).values
    return _crop_within(clip.terrain, low - margin_m, high + margin_m)


def _crop_within(terrain: Heightfield, low: Tensor, high: Tensor) -> Heightfield:
    """Crop to a rectangle without reaching over the grid's edge."""
    first = terrain.origin
    last = terrain.origin + (terrain.size - 1) * terrain.cell_size
    low = torch.minimum(torch.maximum(low, first), last)
    high = torch.minimum(torch.maximum(high, low), last)
    return terrain.cropped(low, high, 0.0)
