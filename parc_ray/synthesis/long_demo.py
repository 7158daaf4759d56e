"""Motions of half a minute and more: the best candidates segment by segment.

Whole candidates of 30 s nearly all fail somewhere. Here a few are made for some seconds, the best
are gone on from, and so forth (a beam search over segments). Where all candidates of a segment
fail, the search goes back by one segment and tries again, a limited number of times.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.motion.frames import MotionFrames, cat_time
from parc_ray.protocols import Generator
from parc_ray.synthesis.config import RolloutConfig, SelectionConfig, check_field
from parc_ray.synthesis.rollout import Candidate, RolloutStart, generate_candidates
from parc_ray.synthesis.selection import penetration_and_contact, score_candidate, seam_jerk
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.slicing import slice_around_motion

_LOG = logging.getLogger(__name__)
_MARGIN_M = 1.6
_TAIL = 3


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """How a long motion is searched for."""

    seconds: float = 30.0
    """The motion ends here, or at the end of its path, s. PARC shows 30 s and more."""
    segment_s: float = 2.5
    """Length of a segment, s."""
    candidates: int = 16
    """Candidates per segment, shared among those that are gone on from."""
    beam: int = 4
    """Candidates that are gone on from. 1: the best only."""
    retries: int = 8
    """How often a segment without a usable candidate is tried again, one segment further back."""
    min_gain_m: float = 0.3
    """Way along the path that a segment must cover, m."""
    w_gain: float = 1.0
    """Taken off the score for each metre of the path covered."""
    w_away: float = 1.0
    """Added to the score for each metre between path and root at the segment's end."""
    rollout: RolloutConfig = field(default_factory=lambda: RolloutConfig(smooth_m=0.8))
    """How candidates are made; number and duration are those of the segments."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """Weights of penetration, contact and seam jerk in the score of a segment."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        for name in ("seconds", "segment_s"):
            check_field(getattr(self, name) > 0, self, name, "> 0 s")
        for name in ("candidates", "beam"):
            check_field(getattr(self, name) >= 1, self, name, ">= 1")
        check_field(self.beam <= self.candidates, self, "beam", "at most the candidates")
        for name in ("retries", "min_gain_m", "w_gain", "w_away"):
            check_field(getattr(self, name) >= 0, self, name, ">= 0")


