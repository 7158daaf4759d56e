"""What the motions show ahead of every environment, kept up to date as time passes.

On whole frames everything is looked up. Between frames references are interpolated, which costs as
much as the rest of a step; as an episode's places in a clip lie a whole frame apart, each place is
interpolated once, when it comes into sight, and kept until it has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from envs.tracking.task import Ahead, TrackingTask

_CHUNK = 512
"""Places interpolated at a time: more do not stay in the cache."""


@dataclass
class Sight:
    """Places ahead of K new ones as `Lookahead.replace` wants them, K in the second dimension."""

    rows: Tensor
    features: Tensor

    def index(self, ids: slice) -> Sight:
        """A stretch of them."""
        return Sight(self.rows[:, ids], self.features[:, ids])


class Lookahead(Protocol):
    """References and features of N environments."""

    now: Ahead
    """At the present moment. After `replace` only ``next`` holds for the new places until
    `advance` is called."""

    def see(self, clip: Tensor, frame: Tensor) -> tuple[Ahead, Sight]:
        """Look ahead from places (K,) without going there."""
        ...

    def fill(self, clip: Tensor, frame: Tensor) -> None:
        """Begin at places ``frame`` (N,) of clips ``clip`` (N,)."""
        ...

    def advance(self, clip: Tensor, frame: Tensor) -> Ahead:
        """Go on by one control step, to places ``frame`` (N,)."""
        ...

    def replace(self, ids: Tensor, sight: Sight) -> None:
        """Environments ``ids`` (K,) continue from places that were looked at."""
        ...


def make_lookahead(task: TrackingTask, whole_frames: bool) -> Lookahead:
    """What suits the places where episodes start."""
    return LookUp(task) if whole_frames else Window(task)


class LookUp:
    """Gathers stored frames; of new places only the next reference is kept."""

    now: Ahead

    def __init__(self, task: TrackingTask) -> None:
        """Call `fill` before anything else."""
        self.task = task
        self._split = task.bank.packing.split
        self._next = torch.empty(0)

    def see(self, clip: Tensor, frame: Tensor) -> tuple[Ahead, Sight]:
        """Look ahead from places (K,)."""
        rows = self.task.bank.rows(clip, frame + 1)
        features = self.task.target_features(clip, frame)
        ahead = Ahead(self.task.bank.query(clip, frame), self._split(rows), features)
        return ahead, Sight(rows[None], features[None, :, :0])

    def fill(self, clip: Tensor, frame: Tensor) -> None:
        """Begin at places (N,)."""
        self.now, sight = self.see(clip, frame)
        self._next = sight.rows[0]

    def advance(self, clip: Tensor, frame: Tensor) -> Ahead:
        """Go on by one control step; what was next is now."""
        current, self._next = self._split(self._next), self.task.bank.rows(clip, frame + 1)
        features = self.task.target_features(clip, frame)
        self.now = Ahead(current, self._split(self._next), features)
        return self.now

    def replace(self, ids: Tensor, sight: Sight) -> None:
        """Continue from places that were looked at."""
        self._next.index_copy_(0, ids, sight.rows[0])


class Window:
    """Interpolated places one to ``reach`` frames ahead, as a ring (reach, N, ...).

    Interpolation is elementwise, so a place has the same numbers whenever it is computed.
    """

    now: Ahead

    def __init__(self, task: TrackingTask) -> None:
        """Call `fill` before anything else."""
        self.task = task
        self.reach = int(task.steps.max())
        self.head = 0
        self._offsets = torch.arange(self.reach + 1)
        self._split = task.bank.packing.split
        self._rows, self._features = torch.empty(0), torch.empty(0)

    def see(self, clip: Tensor, frame: Tensor) -> tuple[Ahead, Sight]:
        """Look ahead from places (K,)."""
        rows, features = self._places(clip, frame[:, None] + self._offsets)
        targets = features.index_select(0, self.task.steps).transpose(0, 1)
        ahead = Ahead(self._split(rows[0]), self._split(rows[1]), targets)
        return ahead, Sight(rows[1:], features[1:])

    def fill(self, clip: Tensor, frame: Tensor) -> None:
        """Begin at places (N,)."""
        self.now, sight = self.see(clip, frame)
        self._rows, self._features, self.head = sight.rows, sight.features, 0

    def advance(self, clip: Tensor, frame: Tensor) -> Ahead:
        """Go on by one control step; one more place comes into sight."""
        current = self._split(self._rows[self.head].clone())
        rows, features = self._places(clip, frame[:, None] + self.reach)
        self._rows[self.head], self._features[self.head] = rows[0], features[0]
        self.head = (self.head + 1) % self.reach
        order = (self.task.steps - 1 + self.head) % self.reach
        targets = self._features.index_select(0, order).transpose(0, 1)
        self.now = Ahead(current, self._split(self._rows[self.head]), targets)
        return self.now

    def replace(self, ids: Tensor, sight: Sight) -> None:
        """Continue from places that were looked at."""
        order = (self._offsets[:-1] + self.head) % self.reach
        for k, at in enumerate(order.tolist()):
            self._rows[at].index_copy_(0, ids, sight.rows[k])
            self._features[at].index_copy_(0, ids, sight.features[k])

    def _places(self, clip: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Packed references and features (M, K, ...) at places (K, M)."""
        clips, places = clip.repeat(frames.shape[1]), frames.T.reshape(-1)
        parts = []
        for ids in torch.arange(len(places)).split(_CHUNK):
            rows = self.task.bank.rows(clips[ids], places[ids])
            parts.append((rows, self.task.builder.features(self._split(rows))))
        rows, features = (torch.cat(part) for part in zip(*parts, strict=True))
        shape = (frames.shape[1], len(clip))
        return rows.unflatten(0, shape), features.unflatten(0, shape)
