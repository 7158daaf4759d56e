"""A blocky heightfield under a motion that came without one.

Rests of feet and hands give levels, swept free space gives an upper bound on every cell, and every
cell takes the level of the nearest rest that its bound allows. This is done on a fine grid that is
then pooled to the wanted cell size; the phase of the coarse grid is chosen so that edges fall
between cells where they can. What no contact shows (gaps jumped over, the width of blocks) is a
guess and has low confidence.

Legend: T frames, L levels, (X, Y) cells; metres, world frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.errors import InputError
from parc_ray.motion.clip import LoopMode
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.resample import sample_frames
from parc_ray.synthesis.contact_events import (
    ContactEvent,
    EventConfig,
    bottom_points,
    foot_events,
    hand_events,
)
from parc_ray.terrain.heightfield import Heightfield


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How a terrain is inferred. Measured, see docs/design/data.md, Inferred terrain."""

    cell_size: float = 0.4
    """m, cell size of the result. PARC: 0.4. With 0.2 edges fit better."""
    margin: float = 1.2
    """m of ground around everything that the body passes over."""
    rate_hz: float = 60.0
    """Rate at which the motion is looked at."""
    fine_cell: float = 0.1
    """m, fine grid; the cell size must be a multiple of it."""
    events: EventConfig = field(default_factory=EventConfig)
    """When feet and hands count as resting."""
    level_tolerance: float = 0.06
    """m, foot rests within this height are one level."""
    hand_snap: float = 0.08
    """m, a hand rest this close to a foot level belongs to it."""
    hand_tolerance: float = 0.12
    """m, hand rests within this height are one level."""
    headroom: float = 0.03
    """m, how far ground may reach into the space that the body swept."""
    hand_block: float = 0.45
    """m, how far a level that only hands touched reaches from there."""
    known_distance: float = 0.5
    """m from the nearest rest at which confidence has fallen to one half."""

    def __post_init__(self) -> None:
        """Check the cell sizes."""
        ratio = self.cell_size / self.fine_cell
        if self.fine_cell <= 0 or ratio < 0.999 or abs(ratio - round(ratio)) > 1e-6:
            raise InputError(
                f"cell_size: {self.cell_size:g} m; multiples of the fine cell "
                f"({self.fine_cell:g} m) are allowed; choose 0.1, 0.2, 0.3, 0.4 ..."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class TerrainEstimate:
    """What was inferred."""

    terrain: Heightfield
    """The ground, with confidence per cell."""
    levels: tuple[float, ...]
    """m, ascending heights of the levels found."""
    foot_levels: tuple[float, ...]
    """m, those among them that feet stood on."""
    events: tuple[ContactEvent, ...]
    """The rests that were used."""

    @property
    def floor(self) -> float:
        """Level that counts as the floor: the one within 0.25 m of zero, else the lowest."""
        near = [level for level in self.levels if abs(level) <= 0.25]
        return min(near, key=abs) if near else min(self.levels, default=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _FineGrid:
    """The fine grid and the lowest body point ever above each of its cells."""

    low: np.ndarray
    """(2,) m, lower corner."""
    cell: float
    """m."""
    bound: np.ndarray
    """(X, Y) m, infinite where nothing passed."""

    def cells(self, xy: np.ndarray) -> np.ndarray:
        """Cell indices (K, 2) of points (K, 2)."""
        index = np.floor((xy - self.low) / self.cell).astype(np.int64)
        return np.clip(index, 0, np.array(self.bound.shape) - 1)


def infer_terrain(
    character: Character,
    frames: MotionFrames,
    fps: float,
    loop: LoopMode = "clamp",
    config: InferenceConfig | None = None,
) -> TerrainEstimate:
    """Infer the ground under a motion.

    Args:
        character: the character.
        frames: (T, ...) world frames; their contact labels are not read.
        fps: frames per second.
        loop: loop mode of the motion (a loop is looked at over one cycle).
        config: thresholds and cell size.

    Returns:
        The terrain and the levels it is made of. A motion without any rest gives flat ground at
        the lowest point that the body reached, with confidence 0.
    """
    config = config or InferenceConfig()
    body_pos, body_rot = _bodies(character, frames, fps, config.rate_hz)
    grid = _fine_grid(character, body_pos, body_rot, config)
    feet, supported = foot_events(character, body_pos, body_rot, config.rate_hz, config.events)
    hands = hand_events(character, body_pos, body_rot, supported, config.rate_hz, config.events)
    feet = [e for e in feet if _is_free(e, grid, config)]
    hands = [e for e in hands if _is_free(e, grid, config)]
    foot_levels = _levels(feet, config.level_tolerance)
    levels, hand_only, used = _all_levels(foot_levels, feet, hands, config)
    if not levels:
        floor = float(grid.bound[np.isfinite(grid.bound)].min())
        levels, hand_only = [floor], [False]
    votes = _votes(used, levels, grid)
    label = _label(votes, np.array(levels), np.array(hand_only), grid, config)
    terrain = _pool(votes, label, np.array(levels), grid, config)
    return TerrainEstimate(
        terrain=terrain,
        levels=tuple(levels),
        foot_levels=tuple(foot_levels),
        events=tuple(used),
    )


def _bodies(
    character: Character, frames: MotionFrames, fps: float, rate_hz: float
) -> tuple[Tensor, Tensor]:
    """Body positions (T', B, 3) and rotations (T', B, 4) at ``rate_hz``, float64."""
    frames = frames.to(torch.float64)
    duration = (frames.num_frames - 1) / fps
    times = torch.arange(int(duration * rate_hz + 1e-6) + 1, dtype=torch.float64) / rate_hz
    dense = sample_frames(character.skeleton, frames, fps, times)
    return fk_from_dof(character.skeleton, dense.root_pos, dense.root_rot, dense.dof)


def _fine_grid(
    character: Character, body_pos: Tensor, body_rot: Tensor, config: InferenceConfig
) -> _FineGrid:
    parts = [place_points(surface_points(character, "full"), body_pos, body_rot)]
    parts += [
        bottom_points(geom, body_pos[:, geom.body], body_rot[:, geom.body])
        for geom in character.geoms
    ]
    points = torch.cat(parts, dim=1).reshape(-1, 3).numpy()
    cell, coarse = config.fine_cell, config.cell_size
    low = np.floor((points[:, :2].min(0) - config.margin) / coarse) * coarse
    high = np.ceil((points[:, :2].max(0) + config.margin) / coarse) * coarse
    # one coarse cell more on each side leaves room to shift the coarse grid by any phase
    low, high = low - coarse, high + coarse
    shape = np.round((high - low) / cell).astype(int)
    bound = np.full(shape, np.inf)
    index = np.floor((points[:, :2] - low) / cell).astype(np.int64)
    np.minimum.at(bound, (index[:, 0], index[:, 1]), points[:, 2])
    return _FineGrid(low=low, cell=cell, bound=bound)


def _is_free(event: ContactEvent, grid: _FineGrid, config: InferenceConfig) -> bool:
    """Whether the body never swept through the ground that the event claims, over most of it."""
    cells = grid.cells(event.xy)
    bound = grid.bound[cells[:, 0], cells[:, 1]]
    return bool((event.height <= bound + config.headroom + 0.02).mean() > 0.5)


def _levels(events: Sequence[ContactEvent], tolerance: float) -> list[float]:
    """Heights of the groups of events that lie within ``tolerance``, weighted by duration."""
    ordered = sorted(events, key=lambda e: e.height)
    groups: list[list[ContactEvent]] = []
    for event in ordered:
        if groups and event.height - _mean_height(groups[-1]) <= tolerance:
            groups[-1].append(event)
        else:
            groups.append([event])
    return [_mean_height(group) for group in groups]


def _mean_height(group: Sequence[ContactEvent]) -> float:
    weights = np.array([e.stop - e.start for e in group], dtype=np.float64)
    heights = np.array([e.height for e in group])
    return float((weights * heights).sum() / weights.sum())


def _all_levels(
    foot_levels: list[float],
    feet: list[ContactEvent],
    hands: list[ContactEvent],
    config: InferenceConfig,
) -> tuple[list[float], list[bool], list[ContactEvent]]:
    """Ascending levels, whether only hands touched each, and the events that are used."""
    at_foot_level = [
        e for e in hands if any(abs(e.height - f) <= config.hand_snap for f in foot_levels)
    ]
    own = [e for e in hands if e not in at_foot_level and e.in_flight]
    both = [(level, False) for level in foot_levels]
    both += [(level, True) for level in _levels(own, config.hand_tolerance)]
    both.sort()
    used = [*feet, *at_foot_level, *own]
    return [level for level, _ in both], [hand for _, hand in both], used


def _votes(events: Sequence[ContactEvent], levels: list[float], grid: _FineGrid) -> np.ndarray:
    """Frames (L, X, Y) that rests at each level spend on each fine cell."""
    votes = np.zeros((len(levels), *grid.bound.shape))
    for event in events:
        level = int(np.abs(np.array(levels) - event.height).argmin())
        cells = np.unique(grid.cells(event.xy), axis=0)
        votes[level, cells[:, 0], cells[:, 1]] += event.stop - event.start
    return votes


def _label(
    votes: np.ndarray,
    levels: np.ndarray,
    hand_only: np.ndarray,
    grid: _FineGrid,
    config: InferenceConfig,
) -> np.ndarray:
    """Index of the level (X, Y) of every fine cell."""
    distance = _distance(votes, grid.cell)
    allowed = levels[:, None, None] <= grid.bound + config.headroom
    reach = np.where(hand_only, config.hand_block, np.inf)[:, None, None]
    cost = np.where(allowed & (distance <= reach), distance, np.inf)
    label = cost.argmin(axis=0)
    label[~np.isfinite(cost.min(axis=0))] = 0
    return label


def _distance(votes: np.ndarray, cell: float) -> np.ndarray:
    """Distance (L, X, Y) in m to the nearest cell with a vote for each level."""
    result = np.full(votes.shape, np.inf)
    for level, vote in enumerate(votes):
        if vote.any():
            result[level] = np.asarray(ndimage.distance_transform_edt(vote == 0)) * cell
    return result


def _pool(
    votes: np.ndarray,
    label: np.ndarray,
    levels: np.ndarray,
    grid: _FineGrid,
    config: InferenceConfig,
) -> Heightfield:
    """The coarse terrain whose grid phase and levels contradict the evidence least."""
    size = round(config.cell_size / grid.cell)
    cost = _level_cost(votes, label, levels, grid, config)
    best: tuple[float, tuple[int, int], np.ndarray] | None = None
    for phase in np.ndindex(size, size):
        pooled = _block_sum(cost, size, phase)
        total = float(pooled.min(axis=0).sum())
        if best is None or total < best[0] - 1e-9:
            best = (total, phase, pooled.argmin(axis=0))
    assert best is not None
    _, phase, chosen = best
    blocks = tuple(slice(p, p + n * size) for p, n in zip(phase, chosen.shape, strict=True))
    distance = _distance(votes, grid.cell).min(axis=0)[blocks]
    near = distance.reshape(chosen.shape[0], size, chosen.shape[1], size).min(axis=(1, 3))
    confidence = np.exp2(-near / config.known_distance)
    origin = grid.low + (np.array(phase) + size / 2) * grid.cell
    return Heightfield(
        heights=torch.from_numpy(levels[chosen].astype(np.float32)),
        origin=torch.from_numpy(origin.astype(np.float32)),
        cell_size=config.cell_size,
        confidence=torch.from_numpy(confidence.astype(np.float32)),
    )


def _level_cost(
    votes: np.ndarray,
    label: np.ndarray,
    levels: np.ndarray,
    grid: _FineGrid,
    config: InferenceConfig,
) -> np.ndarray:
    """Cost (L, X, Y) of giving a fine cell each level, in m of contradicted evidence."""
    above = levels[:, None, None]
    sunk = np.maximum(above - grid.bound - config.headroom, 0.0)
    differs = np.minimum(np.abs(above - levels[label]), 0.5)
    seconds = votes / config.rate_hz
    missed = sum(
        np.minimum(seconds[k], 0.5) * np.minimum(np.abs(levels - levels[k]), 0.5)[:, None, None]
        for k in range(len(levels))
    )
    return 4.0 * sunk + 0.25 * differs + 8.0 * missed


def _block_sum(values: np.ndarray, size: int, phase: tuple[int, int]) -> np.ndarray:
    """Sums (L, X', Y') over ``size`` x ``size`` blocks that start at ``phase``."""
    counts = [(n - p) // size for n, p in zip(values.shape[1:], phase, strict=True)]
    x, y = (slice(p, p + n * size) for p, n in zip(phase, counts, strict=True))
    return values[:, x, y].reshape(len(values), counts[0], size, counts[1], size).sum(axis=(2, 4))
