"""The frames of a motion as a bundle of tensors.

Shapes: (..., T, n) with any leading dimensions, T frames, D degrees of freedom, B bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class MotionFrames:
    """Root pose, joint dofs and contact labels over time.

    Attributes:
        root_pos: (..., T, 3) m.
        root_rot: (..., T, 4) unit quaternions xyzw.
        dof: (..., T, D) rad, exponential maps for spherical joints, angles for hinges.
        contacts: (..., T, B) labels in [0, 1].
    """

    root_pos: Tensor
    root_rot: Tensor
    dof: Tensor
    contacts: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> MotionFrames:
        """Apply ``function`` to each tensor."""
        return MotionFrames(
            root_pos=function(self.root_pos),
            root_rot=function(self.root_rot),
            dof=function(self.dof),
            contacts=function(self.contacts),
        )

    def __getitem__(self, index: Any) -> MotionFrames:
        """Index the leading dimensions (time is the last of them)."""
        return self.map(lambda x: x[index])

    def time(self, start: int | None = None, stop: int | None = None) -> MotionFrames:
        """Frames ``start`` to ``stop`` (exclusive) along time, any leading dimensions."""
        return self.map(lambda x: x[..., start:stop, :])

    @property
    def num_frames(self) -> int:
        """Number of frames T."""
        return self.root_pos.shape[-2]

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions before time."""
        return self.root_pos.shape[:-2]

    def to(self, *args: Any, **kwargs: Any) -> MotionFrames:
        """Move or cast every tensor, as ``Tensor.to``."""
        return self.map(lambda x: x.to(*args, **kwargs))

    def detach(self) -> MotionFrames:
        """The same values without gradient history."""
        return self.map(Tensor.detach)

    def clone(self) -> MotionFrames:
        """A copy of every tensor."""
        return self.map(Tensor.clone)


def _join(
    items: Sequence[MotionFrames], function: Callable[[list[Tensor]], Tensor]
) -> MotionFrames:
    return MotionFrames(
        root_pos=function([f.root_pos for f in items]),
        root_rot=function([f.root_rot for f in items]),
        dof=function([f.dof for f in items]),
        contacts=function([f.contacts for f in items]),
    )


def cat_time(items: Sequence[MotionFrames]) -> MotionFrames:
    """Join along time; leading dimensions must agree."""
    return _join(items, lambda tensors: torch.cat(tensors, dim=-2))


def cat(items: Sequence[MotionFrames], dim: int = 0) -> MotionFrames:
    """Join along a leading dimension (not negative)."""
    return _join(items, lambda tensors: torch.cat(tensors, dim=dim))


def stack(items: Sequence[MotionFrames]) -> MotionFrames:
    """Stack motions of equal length along a new first dimension."""
    return _join(items, lambda tensors: torch.stack(tensors))