@dataclass(kw_only=True)
class Branch:
    """A segment that is gone on from.

    Attributes:
        parent: position of the segment before in the level before; -1 at the start.
        frames: (T, ...) its frames.
        seams: frames among them at which a window begins.
        progress_m: arc length of the path covered at its end.
        score: sum of the segments' scores up to here; lower is better.
        finished: whether the end of the path was reached.
        figures: tpl, tcl, seam_jerk, gain_m, away_m and score of this segment.
    """

    parent: int
    frames: MotionFrames
    seams: tuple[int, ...]
    progress_m: float
    score: float
    finished: bool
    figures: dict[str, float]

    def to_plain(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {**vars(self), "frames": vars(self.frames), "seams": list(self.seams)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Branch:
        """The inverse of ``to_plain``."""
        frames = MotionFrames(**plain["frames"])
        return cls(**{**plain, "frames": frames, "seams": tuple(plain["seams"])})


@dataclass(kw_only=True)
class Level:
    """What one segment left: branches, best first, and why other candidates were dropped.

    Attributes:
        branches: those gone on from.
        candidates: how many there were.
        rejections: how often each reason was given.
    """

    branches: list[Branch]
    candidates: int
    rejections: dict[str, int]

    def to_plain(self) -> dict[str, Any]:
        """Tensors and plain values."""
        return {**vars(self), "branches": [b.to_plain() for b in self.branches]}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Level:
        """The inverse of ``to_plain``."""
        return cls(**{**plain, "branches": [Branch.from_plain(b) for b in plain["branches"]]})


@dataclass(kw_only=True)
class SearchState:
    """Where a search stands; all that is needed to go on.

    Attributes:
        levels: segments so far.
        deepest: the longest chain of segments so far.
        failures: one entry for each segment that failed: its number and the reasons.
    """

    levels: list[Level] = field(default_factory=list)
    deepest: list[Level] = field(default_factory=list)
    failures: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def to_plain(self) -> dict[str, Any]:
        """Tensors and plain values; levels that both chains share are written once."""
        shared = 0
        for a, b in zip(self.levels, self.deepest, strict=False):
            if a is not b:
                break
            shared += 1
        return {
            "levels": [level.to_plain() for level in self.levels],
            "deepest": [level.to_plain() for level in self.deepest[shared:]],
            "shared": shared,
            "failures": [[n, reasons] for n, reasons in self.failures],
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> SearchState:
        """The inverse of ``to_plain``."""
        levels = [Level.from_plain(p) for p in plain["levels"]]
        deepest = [Level.from_plain(p) for p in plain["deepest"]]
        return cls(
            levels=levels,
            deepest=levels[: plain["shared"]] + deepest,
            failures=[(n, reasons) for n, reasons in plain["failures"]],
        )


class StateStore(Protocol):
    """Keeps a search so that it can be gone on with."""

    def load(self) -> SearchState | None:
        """The state that was saved last, if any."""
        ...

    def save(self, state: SearchState) -> None:
        """Keep a state."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class LongMotion:
    """The motion found.

    Attributes:
        frames: (T, ...) world frames.
        seams: frames at which a new window begins.
        segments: levels of the chain; ``chosen`` says which branch of each belongs to the motion.
        chosen: position of the motion's branch in every level.
        progress_m: arc length of the path covered.
        finished: whether the end of the path was reached.
        ended: why the motion ends where it does.
        failures: segments that failed, and why.
    """

    frames: MotionFrames
    seams: tuple[int, ...]
    segments: tuple[Level, ...]
    chosen: tuple[int, ...]
    progress_m: float
    finished: bool
    ended: str
    failures: tuple[tuple[int, dict[str, int]], ...]


def generate_long(
    generator: Generator,
    terrain: Heightfield,
    path: Tensor,
    character: Character,
    cfg: DemoConfig,
    seed: int,
    store: StateStore | None = None,
) -> LongMotion | None:
    """Follow a path for a long time, best segment by best segment.

    Args:
        generator: continues motions by windows.
        terrain: the map.
        path: (M, 3) m.
        character: for feet and body points.
        cfg: settings.
        seed: of everything drawn here; equal inputs give equal motions, also where a search was
            gone on with from ``store``.
        store: where the state is kept after every segment.

    Returns:
        The motion, which may have ended early and then says why; None where already the first
        segment failed at every try (the reasons are logged).
    """
    search = _Search(generator, terrain, path, character, cfg, seed)
    state = (store.load() if store is not None else None) or SearchState()
    while (ended := search.ended(state)) is None:
        search.advance(state)
        if store is not None:
            store.save(state)
    _LOG.info("ended: %s", ended)
    if not state.deepest:
        return None
    return _assembled(state, ended, round(cfg.seconds * generator.fps) + 1)


class _Search:
    """The constant part of a search."""

    def __init__(
        self,
        generator: Generator,
        terrain: Heightfield,
        path: Tensor,
        character: Character,
        cfg: DemoConfig,
        seed: int,
    ) -> None:
        self.generator, self.terrain, self.path = generator, terrain, path
        self.character, self.cfg, self.seed = character, cfg, seed
        new = generator.num_frames - 1 - cfg.rollout.rewind - generator.num_past
        # Whole windows: the first segment has its first window's past frames besides.
        self.windows = max(1, round(cfg.segment_s * generator.fps / new))
        self.new = new

    def ended(self, state: SearchState) -> str | None:
        """Why the search is over, or None."""
        levels, cfg = state.levels, self.cfg
        if levels and levels[-1].branches[0].finished:
            return "arrived"
        # The shortest branch decides: all but finished ones have whole segments.
        if levels and _frames_of(levels) >= cfg.seconds * self.generator.fps + 1:
            return "time"
        if len(state.failures) > cfg.retries:
            number, reasons = state.failures[-1]
            said = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
            return f"gave up at segment {number} after {cfg.retries} retries ({said})"
        return None

    def advance(self, state: SearchState) -> None:
        """Add a level, or go back by one."""
        depth = len(state.levels)
        level = self._expand(state.levels, [self.seed, depth, len(state.failures)])
        said = ", ".join(f"{reason} {count}" for reason, count in sorted(level.rejections.items()))
        if not level.branches:
            _LOG.info("segment %d: no usable candidate (%s)", depth, said)
            state.failures.append((depth, level.rejections))
            state.levels = state.levels[:-1]
            return
        best = level.branches[0]
        _LOG.info(
            "segment %d: %.1f m of the path, score %.2f%s",
            depth,
            best.progress_m,
            best.score,
            f"; dropped: {said}" if said else "",
        )
        state.levels = [*state.levels, level]
        if len(state.levels) >= len(state.deepest):
            state.deepest = state.levels

    def _expand(self, levels: Sequence[Level], seeds: Sequence[int]) -> Level:
        """Candidates from the branches of the last level, judged."""
        cfg, first, past = self.cfg, not levels, self.generator.num_past
        parents = [] if first else levels[-1].branches
        starts = None
        if parents:
            starts = [
                RolloutStart(
                    past=_tail(levels, k, self.generator.num_past), progress_m=b.progress_m
                )
                for k, b in enumerate(parents)
            ]
        count = max(1, len(parents))
        # Frames of whole windows; at the start one more window's past frames are new as well.
        frames = self.windows * self.new + (past if first else 0)
        rollout = replace(
            cfg.rollout,
            candidates=max(1, cfg.candidates // count),
            max_duration_s=(frames - (1 if first else 0) + 0.5) / self.generator.fps,
        )
        seed = int(np.random.SeedSequence(list(seeds)).generate_state(1)[0]) >> 1
        made = generate_candidates(
            self.generator,
            [self.terrain] * count,
            [self.path] * count,
            self.character,
            rollout,
            seed,
            starts,
        )
        return self._judged(levels, made)

    def _judged(self, levels: Sequence[Level], made: list[Candidate]) -> Level:
        """The best candidates as branches; reasons of the others."""
        cfg, parents = self.cfg, levels[-1].branches if levels else []
        reasons: Counter[str] = Counter()
        usable = []
        for c in made:
            gain = c.progress_m - (parents[c.path_index].progress_m if parents else 0.0)
            if c.failure:
                reasons[c.failure] += 1
            elif gain < cfg.min_gain_m and not c.finished:
                reasons["little progress"] += 1
            else:
                usable.append((c, gain))
        branches = self._branches(levels, usable)
        # Whoever has arrived comes first: the motion ends there.
        branches.sort(key=lambda b: (not b.finished, b.score))
        if len(branches) > cfg.beam:
            reasons["not among the best"] += len(branches) - cfg.beam
        return Level(branches=branches[: cfg.beam], candidates=len(made), rejections=dict(reasons))

    def _branches(
        self, levels: Sequence[Level], usable: Sequence[tuple[Candidate, float]]
    ) -> list[Branch]:
        """Scored branches of candidates and the way that each gained, metres."""
        if not usable:
            return []
        cfg, parents = self.cfg, levels[-1].branches if levels else []
        grounds = [
            slice_around_motion(self.terrain, c.frames.root_pos[:, :2], _MARGIN_M)
            for c, _ in usable
        ]
        alone = [replace(c, path_index=k) for k, (c, _) in enumerate(usable)]
        figures = penetration_and_contact(alone, grounds, self.character, self.generator.fps)
        branches = []
        for (c, gain), (tpl, tcl, _) in zip(usable, figures, strict=True):
            before = parents[c.path_index] if parents else None
            jerk, away = self._jerk(levels, c), self._away(c)
            score = score_candidate(tpl, tcl, jerk, replace(c, finished=True), cfg.selection)
            score += cfg.w_away * away - cfg.w_gain * gain
            values = {"tpl": tpl, "tcl": tcl, "seam_jerk": jerk, "gain_m": gain, "away_m": away}
            branch = Branch(
                parent=c.path_index if before else -1,
                frames=c.frames,
                seams=(*((0,) if before else ()), *c.seams),
                progress_m=c.progress_m,
                score=score + (before.score if before else 0.0),
                finished=c.finished,
                figures={**values, "score": score},
            )
            branches.append(branch)
        return branches

    def _jerk(self, levels: Sequence[Level], c: Candidate) -> float:
        """Largest jerk over the seams of a candidate, that to the segment before included."""
        frames, seams = c.frames, c.seams
        if levels:
            tail = _tail(levels, c.path_index, _TAIL)
            shift = tail.num_frames
            frames = cat_time([tail, frames])
            seams = (shift, *(s + shift for s in seams))
        pos, _ = fk_from_dof(self.character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
        return seam_jerk(pos, seams, self.generator.fps)

    def _away(self, c: Candidate) -> float:
        """Horizontal distance of the last root position from the path, metres."""
        a, b = self.path[:-1, :2], self.path[1:, :2]
        root = c.frames.root_pos[-1, :2]
        ab = b - a
        t = ((root - a) * ab).sum(-1) / ab.square().sum(-1).clamp(min=1e-12)
        return float((a + t.clamp(0.0, 1.0)[:, None] * ab - root).norm(dim=-1).min())


def _chain(levels: Sequence[Level], branch: int) -> list[int]:
    """Positions of the branches, first level first, that lead to ``branch`` of the last level."""
    chosen = []
    for level in reversed(levels):
        chosen.append(branch)
        branch = level.branches[branch].parent
    return chosen[::-1]


def _tail(levels: Sequence[Level], branch: int, count: int) -> MotionFrames:
    """The last ``count`` frames that lead to the end of a branch."""
    parts: list[MotionFrames] = []
    for level in reversed(levels):
        held = level.branches[branch]
        parts.insert(0, held.frames)
        if sum(p.num_frames for p in parts) >= count:
            break
        branch = held.parent
    joined = cat_time(parts)
    return joined.time(max(0, joined.num_frames - count))


def _frames_of(levels: Sequence[Level]) -> int:
    """Frames up to the end of the best branch."""
    chosen = _chain(levels, 0)
    return sum(level.branches[k].frames.num_frames for level, k in zip(levels, chosen, strict=True))


def _assembled(state: SearchState, ended: str, longest: int) -> LongMotion:
    """The best branch of the deepest chain."""
    levels = state.deepest
    chosen = _chain(levels, 0)
    picked = [level.branches[k] for level, k in zip(levels, chosen, strict=True)]
    seams: list[int] = []
    offset = 0
    for branch in picked:
        seams.extend(s + offset for s in branch.seams)
        offset += branch.frames.num_frames
    frames = cat_time([b.frames for b in picked])
    return LongMotion(
        frames=frames.time(0, longest),
        seams=tuple(s for s in seams if s < longest),
        segments=tuple(levels),
        chosen=tuple(chosen),
        progress_m=picked[-1].progress_m,
        finished=picked[-1].finished,
        ended=ended,
        failures=tuple(state.failures),
    )
