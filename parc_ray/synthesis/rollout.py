"""Batched autoregressive roll-outs of candidates along paths."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import heading_angle
from parc_ray.errors import InputError
from parc_ray.motion.frames import MotionFrames, cat_time, stack
from parc_ray.protocols import Generator, SampleRequest
from parc_ray.synthesis.config import RolloutConfig
from parc_ray.synthesis.waypoints import PathBatch, smooth_waypoints
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch

_LOG = logging.getLogger(__name__)
_SPACING_M = 0.2
"""Distance of the way-points of a path whose corners are rounded."""


@dataclass(kw_only=True)
class Candidate:
    """One generated motion.

    Attributes:
        path_index: which of the given terrains and paths it belongs to.
        index: number of the candidate on its path.
        frames: (T, ...) world frames; empty if the very first window failed.
        finished: whether the end of the path was reached.
        failure: empty, or why the roll-out was given up.
        progress_m: arc length covered.
        path_length_m: arc length of the path.
        windows: generator windows used.
        seams: frames at which a new window begins.
    """

    path_index: int
    index: int
    frames: MotionFrames
    finished: bool
    failure: str
    progress_m: float
    path_length_m: float
    windows: int
    seams: tuple[int, ...]

    @property
    def progress(self) -> float:
        """Share of the path covered, 0..1; 1 where the end was reached."""
        if self.finished:
            return 1.0
        return min(1.0, self.progress_m / max(self.path_length_m, 1e-6))


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutStart:
    """A motion that a roll-out goes on from.

    Attributes:
        past: (P, ...) its last frames, at least as many as a window has past frames.
        progress_m: arc length of the path that it has covered, metres.
    """

    past: MotionFrames
    progress_m: float


@dataclass(kw_only=True)
class _Book:
    """Book-keeping of N candidates, one entry each."""

    progress: Tensor
    last_gain: Tensor
    settle: Tensor
    length: Tensor
    finished: Tensor
    failure: list[str]
    windows: Tensor
    blocks: list[tuple[Tensor, MotionFrames]] = field(default_factory=list)


def generate_candidates(
    generator: Generator,
    terrains: Sequence[Heightfield],
    paths: Sequence[Tensor],
    character: Character,
    cfg: RolloutConfig,
    seed: int,
    starts: Sequence[RolloutStart] | None = None,
) -> list[Candidate]:
    """Roll all candidates of all paths out together, one generator call per window.

    Finished and failed candidates leave the batch at once. A candidate that reaches the end keeps
    its frames up to that window plus ``settle_windows``; one that does not is marked unfinished at
    the time cap; one that leaves the terrain, falls below it or becomes NaN is recorded with its
    reason and the frames before.

    Args:
        generator: continues motions by windows.
        terrains: P terrains of one cell size.
        paths: P paths (M, 3), metres.
        character: for the feet.
        cfg: settings.
        seed: of everything that is drawn here.
        starts: P motions to go on from, one per path; their frames are not among those returned.
            None begins at the first node of each path.

    Returns:
        P * candidates entries, ordered by path and candidate.
    """
    keep_end = generator.num_frames - 1 - cfg.rewind
    if keep_end <= generator.num_past:
        raise InputError(
            f"RolloutConfig.rewind: {cfg.rewind} leaves no new frame of {generator.num_frames}; "
            f"allowed: 0..{generator.num_frames - generator.num_past - 2}; lower it"
        )
    if len(terrains) != len(paths) or not paths:
        raise InputError(f"paths: {len(paths)} for {len(terrains)} terrains; give one path each")
    run = _Rollout(generator, terrains, paths, character, cfg, seed, keep_end)
    if starts is None:
        run.start()
    else:
        run.resume(starts)
    while run.active.numel() > 0 and run.time < run.max_frames:
        run.step()
    return run.collect()


class _Rollout:
    """State of a batch of roll-outs."""

    def __init__(
        self,
        generator: Generator,
        terrains: Sequence[Heightfield],
        paths: Sequence[Tensor],
        character: Character,
        cfg: RolloutConfig,
        seed: int,
        keep_end: int,
    ) -> None:
        self.generator, self.character, self.cfg, self.seed = generator, character, cfg, seed
        self.keep_end = keep_end
        self.path_of = torch.arange(len(paths)).repeat_interleave(cfg.candidates)
        self.terrain = HeightfieldBatch.stack(list(terrains))
        self.paths = PathBatch.stack(
            [
                smooth_waypoints(p.float(), _SPACING_M, cfg.smooth_m, terrain)
                if cfg.smooth_m > 0
                else p.float()
                for p, terrain in zip(paths, terrains, strict=True)
            ]
        )
        self.rng = torch.Generator().manual_seed(seed)
        self.max_frames = math.floor(cfg.max_duration_s * generator.fps) + 1
        self.time = 0
        self.past: MotionFrames | None = None
        n = len(self.path_of)
        self.active = torch.arange(n)
        self.book = _Book(
            progress=torch.zeros(n),
            last_gain=torch.zeros(n),
            settle=torch.full((n,), -1),
            length=torch.zeros(n, dtype=torch.long),
            finished=torch.zeros(n, dtype=torch.bool),
            failure=[""] * n,
            windows=torch.zeros(n, dtype=torch.long),
        )

    def start(self) -> None:
        """Generate the first window from the first node of each path."""
        paths = self.paths.index_select(self.path_of)
        low, high = self.cfg.start_height_m
        count = self.cfg.candidates
        # One stream per candidate: its start does not depend on what else is in the batch.
        draws = [
            np.random.default_rng([self.seed, int(p), k % count]).uniform(size=2)
            for k, p in enumerate(self.path_of)
        ]
        u = torch.from_numpy(np.stack(draws)).float()
        pos = paths.points[:, 0].clone()
        pos[:, 2] += low + (high - low) * u[:, 0]
        ahead = paths.point_at(torch.minimum(paths.length, torch.tensor(0.5))[:, None])[:, 0]
        first = ahead[:, :2] - pos[:, :2]
        heading = torch.atan2(first[:, 1], first[:, 0])
        if self.cfg.heading == "random":
            heading = (2.0 * u[:, 1] - 1.0) * math.pi
        self._generate(None, pos, heading, begin=0)

    def resume(self, starts: Sequence[RolloutStart]) -> None:
        """Generate the first window after motions that are there already."""
        if len(starts) != len(self.paths.points):
            raise InputError(f"starts: {len(starts)} for {len(self.paths.points)} paths")
        self.max_frames -= 1  # the frame at time 0 is among those that are there
        count = self.generator.num_past
        past = stack([s.past.time(s.past.num_frames - count) for s in starts])
        self.past = past[self.path_of]
        self.book.progress = torch.tensor([float(s.progress_m) for s in starts])[self.path_of]
        self.step()

    def step(self) -> None:
        """Generate the next window of the candidates still under way."""
        past = self.past
        assert past is not None
        pos = past.root_pos[:, -1]
        heading = heading_angle(past.root_rot[:, -1])
        self._generate(past, pos, heading, begin=self.generator.num_past)

    def _generate(
        self, past: MotionFrames | None, pos: Tensor, heading: Tensor, begin: int
    ) -> None:
        """One call of the generator, then the book-keeping of the kept frames."""
        ids = self.active
        paths = self.paths.index_select(self.path_of[ids])
        ahead = self.book.progress[ids] + self.cfg.lookahead_m
        request = SampleRequest(
            past=past,
            anchor_pos=pos,
            anchor_heading=heading,
            terrain=self.terrain.index_select(self.path_of[ids]),
            target_w=paths.point_at(ahead[:, None])[:, 0, :2],
            second_w=paths.point_at((ahead + self.cfg.second_lookahead_m)[:, None])[:, 0, :2],
        )
        window = self.generator.sample(request, self.rng)
        last = min(self.keep_end, begin + self.max_frames - self.time)
        kept = window.time(begin, last)
        self.book.windows[ids] += 1
        good = self._drop_failed(kept, ids, paths)
        ids, kept, paths = ids[good], kept[good], paths.index_select(good)
        self.time += last - begin
        self.book.blocks.append((ids, kept))
        self.book.length[ids] = self.time
        going = self._update(ids, kept, paths)
        self.active = ids[going]
        self.past = window[good][going].time(last - self.generator.num_past, last)

    def _drop_failed(self, kept: MotionFrames, ids: Tensor, paths: PathBatch) -> Tensor:
        """Record failures; positions (K,) long of the candidates that go on."""
        n = len(ids)
        pieces = (kept.root_pos, kept.root_rot, kept.dof)
        finite = torch.stack([torch.isfinite(x).reshape(n, -1).all(1) for x in pieces]).all(0)
        root = torch.where(torch.isfinite(kept.root_pos), kept.root_pos, 0.0)
        terrain = self.terrain.index_select(self.path_of[ids])
        low = (terrain.origin - terrain.cell_size / 2)[:, None]
        high = low + (terrain.size * terrain.cell_size)[:, None]
        off = torch.maximum(low - root[..., :2], root[..., :2] - high).amax((1, 2))
        under = (terrain.height_at(root[..., :2]) - root[..., 2]).amax(1)
        reasons = [
            (~finite, "not finite"),
            (off > self.cfg.lost_margin_m, "left the terrain"),
            (under > self.cfg.fall_depth_m, "fell below the terrain"),
        ]
        failed = torch.zeros(n, dtype=torch.bool)
        for mask, reason in reasons:
            for k in (mask & ~failed).nonzero()[:, 0].tolist():
                self.book.failure[int(ids[k])] = reason
            failed |= mask
        return (~failed).nonzero()[:, 0]

    def _update(self, ids: Tensor, kept: MotionFrames, paths: PathBatch) -> Tensor:
        """Progress, arrival, settling, stalling; positions (K,) of those that go on."""
        book, cfg = self.book, self.cfg
        if len(ids) == 0:
            return ids
        progress = book.progress[ids]
        for t in range(kept.root_pos.shape[1]):
            progress = paths.advance(kept.root_pos[:, t, :2], progress, cfg.lookahead_m)
        gained = progress > book.progress[ids] + 0.01
        now = self.time / self.generator.fps
        book.last_gain[ids] = torch.where(gained, torch.tensor(now), book.last_gain[ids])
        book.progress[ids] = progress
        body_pos, _ = fk_from_dof(self.character.skeleton, kept.root_pos, kept.root_rot, kept.dof)
        feet = body_pos[..., list(self.character.feet), :].mean(-2)
        near = ((feet - paths.goal[:, None]).norm(dim=-1) < cfg.done_radius_m).any(1)
        settle = book.settle[ids]
        settle = torch.where(settle > 0, settle - 1, settle)
        settle = torch.where(near & (settle < 0), torch.tensor(cfg.settle_windows), settle)
        book.settle[ids] = settle
        book.finished[ids] = settle >= 0
        stalled = torch.zeros(len(ids), dtype=torch.bool)
        if cfg.stall_s is not None:
            stalled = (now - book.last_gain[ids] > cfg.stall_s) & (settle < 0)
            for k in stalled.nonzero()[:, 0].tolist():
                book.failure[int(ids[k])] = "no progress"
        return ((settle != 0) & ~stalled).nonzero()[:, 0]

    def collect(self) -> list[Candidate]:
        """Cut the blocks into one motion per candidate."""
        book = self.book
        rows: list[list[MotionFrames]] = [[] for _ in book.failure]
        for ids, block in book.blocks:
            for k, i in enumerate(ids.tolist()):
                rows[i].append(block[k])
        empty = self._empty()
        out = []
        for i, parts in enumerate(rows):
            lengths = np.cumsum([p.root_pos.shape[0] for p in parts])
            out.append(
                Candidate(
                    path_index=int(self.path_of[i]),
                    index=i % self.cfg.candidates,
                    frames=cat_time(parts) if parts else empty,
                    finished=bool(book.finished[i]),
                    failure=book.failure[i],
                    progress_m=float(book.progress[i]),
                    path_length_m=float(self.paths.length[self.path_of[i]]),
                    windows=int(book.windows[i]),
                    seams=tuple(int(s) for s in lengths[:-1]),
                )
            )
        done = sum(c.finished for c in out)
        _LOG.info("%d of %d candidates reached the end of their path", done, len(out))
        return out

    def _empty(self) -> MotionFrames:
        """Frames of length 0."""
        skeleton = self.character.skeleton
        return MotionFrames(
            root_pos=torch.zeros(0, 3),
            root_rot=torch.zeros(0, 4),
            dof=torch.zeros(0, skeleton.num_dofs),
            contacts=torch.zeros(0, skeleton.num_bodies),
        )
