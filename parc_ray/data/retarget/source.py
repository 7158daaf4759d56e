"""A motion of a foreign skeleton: joints with any names, numbers and proportions.

Importers of formats that bring their own skeleton (ASF/AMC, AMASS, BVH) make one of these and hand
it to :func:`parc_ray.data.retarget.retarget`. T frames, J joints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.data.importers.raw import finite, frame_rate, unit_quaternions
from parc_ray.errors import InputError

UpAxis = Literal["x", "y", "z"]

_HALF = 0.5**0.5
TO_Z_UP = {
    "x": (0.0, -_HALF, 0.0, _HALF),
    "y": (_HALF, 0.0, 0.0, _HALF),
    "z": (0.0, 0.0, 0.0, 1.0),
}
"""Rotation (xyzw) that turns the named axis to z; from y, (x, y, z) becomes (x, -z, y)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceMotion:
    """Skeleton and frames as a file has them, z up.

    Kinematics: R_j = R_parent q_j and p_j = p_parent + R_parent offset_j, so that identity
    rotations give the rest pose and all its frames are parallel to the world's. Ends of bones
    that have no joint (BVH "End Site", ASF leaf bones) are joints of their own with identity
    rotations: they tell which way feet and hands point.
    """

    name: str
    """File, for messages."""
    joint_names: tuple[str, ...]
    """Names of the J joints, parents first; joint 0 is the root."""
    parents: tuple[int, ...]
    """Parent of each joint, -1 for the root; always smaller than the joint's own index."""
    offsets: Tensor
    """(J, 3) float64, joint in its parent's frame; metres, or any unit where the scale is inferred
    from the length of the legs. Row 0 is not used."""
    root_pos: Tensor
    """(T, 3) float64, world position of joint 0, same unit."""
    local_rot: Tensor
    """(T, J, 4) float64 xyzw, joint relative to its parent; joint 0 relative to the world."""
    fps: float
    """Frames per second."""
    rest_rot: Tensor | None = None
    """(J, 4) xyzw, local rotations of the pose that is compared with the character's rest pose
    (upright, soles flat), where identity is not such a pose; None for identity."""

    def __post_init__(self) -> None:
        """Check the tree, shapes and numbers (:class:`InputError`)."""
        count = len(self.joint_names)
        if count < 2 or len(self.parents) != count:
            raise InputError(
                f"{self.name}: skeleton of {count} joints with {len(self.parents)} parents; "
                "2 or more joints, each with a parent, are needed; correct the file"
            )
        for joint, parent in enumerate(self.parents):
            if (parent < 0) != (joint == 0) or parent >= joint:
                raise InputError(
                    f"{self.name}: joint {self.joint_names[joint]!r} comes before its parent or is "
                    "a second root; one tree, parents first, is needed; correct the file"
                )
        fixed = {
            "offsets": finite(self.offsets, f"{self.name}: offsets", (count, 3)),
            "root_pos": finite(self.root_pos, f"{self.name}: root position", (None, 3)),
        }
        frames = len(fixed["root_pos"])
        rotations = finite(
            self.local_rot, f"{self.name}: joint rotations", (frames, count, 4), "frames by joints"
        )
        fixed["local_rot"] = unit_quaternions(rotations, f"{self.name}: joint rotations")
        if self.rest_rot is not None:
            rest = finite(self.rest_rot, f"{self.name}: rest rotations", (count, 4))
            fixed["rest_rot"] = unit_quaternions(rest, f"{self.name}: rest rotations")
        if frames < 2:
            raise InputError(
                f"{self.name}: {frames} frame; 2 or more are needed; use a longer motion"
            )
        for key, value in fixed.items():
            object.__setattr__(self, key, value)
        object.__setattr__(self, "fps", frame_rate(self.fps, f"{self.name}: frame rate"))

    @property
    def num_frames(self) -> int:
        """Number of frames T."""
        return len(self.root_pos)

    def index(self, joint: str) -> int:
        """Index of the joint called ``joint``; ValueError if there is none."""
        return self.joint_names.index(joint)

    def children(self, joint: int) -> tuple[int, ...]:
        """Indices of the joints whose parent is ``joint``."""
        return tuple(j for j, parent in enumerate(self.parents) if parent == joint)

    def chain(self, top: int, end: int) -> tuple[int, ...]:
        """Joints from ``top`` (exclusive) down to ``end``; empty where ``end`` is not below it."""
        found = []
        while end > top:
            found.append(end)
            end = self.parents[end]
        return tuple(reversed(found)) if end == top else ()

    def forward(self) -> tuple[Tensor, Tensor]:
        """World positions (T, J, 3) and rotations (T, J, 4) of all joints and frames."""
        return self._place(self.root_pos, self.local_rot)

    def rest(self) -> tuple[Tensor, Tensor]:
        """Positions (J, 3), root at the origin, and rotations (J, 4) of the rest pose."""
        rotations = self.rest_rot
        if rotations is None:
            rotations = self.offsets.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(len(self.parents), 4)
        return self._place(self.offsets.new_zeros(3), rotations)

    def _place(self, root_pos: Tensor, local_rot: Tensor) -> tuple[Tensor, Tensor]:
        local = local_rot.unbind(-2)
        places, turns = [root_pos], [local[0]]
        for joint, parent in enumerate(self.parents[1:], 1):
            places.append(places[parent] + rot.quat_rotate(turns[parent], self.offsets[joint]))
            turns.append(rot.quat_mul(turns[parent], local[joint]))
        return torch.stack(places, dim=-2), rot.quat_positive(torch.stack(turns, dim=-2))

    def converted(self, up: UpAxis = "y", scale: float = 1.0) -> SourceMotion:
        """The same motion with z up and lengths times ``scale``.

        Args:
            up: axis of the file that points up. From y up, (x, y, z) becomes (x, -z, y).
            scale: metres per unit of the file.

        Returns:
            The motion with offsets, path and the axes of all rotations turned; the rest pose
            keeps identity rotations.
        """
        turn = self.offsets.new_tensor(TO_Z_UP[up])

        def axes(q: Tensor) -> Tensor:
            return torch.cat((rot.quat_rotate(turn, q[..., :3]), q[..., 3:]), dim=-1)

        return replace(
            self,
            offsets=rot.quat_rotate(turn, self.offsets) * scale,
            root_pos=rot.quat_rotate(turn, self.root_pos) * scale,
            local_rot=axes(self.local_rot),
            rest_rot=None if self.rest_rot is None else axes(self.rest_rot),
        )
