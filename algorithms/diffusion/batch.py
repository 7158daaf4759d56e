"""From windows of clips to training batches (docs/design/generator.md).

Windows are sampled and prepared on the CPU with one random generator; only the finished batch
moves to the device of the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from algorithms.diffusion.conditions import Conditions, draw_visibility
from algorithms.diffusion.config import ConditioningConfig, DiffusionConfig
from algorithms.diffusion.drift import add_drift, drifts
from algorithms.diffusion.targets import future_target, mirror_target, turn_target
from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import wrap_angle
from parc_ray.character.surface import surface_points
from parc_ray.motion.features import (
    CanonicalFrame,
    FeatureLayout,
    FeatureStats,
    canonical_frame,
    compute_stats,
    pack,
    to_canonical,
)
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.mirror import mirror_frames, mirror_points
from parc_ray.terrain.augment import (
    AugmentConfig,
    augment_local_heights,
    cell_bounds,
    ood_heights,
)
from parc_ray.terrain.footprint import passed_cells
from parc_ray.terrain.heightfield import HeightfieldBatch
from parc_ray.terrain.local_cells import LocalCells, local_cells
from parc_ray.terrain.local_grid import GridSpec, local_grid_xy

_STATS_SEED = 20_250_502
_STATS_CHUNK = 2_048
_PARC_TARGET = ConditioningConfig()


class WindowsLike(Protocol):
    """N windows of clips, as a ``ClipBank`` samples them."""

    @property
    def frames(self) -> MotionFrames:
        """World frames, (N, T, ...)."""
        ...

    @property
    def terrain_ids(self) -> Tensor:
        """(N,) long, rows of the source's ``terrains``."""
        ...

    @property
    def target_pos(self) -> Tensor:
        """(N, 3) m, world root position at a random future time."""
        ...

    @property
    def target_heading(self) -> Tensor:
        """(N,) rad, heading of the root then."""
        ...

    @property
    def target_s(self) -> Tensor:
        """(N,) s, that time in the clip."""
        ...

    @property
    def start_s(self) -> Tensor:
        """(N,) s, time of the first frame in the clip."""
        ...

    @property
    def second_pos(self) -> Tensor:
        """(N, 3) m, world root position some time after the target."""
        ...

    @property
    def second_heading(self) -> Tensor:
        """(N,) rad, heading of the root then."""
        ...


class WindowSource(Protocol):
    """Where training windows come from (``parc_ray.data.bank.ClipBank``)."""

    @property
    def terrains(self) -> HeightfieldBatch:
        """All terrains of the source, with augmentation bounds where they are known."""
        ...

    def sample_windows(self, rng: torch.Generator, n: int, num_frames: int) -> WindowsLike:
        """Draw ``n`` windows of ``num_frames`` frames by the clips' weights."""
        ...


@dataclass(frozen=True)
class Placed:
    """Bodies of windows in their canonical frames.

    Attributes:
        pos: (N, T, B, 3) m.
        rot: (N, T, B, 4) xyzw.
    """

    pos: Tensor
    rot: Tensor


@dataclass(frozen=True)
class TrainingBatch:
    """Everything a loss needs.

    Attributes:
        x0: (N, T, F) normalised clean features.
        features: (N, T, F) the same, not normalised.
        noise: (N, T, F) standard normal.
        t: (N,) long, noise levels.
        cond: conditions.
        ood: (N,) bool, foreign terrain and target: scored by the geometric terms only.
        terrain: local height maps as N terrains in the canonical frame.
    """

    x0: Tensor
    features: Tensor
    noise: Tensor
    t: Tensor
    cond: Conditions
    ood: Tensor
    terrain: HeightfieldBatch

    def to(self, device: torch.device) -> TrainingBatch:
        """Move every tensor."""
        if self.x0.device == device:
            return self
        return TrainingBatch(
            x0=self.x0.to(device),
            features=self.features.to(device),
            noise=self.noise.to(device),
            t=self.t.to(device),
            cond=self.cond.to(device),
            ood=self.ood.to(device),
            terrain=self.terrain.to(device),
        )


