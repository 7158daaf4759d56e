"""Reference motions of all clips in flat tensors, with batched look-ups.

Frames of all clips lie behind each other; a place in a clip is (clip index, frame number), the
latter whole or fractional. Whole numbers are gathered, fractional ones interpolated: rotations by
slerp, positions and contacts linearly, velocities taken from the frame below.
Past its last frame a clip stands still. Shapes: F frames in all, C clips, B bodies, D dofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from parc_ray.character.kinematics import (
    dof_to_joint_rot,
    finite_velocities,
    forward_kinematics,
    joint_rot_to_dof,
)
from parc_ray.character.rotations import slerp
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
        i = torch.minimum(u.round().clamp_(min=0.0), limit[:, :1])
        j = torch.minimum(v.round().clamp_(min=0.0), limit[:, 1:])
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
        self.frames = Reference(
            **{f.name: torch.cat([getattr(p, f.name) for p, _ in parts]) for f in fields(Reference)}
        )
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
        out = []
        for clip in self.clips:
            xy = clip.frames.root_pos[:, :2]
            low, high = xy.min(0).values, xy.max(0).values
            out.append(_crop_within(clip.terrain, low - margin_m, high + margin_m))
        return out

    def query(self, clip_ids: Tensor, frame: Tensor) -> Reference:
        """References at places of clips.

        Args:
            clip_ids: (N,) long.
            frame: (N, K) or (N,) frame numbers, long (gathered) or float (interpolated).
        """
        shape = (-1, *([1] * (frame.ndim - 1)))
        last = (self.length[clip_ids] - 1).view(shape)
        start = self.start[clip_ids].view(shape)
        if not frame.is_floating_point():
            return self._gather(start + torch.minimum(frame, last).clamp(min=0))
        place = torch.minimum(frame, last.to(frame.dtype)).clamp(min=0.0)
        below = torch.minimum(place.floor().long(), (last - 1).clamp(min=0))
        return self._between(start + below, place - below)

    def body_rot(self, clip_ids: Tensor, frame: Tensor) -> Tensor:
        """World rotations (N, B, 4) of all bodies at frames (N,) of clips (N,)."""
        if not frame.is_floating_point():
            return self._body_rot[self.start[clip_ids] + torch.minimum(frame, self._last(clip_ids))]
        ref = self.query(clip_ids, frame)
        skeleton = self.character.skeleton
        return forward_kinematics(skeleton, ref.root_pos, ref.root_rot, ref.joint_rot)[1]

    def _last(self, clip_ids: Tensor) -> Tensor:
        return self.length[clip_ids] - 1

    def _gather(self, index: Tensor) -> Reference:
        flat = index.reshape(-1)
        return Reference(
            **{
                f.name: getattr(self.frames, f.name).index_select(0, flat).unflatten(0, index.shape)
                for f in fields(Reference)
            }
        )

    def _between(self, index: Tensor, blend: Tensor) -> Reference:
        low, high = self._gather(index), self._gather(index + 1)
        t = blend[..., None]
        skeleton = self.character.skeleton
        joint_rot = slerp(low.joint_rot, high.joint_rot, t.expand(low.joint_rot.shape[:-1]))
        root_rot = slerp(low.root_rot, high.root_rot, blend)
        root_pos = torch.lerp(low.root_pos, high.root_pos, t)
        body_pos, _ = forward_kinematics(skeleton, root_pos, root_rot, joint_rot)
        return Reference(
            root_pos=root_pos,
            root_rot=root_rot,
            joint_rot=joint_rot,
            dof=joint_rot_to_dof(skeleton, joint_rot),
            contacts=torch.lerp(low.contacts, high.contacts, t),
            root_lin_vel=low.root_lin_vel,
            root_ang_vel=low.root_ang_vel,
            dof_vel=low.dof_vel,
            body_pos=body_pos,
        )


def _crop_within(terrain: Heightfield, low: Tensor, high: Tensor) -> Heightfield:
    """Crop to a rectangle without reaching over the grid's edge."""
    first = terrain.origin
    last = terrain.origin + (terrain.size - 1) * terrain.cell_size
    low = torch.minimum(torch.maximum(low, first), last)
    high = torch.minimum(torch.maximum(high, low), last)
    return terrain.cropped(low, high, 0.0)
