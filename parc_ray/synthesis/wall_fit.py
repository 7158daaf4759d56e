"""Moving an inferred grid sideways until its walls stand where bodies leaned on them.

All walls of a heightfield share one grid, so two numbers place them all. A foot braced on a wall
hardly moves across it while its surface ends in a plane that nothing ever passes; that plane is the
wall. Legend: P points (every surface point of feet and hands in every frame); metres, world frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

REACH_M = 0.3
"""Farthest shift along an axis: a cell of 0.2 m that was wrongly given away, and a fine cell."""

_STEP_M = 0.01
_TOUCH_M = 0.01
_STILL_M_S = 0.3
_SUNK_M = 0.02
_DEEP_M = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class WallPoints:
    """Surface points of feet and hands, one limb and frame after the other."""

    pos: np.ndarray
    """(P, 3) m."""
    speed: np.ndarray
    """(P, 2) m/s along x and y."""
    group: np.ndarray
    """(P,) number of the limb and frame that a point belongs to."""
    rest_xy: np.ndarray
    """(R, 2) m, points of rests."""
    rest_height: np.ndarray
    """(R,) m, levels of these rests."""
    rest_weight: np.ndarray
    """(R,) frames that each point stands for."""


def fit_walls(
    heights: np.ndarray, origin: np.ndarray, cell: float, points: WallPoints
) -> np.ndarray:
    """Shift (2,) in m of the grid that most touches of walls and fewest penetrations agree with.

    Args:
        heights: (I, J) m.
        origin: (2,) m, centre of cell (0, 0).
        cell: m.
        points: where limbs and rests were.

    Returns:
        The shift of ``origin``; zero where nothing leaned on a wall.
    """
    near = _beside_walls(heights, origin, cell, points.pos)
    shift = np.zeros(2)
    if not near.any():
        return shift
    pos, speed = points.pos[near], points.speed[near]
    _, group = np.unique(points.group[near], return_inverse=True)
    steps = np.arange(-round(REACH_M / _STEP_M), round(REACH_M / _STEP_M) + 1) * _STEP_M
    steps = steps[np.argsort(np.abs(steps), kind="stable")]
    for axis in (0, 1, 0):
        scores = []
        for step in steps:
            moved = shift.copy()
            moved[axis] = step
            touched, sunk = _agreement(heights, origin + moved, cell, pos, speed, group, axis)
            missed = _missed(heights, origin + moved, cell, points)
            scores.append(touched - sunk - missed)
        best = int(np.argmax(scores))
        if scores[best] > scores[0] + 1.0 and best > 0:
            shift[axis] = _middle(steps, np.array(scores), best)
    return shift


def _middle(steps: np.ndarray, scores: np.ndarray, best: int) -> float:
    """Mean of the equally good steps next to the best one."""
    good = np.sort(steps[scores >= scores[best] - 1e-9])
    close = good[np.abs(good - steps[best]) <= 2 * _TOUCH_M + 1e-9]
    return float(close.mean())


def _beside_walls(
    heights: np.ndarray, origin: np.ndarray, cell: float, pos: np.ndarray
) -> np.ndarray:
    """Mask (P,) of points below the top of any of the 3 x 3 columns around them."""
    padded = np.pad(heights, 1, mode="edge")
    rows = np.maximum(np.maximum(padded[2:], padded[:-2]), padded[1:-1])
    highest = np.maximum(np.maximum(rows[:, 2:], rows[:, :-2]), rows[:, 1:-1])
    i, j = _index(heights, origin, cell, pos)
    return pos[:, 2] < highest[i, j] - _SUNK_M


def _index(
    heights: np.ndarray, origin: np.ndarray, cell: float, xy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    ij = np.round((xy[:, :2] - origin) / cell).astype(np.int64)
    ij = np.clip(ij, 0, np.array(heights.shape) - 1)
    return ij[:, 0], ij[:, 1]


def _agreement(
    heights: np.ndarray,
    origin: np.ndarray,
    cell: float,
    pos: np.ndarray,
    speed: np.ndarray,
    group: np.ndarray,
    axis: int,
) -> tuple[float, float]:
    """Limb-frames that touch a wall across ``axis``, and those that are inside one (by depth)."""
    i, j = _index(heights, origin, cell, pos)
    here = heights[i, j]
    place = (i, j)[axis]
    within = pos[:, axis] - (origin[axis] + place * cell) + cell / 2
    sides = []
    for way in (-1, 1):
        other = np.clip(place + way, 0, heights.shape[axis] - 1)
        beside = heights[other, j] if axis == 0 else heights[i, other]
        sides.append((beside, within if way < 0 else cell - within))
    inside = here > pos[:, 2] + _SUNK_M
    depth = here - pos[:, 2]
    gap = np.full(len(pos), np.inf)
    for beside, to_face in sides:
        wall = beside > pos[:, 2] + _SUNK_M
        gap = np.where(wall & ~inside, np.minimum(gap, to_face), gap)
        depth = np.where(wall, depth, np.minimum(depth, to_face))
    depth = np.where(inside, np.minimum(depth, _DEEP_M), 0.0)
    count = int(group.max()) + 1
    sunk = np.zeros(count)
    np.maximum.at(sunk, group, depth)
    still = np.abs(speed[:, axis]) < _STILL_M_S
    touch = np.zeros(count, dtype=bool)
    touch[group[(gap <= _TOUCH_M) & still]] = True
    touch &= sunk <= _TOUCH_M
    return float(touch.sum()), float(np.clip(sunk - _TOUCH_M, 0.0, None).sum() / _DEEP_M)


def _missed(heights: np.ndarray, origin: np.ndarray, cell: float, points: WallPoints) -> float:
    """Frames of rests whose points lie on ground of another height."""
    i, j = _index(heights, origin, cell, points.rest_xy)
    wrong = np.abs(heights[i, j] - points.rest_height) > _DEEP_M
    return float((points.rest_weight * wrong).sum())
