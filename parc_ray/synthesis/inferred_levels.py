"""Heights of the ground from rests: grouped, freed of braced feet, put on regular steps.

Legend: L levels; metres, seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np

from parc_ray.synthesis.contact_events import ContactEvent
from parc_ray.synthesis.inference_config import InferenceConfig

HAND_CERTAINTY = 0.5
"""Confidence of a level that only hands touched, however long: its top is known, not its extent."""

_MIN_STEP_M = 0.1
_MAX_STEP_M = 0.5
_CHANCE = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """One height of the ground and the rests that show it."""

    height: float
    """m."""
    kind: Literal["foot", "hand"]
    """Foot where any foot stood on it, hand where only hands touched it."""
    events: tuple[ContactEvent, ...]
    """Rests on it."""
    seconds: float
    """s that bodies rested on it, added up."""
    confidence: float
    """0 to 1: seconds of contact over the seconds that make it certain; halved for hands alone."""


def find_levels(
    feet: Sequence[ContactEvent], hands: Sequence[ContactEvent], config: InferenceConfig
) -> list[Level]:
    """Ascending levels of the rests.

    Foot rests within ``level_tolerance`` are one level. A hand joins a foot level within
    ``hand_snap``; other hands make levels of their own if they bore the body.

    Args:
        feet: rests of feet.
        hands: rests of hands.
        config: tolerances.
    """
    groups = _groups(feet, config.level_tolerance)
    heights = [mean_height(group) for group in groups]
    own: list[ContactEvent] = []
    for event in hands:
        near = [abs(event.height - height) for height in heights]
        if near and min(near) <= config.hand_snap:
            groups[near.index(min(near))].append(event)
        elif event.bears:
            own.append(event)
    found = [_level(h, "foot", g, config) for h, g in zip(heights, groups, strict=True)]
    found += [
        _level(mean_height(g), "hand", g, config) for g in _groups(own, config.hand_tolerance)
    ]
    found = _without_braces(sorted(found, key=lambda level: level.height), config)
    return _on_steps(found, config.lattice_tolerance)


def mean_height(group: Sequence[ContactEvent]) -> float:
    """Mean height in m of rests, weighted by their durations."""
    weights = np.array([e.stop - e.start for e in group], dtype=np.float64)
    heights = np.array([e.height for e in group])
    return float((weights * heights).sum() / weights.sum())


def regular_heights(heights: np.ndarray, seconds: np.ndarray, tolerance: float) -> np.ndarray:
    """Heights (L,) with those that lie on evenly spaced steps put onto them.

    Two heights and a number of steps between them give a candidate; the candidate on which other
    heights are least likely to lie by chance wins, if that is unlikely over all candidates tried.

    Args:
        heights: (L,) m, ascending.
        seconds: (L,) s of contact of each, the weights of the fit.
        tolerance: m, how far a height may be from its step.
    """
    count, best, tried = len(heights), None, 0
    least = np.inf
    for i, j in combinations(range(count), 2):
        for between in range(1, count + 2):
            step = (heights[j] - heights[i]) / between
            if not _MIN_STEP_M <= step <= _MAX_STEP_M:
                continue
            tried += 1
            index = np.round((heights - heights[i]) / step)
            on = np.abs(heights - heights[i] - step * index) <= tolerance
            others = int(on.sum()) - 2
            chance = comb(count - 2, others) * (2.0 * tolerance / step) ** others
            if chance < least * (1.0 - 1e-9):
                least, best = chance, (index, on)
    if best is None or least * tried > _CHANCE:
        return heights
    index, on = best
    fitted = np.polyval(np.polyfit(index[on], heights[on], 1, w=np.sqrt(seconds[on])), index)
    return np.where(on & (np.abs(fitted - heights) <= tolerance), fitted, heights)


def _groups(events: Sequence[ContactEvent], tolerance: float) -> list[list[ContactEvent]]:
    """Events whose heights lie within ``tolerance`` of their group's mean."""
    groups: list[list[ContactEvent]] = []
    for event in sorted(events, key=lambda e: e.height):
        if groups and event.height - mean_height(groups[-1]) <= tolerance:
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def _level(
    height: float,
    kind: Literal["foot", "hand"],
    group: Sequence[ContactEvent],
    config: InferenceConfig,
) -> Level:
    seconds = sum(e.stop - e.start for e in group) / config.rate_hz
    certain = min(1.0, seconds / config.certain_s)
    return Level(
        height=height,
        kind=kind,
        events=tuple(group),
        seconds=seconds,
        confidence=certain if kind == "foot" else HAND_CERTAINTY * certain,
    )


def _without_braces(levels: list[Level], config: InferenceConfig) -> list[Level]:
    """Levels without those of a foot that pushed off a wall for a moment.

    A foot that climbs may be slow and flat enough to look like a rest. It then has one short rest
    at its height, right at the foot of something much higher that is climbed.
    """
    kept: list[Level] = []
    for level in levels:
        higher = [o for o in levels if o.height >= level.height + config.brace_rise]
        brief = len(level.events) == 1 and level.seconds < config.brace_s
        if level.kind == "foot" and brief and higher:
            wall = np.concatenate([e.xy for other in higher for e in other.events])
            way = level.events[0].xy[:, None] - wall
            if np.hypot(way[..., 0], way[..., 1]).min() <= config.brace_reach:
                continue
        kept.append(level)
    return kept


def _on_steps(levels: list[Level], tolerance: float) -> list[Level]:
    feet = [i for i, level in enumerate(levels) if level.kind == "foot"]
    heights = regular_heights(
        np.array([levels[i].height for i in feet]),
        np.array([levels[i].seconds for i in feet]),
        tolerance,
    )
    moved = list(levels)
    for i, height in zip(feet, heights, strict=True):
        moved[i] = replace(levels[i], height=float(height))
    return moved
