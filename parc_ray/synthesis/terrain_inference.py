"""A blocky heightfield under a motion that came without one.

Rests of feet and hands give levels (``inferred_levels``), swept free space gives an upper bound on
every cell, and every cell takes the level of the nearest rest that its bound allows
(``inferred_grid``). The grid is then moved until its walls stand where bodies leaned on them
(``wall_fit``). What no contact shows (depth and borders of gaps, the width of blocks) is a guess
and has low confidence.

Legend: T frames, X, Y cells; metres, world frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import SurfacePoints, place_points, sole_points, surface_points
from parc_ray.motion.clip import LoopMode
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.resample import sample_frames
from parc_ray.synthesis.contact_events import (
    ContactEvent,
    bottom_points,
    foot_events,
    hand_events,
    runs,
    speeds,
)
from parc_ray.synthesis.inference_config import InferenceConfig
from parc_ray.synthesis.inferred_grid import FineGrid, Pit, gather, make_grid, pool
from parc_ray.synthesis.inferred_levels import Level, find_levels
from parc_ray.synthesis.wall_fit import WallPoints, fit_walls
from parc_ray.terrain.heightfield import Heightfield

__all__ = ["InferenceConfig", "TerrainEstimate", "describe", "figures", "infer_terrain"]

_SHORTEST_FLIGHT_S = 0.1
_WALL_RATE_HZ = 30.0


@dataclass(frozen=True, kw_only=True, eq=False)
class TerrainEstimate:
    """What was inferred."""

    terrain: Heightfield
    """The ground, with confidence per cell."""
    levels: tuple[float, ...]
    """m, ascending heights of the levels found, without pits."""
    foot_levels: tuple[float, ...]
    """m, those among them that feet stood on."""
    events: tuple[ContactEvent, ...]
    """The rests that were used."""
    summary: tuple[Level, ...] = ()
    """Per level: height, what touched it, for how long, how sure it is. Empty without rests."""
    gap: float | None = None
    """m, height given to pits under flights (a guess); None without pits."""

    @property
    def floor(self) -> float:
        """Level that counts as the floor: the one within 0.25 m of zero, else the lowest."""
        near = [level for level in self.levels if abs(level) <= 0.25]
        return min(near, key=abs) if near else min(self.levels, default=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Motion:
    """Bodies of a motion at the rate that it is looked at."""

    pos: Tensor
    """(T, B, 3) m, float64."""
    rot: Tensor
    """(T, B, 4) xyzw."""
    surface: Tensor
    """(T, P, 3) m, surface points."""


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
    motion = _bodies(character, frames, fps, config.rate_hz)
    points = _all_points(character, motion)
    grid = make_grid(points, config)
    rate, rules = config.rate_hz, config.events
    feet, supported = foot_events(character, motion.pos, motion.rot, rate, rules)
    hands = hand_events(character, motion.pos, motion.rot, supported, rate, rules)
    feet = [e for e in feet if _is_free(e, grid, config)]
    hands = [e for e in hands if _is_free(e, grid, config)]
    found = find_levels(feet, hands, config)
    if not found:
        return _without_rest(grid, config)
    pit = _pit(character, motion, found, supported, grid, config)
    evidence = gather(found, pit, grid, config)
    pooled = pool(evidence, grid, config)
    if config.phase is None and len(evidence.levels) > 1:
        walls = _wall_points(character, motion, found, rate)
        heights = evidence.levels[pooled.label]
        shift = fit_walls(heights, pooled.origin, config.cell_size, walls)
        if shift.any():
            x, y = (pooled.origin + shift).tolist()
            config = replace(config, phase=(x, y))
            grid = make_grid(points, config)
            evidence = gather(found, pit, grid, config)
            pooled = pool(evidence, grid, config)
    heights = evidence.levels[pooled.label]
    return TerrainEstimate(
        terrain=Heightfield(
            heights=torch.from_numpy(heights.astype(np.float32)),
            origin=torch.from_numpy(pooled.origin.astype(np.float32)),
            cell_size=config.cell_size,
            confidence=torch.from_numpy(pooled.confidence.astype(np.float32)),
        ),
        levels=tuple(level.height for level in found),
        foot_levels=tuple(level.height for level in found if level.kind == "foot"),
        events=tuple(event for level in found for event in level.events),
        summary=tuple(found),
        gap=None if pit is None else pit.height,
    )


def figures(estimate: TerrainEstimate) -> dict[str, float]:
    """Figures for a clip's metrics.

    Returns:
        ``inferred_levels`` and ``inferred_hand_levels``, counts; ``inferred_contact_s``, s of all
        rests; ``inferred_confidence``, mean confidence of the cells under the rests, weighted by
        their length (0 without rests); ``inferred_known``, share of cells that are known better
        than not (confidence of one half or more); ``inferred_gap``, 1 where a pit was put.
    """
    known = estimate.terrain.confidence
    under, seconds = 0.0, sum(level.seconds for level in estimate.summary)
    if known is not None and estimate.events:
        weights = np.array([e.stop - e.start for e in estimate.events], dtype=np.float64)
        means = []
        for event in estimate.events:
            ij = estimate.terrain.index_of(torch.from_numpy(event.xy).to(known.dtype))
            means.append(float(known[ij[:, 0], ij[:, 1]].mean()))
        under = float((weights * means).sum() / weights.sum())
    return {
        "inferred_levels": float(len(estimate.levels)),
        "inferred_hand_levels": float(sum(v.kind == "hand" for v in estimate.summary)),
        "inferred_contact_s": seconds,
        "inferred_confidence": under,
        "inferred_known": 0.0 if known is None else float((known >= 0.5).float().mean()),
        "inferred_gap": float(estimate.gap is not None),
    }


def describe(estimate: TerrainEstimate, base: float = 0.0) -> str:
    """One line on what was inferred and how sure it is; heights in m above ``base``."""
    if not estimate.summary:
        return "no rest of a foot or hand found, flat ground assumed, confidence 0"
    parts = [
        f"{level.height - base:.2f} ({level.kind} {level.seconds:.1f} s, {level.confidence:.2f})"
        for level in estimate.summary
    ]
    pit = "" if estimate.gap is None else f"; pit at {estimate.gap - base:.2f} guessed"
    confidence = figures(estimate)["inferred_confidence"]
    return f"levels {', '.join(parts)} m{pit}; confidence under contacts {confidence:.2f}"


def _bodies(character: Character, frames: MotionFrames, fps: float, rate_hz: float) -> _Motion:
    """Bodies at ``rate_hz``, float64."""
    frames = frames.to(torch.float64)
    duration = (frames.num_frames - 1) / fps
    times = torch.arange(int(duration * rate_hz + 1e-6) + 1, dtype=torch.float64) / rate_hz
    dense = sample_frames(character.skeleton, frames, fps, times)
    pos, rot = fk_from_dof(character.skeleton, dense.root_pos, dense.root_rot, dense.dof)
    surface = place_points(surface_points(character, "full"), pos, rot)
    return _Motion(pos=pos, rot=rot, surface=surface)


def _all_points(character: Character, motion: _Motion) -> np.ndarray:
    """Surface points and lowest points of all geoms in all frames, (K, 3) m."""
    parts = [motion.surface]
    parts += [
        bottom_points(geom, motion.pos[:, geom.body], motion.rot[:, geom.body])
        for geom in character.geoms
    ]
    return torch.cat(parts, dim=1).reshape(-1, 3).numpy()


def _is_free(event: ContactEvent, grid: FineGrid, config: InferenceConfig) -> bool:
    """Whether the body never swept through the ground that the event claims, over most of it."""
    cells = grid.cells(event.xy)
    bound = grid.bound[cells[:, 0], cells[:, 1]]
    return bool((event.height <= bound + config.headroom + 0.02).mean() > 0.5)


def _without_rest(grid: FineGrid, config: InferenceConfig) -> TerrainEstimate:
    """Flat ground at the lowest point, nothing of it known."""
    size = round(config.cell_size / grid.cell)
    floor = float(grid.bound[np.isfinite(grid.bound)].min())
    shape = tuple(n // size for n in grid.bound.shape)
    return TerrainEstimate(
        terrain=Heightfield(
            heights=torch.full(shape, floor, dtype=torch.float32),
            origin=torch.from_numpy((grid.low + config.cell_size / 2).astype(np.float32)),
            cell_size=config.cell_size,
            confidence=torch.zeros(shape),
        ),
        levels=(floor,),
        foot_levels=(),
        events=(),
    )


def _pit(
    character: Character,
    motion: _Motion,
    levels: Sequence[Level],
    supported: np.ndarray,
    grid: FineGrid,
    config: InferenceConfig,
) -> Pit | None:
    """Pits under flights, None if there are none."""
    lowest = levels[0].height
    sole = _of_bodies(sole_points(character), motion, character.feet)
    speed = speeds(sole, config.rate_hz)
    touching = (np.abs(sole[..., 2] - lowest) < config.gap_edge) & (speed < config.gap_touch)
    busy = supported | touching.any(axis=1)
    for event in (e for level in levels for e in level.events):
        busy[event.start : event.stop] = True
    places: list[np.ndarray] = []
    for start, stop in runs(~busy, max(1, round(_SHORTEST_FLIGHT_S * config.rate_hz))):
        part = sole[start:stop].reshape(-1, 3)
        if config.gaps != "none" and part[:, 2].min() < lowest - config.gap_dip:
            places.append(part[part[:, 2] < lowest - config.gap_edge, :2])
        if config.gaps == "jumped" and stop - start >= config.jump_s * config.rate_hz:
            third = (stop - start) // 3
            places.append(motion.pos[start + third : stop - third, 0, :2].numpy())
    xy = np.concatenate(places) if places else np.empty((0, 2))
    if not len(xy):
        return None
    cells = grid.cells(xy)
    under = min(lowest, float(grid.bound[cells[:, 0], cells[:, 1]].min()))
    return Pit(height=under - config.gap_depth, xy=xy, edge=sole[touching][:, :2])


def _of_bodies(points: SurfacePoints, motion: _Motion, bodies: Sequence[int]) -> np.ndarray:
    """Placed points (T, n, 3) of some bodies."""
    keep = torch.isin(points.body, torch.tensor(list(bodies)))
    part = SurfacePoints(points.body[keep], points.offset[keep], points.num_bodies)
    return place_points(part, motion.pos, motion.rot).numpy()


def _wall_points(
    character: Character, motion: _Motion, levels: Sequence[Level], rate_hz: float
) -> WallPoints:
    """Points of feet and hands, and of rests, for the fit of the walls."""
    ranges = surface_points(character, "full").point_ranges
    every = max(1, round(rate_hz / _WALL_RATE_HZ))
    pos, speed, group = [], [], []
    for limb, body in enumerate((*character.feet, *character.hands)):
        part = motion.surface[:, ranges[body]].numpy()
        across = np.gradient(part[..., :2], 1.0 / rate_hz, axis=0)[::every]
        part = part[::every]
        pos.append(part.reshape(-1, 3))
        speed.append(across.reshape(-1, 2))
        number = np.arange(len(part)) + limb * len(part)
        group.append(np.repeat(number, part.shape[1]))
    rests = [(level, event) for level in levels for event in level.events]
    counts = [len(event.xy) for _, event in rests]
    lengths = [(event.stop - event.start) / every / len(event.xy) for _, event in rests]
    return WallPoints(
        pos=np.concatenate(pos),
        speed=np.concatenate(speed),
        group=np.concatenate(group),
        rest_xy=np.concatenate([event.xy for _, event in rests]),
        rest_height=np.repeat([level.height for level, _ in rests], counts),
        rest_weight=np.repeat(lengths, counts),
    )
