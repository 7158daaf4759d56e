"""All clips of a data set in memory, and windows of them drawn at random.

Streaming systems draw some thousand windows a second, a gather from flat tensors a hundred thousand
(docs/design/ray.md, Data pools). To keep a draw a single gather, every clip is interpolated once
(slerp) at ``phases`` times its frame rate; windows start on that finer grid. Where that would take
more memory than allowed there are fewer phases: the more frames, the less they are missed.

Legend: C clips, N windows, T frames of a window, B bodies, D degrees of freedom, P phases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.skeleton import Skeleton
from parc_ray.data.row_buffer import RowBuffer
from parc_ray.data.weights import WeightedClip, probabilities
from parc_ray.errors import InputError
from parc_ray.motion.clip import LoopMode, MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.resample import PARC_FPS, sample_frames
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch

TARGET_MIN_S = 0.4
"""s, least time from a window's start to its target, as in the published code."""
TARGET_SPAN_S = 1.1
"""s, range of that time beyond the least."""
SECOND_S = 0.5
"""s from the target to the second one, for generators that are told both; PARC has none."""
MEMORY_MB = 2_000.0
"""MB, room for the table of frames; 24 million rows of the humanoid's 50 numbers take 4800."""
LOOP_EXTRA_S = 3.0
"""s by which looped clips are continued; window plus target must fit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowBatch:
    """N windows of T frames."""

    frames: MotionFrames
    """(N, T, ...) world frames."""
    clip_index: Tensor
    """(N,) long, clip of each window."""
    start_s: Tensor
    """(N,) s, time of the first frame in its clip."""
    terrain_ids: Tensor
    """(N,) long, row of ``ClipBank.terrains`` (the clip's)."""
    target_pos: Tensor
    """(N, 3) m, world root position at a random later time."""
    target_heading: Tensor
    """(N,) rad, heading of the root then."""
    target_s: Tensor
    """(N,) s, that time in the clip."""
    second_pos: Tensor
    """(N, 3) m, world root position 0.5 s after the target, or at the end of the clip."""
    second_heading: Tensor
    """(N,) rad, heading of the root then."""


@dataclass(frozen=True)
class _Head:
    """What a bank knows of a clip besides its frames and terrain."""

    clip_id: str
    num_frames: int
    loop: LoopMode
    weight: WeightedClip


class ClipBank:
    """Clips and terrains as flat tensors; draws windows by gather."""

    def __init__(
        self,
        clips: Iterable[MotionClip],
        skeleton: Skeleton,
        *,
        fps: float = PARC_FPS,
        phases: int = 4,
        class_balance: bool = True,
        initial_share: float = 0.0,
        memory_mb: float = MEMORY_MB,
    ) -> None:
        """Interpolate and join all clips.

        Args:
            clips: clips at ``fps``, all with terrains of one cell size; taken one at a time, none
                is kept.
            skeleton: the kinematic tree that the clips are for.
            fps: frames per second of clips and windows.
            phases: most start times per frame; 1 uses stored frames only.
            class_balance: whether classes are equally likely.
            initial_share: least probability of the clips of iteration 0 together, 0 for none.
            memory_mb: room for the table of frames, MB; ``phases`` is halved until it fits (or is
                1). Terrains come on top, 4 bytes per cell and layer.

        Raises:
            InputError: no clips, another frame rate, or terrains of different cell sizes.
        """
        if phases < 1:
            raise InputError(f"phases: {phases}; 1 or more is allowed; use 4")
        self.fps, self.phases, self.skeleton = fps, 1, skeleton
        self._widths = [3, 4, skeleton.num_dofs, skeleton.num_bodies]
        rows, heads = RowBuffer(sum(self._widths)), []
        terrains: list[Heightfield] = []
        for clip in clips:
            self._check_rate(clip)
            rows.append(_joined(clip.frames.to(torch.float32)))
            heads.append(_Head(clip.clip_id, clip.num_frames, clip.loop, WeightedClip.of(clip)))
            terrains.append(clip.terrain)
        if not heads:
            raise InputError("clips: there are none; at least one is needed; import some data")
        self.heads = tuple(heads)
        self.terrains = HeightfieldBatch.stack(terrains)
        self.probabilities = probabilities(
            [head.weight for head in heads],
            class_balance=class_balance,
            initial_share=initial_share,
        )
        self.duration_s = torch.tensor([head.weight.seconds for head in heads]).double()
        self.is_loop = torch.tensor([head.loop == "wrap" for head in heads])
        self._cumulative = torch.cumsum(self.probabilities, 0)
        self._fill(rows, phases, memory_mb)

    def _fill(self, rows: RowBuffer, phases: int, memory_mb: float) -> None:
        """Interpolate the stored rows at as many phases as fit."""
        stored = torch.tensor([head.num_frames for head in self.heads])
        first = torch.cumsum(stored, 0) - stored
        while phases > 1 and self._bytes(phases) > memory_mb * 1e6:
            phases //= 2
        self.phases = phases
        self._length = self._lengths()
        self._first = torch.cumsum(self._length, 0) - self._length
        self._table_all = raw = rows.take()
        if phases == 1 and not bool(self.is_loop.any()):
            return
        self._table_all = torch.empty(int(self._length.sum()), raw.shape[1])
        for head, start, at in zip(self.heads, first.tolist(), self._first.tolist(), strict=True):
            part = self._table(raw[start : start + head.num_frames], head)
            self._table_all[at : at + len(part)] = part

    def _lengths(self) -> Tensor:
        """(C,) long, rows of each clip."""
        return torch.tensor([self._count(head.num_frames, head.loop) for head in self.heads])

    def _count(self, num_frames: int, loop: LoopMode) -> int:
        extra = LOOP_EXTRA_S if loop == "wrap" else 0.0
        return (num_frames - 1) * self.phases + 1 + round(extra * self.fps * self.phases)

    def _bytes(self, phases: int) -> int:
        """Size of the table with so many phases, a row more or less per clip."""
        return int(self._lengths().sum()) * phases * sum(self._widths) * 4

    def _check_rate(self, clip: MotionClip) -> None:
        if abs(clip.fps - self.fps) > 1e-6 * self.fps:
            raise InputError(
                f"clip {clip.clip_id!r}: {clip.fps:g} fps; {self.fps:g} is needed; resample it"
            )

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.heads)

    def _table(self, raw: Tensor, head: _Head) -> Tensor:
        """(frames x phases, 3 + 4 + D + B) interpolated rows of one clip's own rows."""
        if self.phases == 1 and head.loop == "clamp":
            return raw
        count = self._count(head.num_frames, head.loop)
        times = torch.arange(count, dtype=torch.float64) / (self.fps * self.phases)
        frames = MotionFrames(*raw.split(self._widths, dim=-1))
        return _joined(sample_frames(self.skeleton, frames, self.fps, times, head.loop))

    def _rows(self, index: Tensor) -> MotionFrames:
        """Frames (..., n) at rows (..., n) of the joined table."""
        flat = self._table_all.index_select(0, index.reshape(-1))
        parts = flat.view(*index.shape, -1).split(self._widths, dim=-1)
        return MotionFrames(*parts)

    def num_starts(self, num_frames: int) -> Tensor:
        """Number (C,) of start times of windows of ``num_frames`` frames in each clip.

        Raises:
            InputError: a clip that may be drawn is shorter than the window.
        """
        span = (num_frames - 1) * self.phases
        last = (self.duration_s * self.fps * self.phases).round().long()
        starts = torch.where(self.is_loop, last, last - span + 1)
        bad = ((starts < 1) & (self.probabilities > 0)).nonzero()
        if len(bad):
            clip = self.heads[int(bad[0])]
            raise InputError(
                f"clip {clip.clip_id!r}: {clip.num_frames} frames; windows of {num_frames} are "
                "drawn; leave the clip out or use shorter windows"
            )
        return starts

    def sample_windows(self, rng: torch.Generator, n: int, num_frames: int) -> WindowBatch:
        """Draw windows by the clips' probabilities, start times uniform within a clip.

        The target is the root 0.4 s plus U(0, min(rest of the clip, 1.1 s)) after the start, at
        the end of the clip at the latest, as in the published code.

        Args:
            rng: source of all randomness.
            n: number of windows.
            num_frames: frames T of a window.

        Raises:
            InputError: a clip is shorter than the window.
        """
        starts = self.num_starts(num_frames)
        clip = self.sample_clips(rng, n)
        unit = torch.rand(n, generator=rng, dtype=torch.float64)
        start = (unit * starts[clip]).long().clamp(max=starts[clip] - 1)
        ahead = torch.rand(n, generator=rng, dtype=torch.float64)
        return self._windows(clip, start, ahead, num_frames)

    def sample_clips(self, rng: torch.Generator, n: int) -> Tensor:
        """Clip indices (n,) long drawn with replacement by ``probabilities``."""
        unit = torch.rand(n, generator=rng, dtype=torch.float64) * self._cumulative[-1]
        drawn = torch.searchsorted(self._cumulative, unit, right=True)
        return drawn.clamp(max=len(self) - 1)

    def windows_at(self, clip_index: Tensor, start_s: Tensor, num_frames: int) -> WindowBatch:
        """Windows of given clips (N,) at given start times (N,) s, rounded to the phase grid.

        Targets lie 0.4 s plus half of the random range after the start.

        Raises:
            InputError: a clip is too short, or a start lies outside its clip.
        """
        starts = self.num_starts(num_frames)
        start = (start_s.double() * self.fps * self.phases).round().long()
        bad = ((start < 0) | (start >= starts[clip_index])).nonzero()
        if len(bad):
            where = int(bad[0])
            latest = float(starts[clip_index[where]] - 1) / (self.fps * self.phases)
            raise InputError(
                f"start_s[{where}]: {float(start_s[where]):g} s; 0 to {latest:g} s is allowed in "
                f"clip {self.heads[int(clip_index[where])].clip_id!r}; choose an earlier start"
            )
        half = torch.full(start.shape, 0.5, dtype=torch.float64)
        return self._windows(clip_index, start, half, num_frames)

    def _windows(self, clip: Tensor, start: Tensor, ahead: Tensor, num_frames: int) -> WindowBatch:
        rate = self.fps * self.phases
        steps = torch.arange(num_frames) * self.phases
        row = self._first[clip] + start
        if num_frames > 1 and int(steps[-1]) >= LOOP_EXTRA_S * rate and bool(self.is_loop.any()):
            raise InputError(
                f"num_frames: {num_frames}; loops are continued by {LOOP_EXTRA_S:g} s only; "
                "unroll the loops or use shorter windows"
            )
        start_s = start.double() / rate
        rest = torch.where(self.is_loop[clip], TARGET_SPAN_S, self.duration_s[clip] - start_s)
        later = start_s + TARGET_MIN_S + ahead * rest.clamp(0.0, TARGET_SPAN_S)
        target = torch.minimum((later * rate).round().long(), self._length[clip] - 1)
        root = self._rows(self._first[clip] + target)
        then = torch.minimum(target + round(SECOND_S * rate), self._length[clip] - 1)
        second = self._rows(self._first[clip] + then)
        return WindowBatch(
            frames=self._rows(row[:, None] + steps),
            clip_index=clip,
            start_s=start_s,
            terrain_ids=clip,
            target_pos=root.root_pos,
            target_heading=rot.heading_angle(root.root_rot),
            target_s=target.double() / rate,
            second_pos=second.root_pos,
            second_heading=rot.heading_angle(second.root_rot),
        )


def _joined(frames: MotionFrames) -> Tensor:
    """Rows (T, 3 + 4 + D + B) of frames (T, ...)."""
    return torch.cat((frames.root_pos, frames.root_rot, frames.dof, frames.contacts), dim=-1)
