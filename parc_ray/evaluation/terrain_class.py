"""What a motion's ground asks of the body: level, step, drop, climb or gap.

The ground is read along the path (its nodes where the clip has them, else the root's track): one
height per cell that the line crosses. The hardest thing met names the class.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parc_ray.motion.clip import MotionClip
from parc_ray.synthesis.edge_kinds import WALK_STEP_M
from parc_ray.terrain.heightfield import Heightfield

CLASSES = ("level", "step", "drop", "climb", "gap")
"""From the easiest to the hardest; a line belongs to the hardest class whose rule it meets."""
LEVEL_M = 0.1
"""Changes of height below this are none, metres."""
GAP_DEPTH_M = 0.4
"""A gap is lower than the ground before and after it by this or more, metres."""
GAP_WIDTH_M = 3.0
"""Widest gap, metres: the longest jump of the planner."""


def classify_clip(clip: MotionClip) -> str:
    """Class of the ground under a clip's path."""
    line = clip.path_nodes if clip.path_nodes is not None else clip.frames.root_pos
    return classify_line(clip.terrain, line[:, :2])


def classify_line(terrain: Heightfield, line: Tensor) -> str:
    """Class of the ground along a line.

    gap: somewhere the ground lies 0.4 m or more below both what came before and what comes after
    within 3 m; climb: a rise of more than 0.3 m from one sample to the next; drop: a fall likewise;
    step: any change of 0.1 m or more; level otherwise.

    Args:
        terrain: the ground.
        line: (K, 2) world metres, corners of the line.
    """
    step = terrain.cell_size / 4.0
    heights = _profile(terrain, line, step)
    change = np.diff(heights)
    if _has_gap(heights, max(1, round(GAP_WIDTH_M / step))):
        return "gap"
    if (change > WALK_STEP_M + 1e-4).any():
        return "climb"
    if (change < -WALK_STEP_M - 1e-4).any():
        return "drop"
    return "step" if (np.abs(change) >= LEVEL_M - 1e-4).any() else "level"


def class_shares(classes: Iterable[str]) -> dict[str, float]:
    """Share of each class among ``classes``; all 0 where there is none."""
    found = list(classes)
    return {name: found.count(name) / len(found) if found else 0.0 for name in CLASSES}


def coverage(classes: Iterable[str], finished: Iterable[bool]) -> float:
    """Share of the classes that occur of which at least one motion finished; NaN without any."""
    pairs = list(zip(classes, finished, strict=True))
    present = {name for name, _ in pairs}
    done = {name for name, ok in pairs if ok}
    return len(done) / len(present) if present else float("nan")


def _profile(terrain: Heightfield, line: Tensor, step: float) -> NDArray[np.float64]:
    """Ground heights (S,), m, at steps of ``step`` m along a line (K, 2)."""
    points = line.double().cpu().numpy()
    lengths = np.linalg.norm(np.diff(points, axis=0), axis=1) if len(points) > 1 else np.zeros(0)
    arc = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.append(np.arange(0.0, arc[-1], step), arc[-1])
    samples = np.stack([np.interp(at, arc, points[:, axis]) for axis in (0, 1)], axis=1)
    return terrain.height_at(torch.as_tensor(samples, dtype=torch.float32)).double().numpy()


def _has_gap(heights: NDArray[np.float64], width: int) -> bool:
    """Whether a sample lies 0.4 m below a former and a later one that are at most ``width`` apart.

    Both sides are looked for within ``width`` samples of each other.
    """
    for left in range(len(heights) - 2):
        within = heights[left + 1 : left + 1 + width]
        low = np.minimum.accumulate(within)
        brim = np.minimum(heights[left], within)
        if (brim[1:] - low[:-1] >= GAP_DEPTH_M - 1e-4).any():
            return True
    return False