def local_terrain(heights: Tensor, grid: GridSpec, max_height: float) -> HeightfieldBatch:
    """Local height maps (N, GX, GY) as terrains of the canonical frame, clamped like the input."""
    n = heights.shape[0]
    corner = local_grid_xy(grid)[0, 0].to(heights)
    size = torch.tensor(grid.shape, device=heights.device)
    return HeightfieldBatch(
        heights=heights.clamp(-max_height, max_height),
        origin=corner.expand(n, 2),
        size=size.expand(n, 2),
        cell_size=grid.spacing,
    )


def unseen_cells(cells: LocalCells, min_confidence: float) -> Tensor | None:
    """(N, GX, GY) bool, cells less sure than ``min_confidence``; None where all is known."""
    confidence = cells.terrain.confidence
    if confidence is None or min_confidence <= 0.0:
        return None
    return cells.of_terrain(confidence) < min_confidence


class BatchMaker:
    """Draws training batches from a source; all randomness comes from the generator passed in."""

    def __init__(
        self,
        source: WindowSource,
        character: Character,
        config: DiffusionConfig,
        stats: FeatureStats,
    ) -> None:
        """Keep references; nothing is copied."""
        self.source, self.character, self.config, self.stats = source, character, config, stats
        self.augment = AugmentConfig(max_height_m=config.terrain.max_height)

    def draw(self, rng: torch.Generator, n: int) -> TrainingBatch:
        """Draw and prepare ``n`` windows."""
        config, cond = self.config, self.config.conditioning
        windows = self.source.sample_windows(rng, n, config.num_frames)
        frames = windows.frames
        if drifts(cond):
            frames = add_drift(rng, frames, cond, config.reference)
        frame = canonical_frame(frames, config.reference)
        frames = to_canonical(frames, frame)
        pose = Placed(
            *fk_from_dof(self.character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
        )
        cells = local_cells(
            config.grid, self.source.terrains, windows.terrain_ids, frame.origin, frame.heading
        )
        heights = cells.heights(cells.terrain.heights)
        unseen = unseen_cells(cells, cond.min_confidence)
        before = heights
        if cond.augment_terrain:
            heights = self._augmented(rng, heights, pose, frame, cells, unseen)
        guess = None if unseen is None else unseen & (heights == before)
        body_pos = pose.pos
        target = self._target(rng, windows, frame)
        if cond.mirror_chance > 0:
            flip = torch.rand(n, generator=rng) < cond.mirror_chance
            body_pos = _mirrored_points(self.character, flip, body_pos)
            frames, heights, target = _mirrored(self.character, flip, frames, heights, target, cond)
            guess = (
                None if guess is None else torch.where(flip[:, None, None], guess.flip(-1), guess)
            )
        ood = torch.rand(n, generator=rng) < cond.ood_chance
        if cond.ood_chance > 0:
            heights = ood_heights(rng, heights, config.grid, self.augment, chosen=ood)
            turn = torch.rand(n, generator=rng) * (2 * torch.pi)
            target = turn_target(cond, target, torch.where(ood, turn, 0.0))
        features = pack(self.character.skeleton, frames, config.rotations, body_pos=body_pos)
        clean, past, ground, goal = draw_visibility(rng, cond, n)
        return TrainingBatch(
            x0=self.stats.normalise(features),
            features=features,
            noise=torch.randn(features.shape, generator=rng),
            t=torch.randint(0, config.diffusion_steps, (n,), generator=rng),
            cond=Conditions(heights, target, clean, past, ground, goal),
            ood=ood,
            terrain=self._solid(heights, guess, ood),
        )

    def _solid(self, heights: Tensor, guess: Tensor | None, ood: Tensor) -> HeightfieldBatch:
        """The ground that penetration is scored against: guessed cells (N, GX, GY) are left out."""
        grid, most = self.config.grid, self.config.terrain.max_height
        if guess is not None:
            heights = heights.masked_fill(guess & ~ood[:, None, None], -most)
        return local_terrain(heights, grid, most)

    def _augmented(
        self,
        rng: torch.Generator,
        heights: Tensor,
        pose: Placed,
        frame: CanonicalFrame,
        cells: LocalCells,
        unseen: Tensor | None = None,
    ) -> Tensor:
        """Vary the local maps, except where the window's surface points touch the ground plan."""
        passed = passed_cells(
            surface_points(self.character, "full"),
            pose.pos,
            pose.rot,
            cells.terrain,
            cells.ids,
            frame.origin,
            frame.heading,
        )
        free = 2 * self.config.terrain.max_height
        lower, upper = cell_bounds(cells, heights, passed, free, unseen)
        return augment_local_heights(rng, heights, lower, upper, self.augment)

    def _target(self, rng: torch.Generator, windows: WindowsLike, frame: CanonicalFrame) -> Tensor:
        cond = self.config.conditioning
        points = [(windows.target_pos, windows.target_heading)]
        if cond.second_target:
            points.append((windows.second_pos, windows.second_heading))
        offsets, headings = [], []
        for pos, heading in points:
            noise = torch.randn(pos[:, :2].shape, generator=rng)
            offsets.append(frame.xy_to_canonical(pos[:, :2]) + cond.target_noise * noise)
            headings.append(wrap_angle(heading - frame.heading))
        return future_target(cond, offsets, headings, self._seconds(windows))

    def _seconds(self, windows: WindowsLike) -> Tensor:
        """Time (N,), s, from the reference frame to the target, where the network is told it."""
        if not self.config.conditioning.target_speed:
            return torch.ones(len(windows.target_heading))
        reference = windows.start_s + self.config.reference / self.config.fps
        return (windows.target_s - reference).float()


def _mirrored(
    character: Character,
    flip: Tensor,
    frames: MotionFrames,
    heights: Tensor,
    target: Tensor,
    cfg: ConditioningConfig = _PARC_TARGET,
) -> tuple[MotionFrames, Tensor, Tensor]:
    """Mirror the samples of ``flip`` (N,) about the xz plane of their canonical frames."""
    rows = flip.nonzero().squeeze(1)
    other = mirror_frames(character, frames[rows])
    frames = MotionFrames(
        root_pos=frames.root_pos.index_copy(0, rows, other.root_pos),
        root_rot=frames.root_rot.index_copy(0, rows, other.root_rot),
        dof=frames.dof.index_copy(0, rows, other.dof),
        contacts=frames.contacts.index_copy(0, rows, other.contacts),
    )
    heights = heights.index_copy(0, rows, heights[rows].flip(-1))
    target = torch.where(flip[:, None], mirror_target(cfg, target), target)
    return frames, heights, target


def _mirrored_points(character: Character, flip: Tensor, body_pos: Tensor) -> Tensor:
    """Body positions (N, T, B, 3) of the mirrored motion in the samples of ``flip`` (N,)."""
    rows = flip.nonzero().squeeze(1)
    swap = torch.tensor(character.mirror_bodies)
    other = mirror_points(body_pos[rows]).index_select(-2, swap)
    return body_pos.index_copy(0, rows, other)


def estimate_stats(
    source: WindowSource, character: Character, config: DiffusionConfig
) -> FeatureStats:
    """Mean and standard deviation per frame index and feature, over ``sample_features``."""
    features = sample_features(source, character, config)
    return compute_stats(FeatureLayout(character.skeleton, config.rotations), features)


def sample_features(source: WindowSource, character: Character, config: DiffusionConfig) -> Tensor:
    """Canonical feature vectors (W, T, F) of sampled windows, not normalised.

    Windows are drawn as training draws them (by clip weights, unlike the published code, and with
    mirror images where training has them) with a fixed seed, so every worker finds the same.
    """
    rng = torch.Generator().manual_seed(_STATS_SEED)
    copies = 2 if config.conditioning.mirror_chance > 0 else 1
    total = config.train.stat_windows
    size = FeatureLayout(character.skeleton, config.rotations).size
    found = torch.empty(copies * total, config.num_frames, size)
    for start in range(0, total, _STATS_CHUNK):
        count = min(_STATS_CHUNK, total - start)
        frames = source.sample_windows(rng, count, config.num_frames).frames
        frames = to_canonical(frames, canonical_frame(frames, config.reference))
        images = [frames] if copies == 1 else [frames, mirror_frames(character, frames)]
        for part, image in zip(found.split(total), images, strict=True):
            part[start : start + count] = pack(character.skeleton, image, form=config.rotations)
    return found
