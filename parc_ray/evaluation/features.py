"""Motions as points of a small space, in which sets of motions are compared.

A clip is cut into windows of half a second; each is described by mean and deviation over its frames
of root height above the ground, root velocity and turn rate in the heading frame, and the positions
of all other bodies relative to the root in the heading frame. A ``FeatureSpace`` is fitted on a
reference set (D0): principal components, each scaled to deviation one there.

Legend: T frames, W windows, F features, K components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import heading_angle, rotate_xy, wrap_angle
from parc_ray.motion.clip import MotionClip

FloatArray = NDArray[np.float64]
WINDOW_S = 0.5
"""Length of a window, s (PARC's window of 15 frames at 30 fps)."""
HOP_S = 1.0 / 6.0
"""Distance of window starts, s (5 frames at 30 fps)."""
COMPONENTS = 16
"""Most principal components of a space."""


def frame_features(clip: MotionClip, character: Character) -> Tensor:
    """What the windows average: (T - 1, 5 + 3 (B - 1)).

    Height of the root above the ground (m), root velocity in the heading frame (3, m/s), turn rate
    (rad/s), positions of the other bodies relative to the root in the heading frame (m).
    """
    frames, fps = clip.frames, clip.fps
    pos, _ = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    heading = heading_angle(frames.root_rot)
    height = frames.root_pos[:, 2] - clip.terrain.height_at(frames.root_pos[:, :2])
    moved = frames.root_pos.diff(dim=0) * fps
    velocity = torch.cat((rotate_xy(moved[:, :2], -heading[:-1]), moved[:, 2:]), dim=-1)
    turn = wrap_angle(heading.diff())[:, None] * fps
    local = (pos - pos[:, :1])[:-1, 1:]
    turned = rotate_xy(local[..., :2], -heading[:-1, None])
    bodies = torch.cat((turned, local[..., 2:]), dim=-1).flatten(1)
    return torch.cat((height[:-1, None], velocity, turn, bodies), dim=-1)


def window_features(clip: MotionClip, character: Character) -> FloatArray:
    """(W, F): mean and deviation of the frame features per window; one window for short clips."""
    values = frame_features(clip, character).double()
    length = min(max(1, round(WINDOW_S * clip.fps)), len(values))
    hop = max(1, round(HOP_S * clip.fps))
    windows = values.unfold(0, length, hop)
    mean, deviation = windows.mean(-1), windows.std(-1, correction=0)
    return torch.cat((mean, deviation), dim=-1).numpy()


def windows_of(clips: Sequence[MotionClip], character: Character) -> list[FloatArray]:
    """Windows of every clip with at least two frames."""
    return [window_features(c, character) for c in clips if c.num_frames >= 2]


@dataclass(frozen=True, kw_only=True)
class FeatureSpace:
    """Coordinates in which a reference set has mean 0 and deviation 1 along each axis.

    Attributes:
        mean: (F,) of the reference.
        axes: (K, F) principal directions over deviations, most important first.
    """

    mean: FloatArray
    axes: FloatArray

    @classmethod
    def fit(cls, windows: FloatArray, components: int = COMPONENTS) -> FeatureSpace:
        """The space of a reference set (W, F).

        Features are first scaled to deviation one, so that metres and radians weigh alike; then
        the strongest directions are kept, as many as ``components`` and as the set can show.
        """
        mean = windows.mean(0)
        spread = windows.std(0)
        scale = np.where(spread > 1e-6, 1.0 / np.maximum(spread, 1e-6), 0.0)
        scaled = (windows - mean) * scale
        _, size, directions = np.linalg.svd(scaled, full_matrices=False)
        deviation = size / np.sqrt(len(windows))
        keep = min(components, int((deviation > 1e-3).sum()))
        return cls(mean=mean, axes=directions[:keep] / deviation[:keep, None] * scale)

    def project(self, windows: FloatArray) -> FloatArray:
        """Coordinates (W, K) of windows (W, F)."""
        return (windows - self.mean) @ self.axes.T


def frechet_distance(a: FloatArray, b: FloatArray) -> float:
    """Frechet distance of the Gaussians that two sets (W, K) have.

    |mean a - mean b|^2 + tr(A + B - 2 (A B)^1/2) with their covariances A and B; 0 for equal sets,
    NaN where one has fewer than two windows. Small sets look further apart than they are, as the
    covariances of few windows are too narrow.
    """
    if min(len(a), len(b)) < 2:
        return float("nan")
    gap = a.mean(0) - b.mean(0)
    cov_a, cov_b = (np.atleast_2d(np.cov(x, rowvar=False, bias=True)) for x in (a, b))
    root = _square_root(cov_a)
    cross = np.linalg.eigvalsh(root @ cov_b @ root)
    trace = np.trace(cov_a) + np.trace(cov_b) - 2.0 * np.sqrt(np.maximum(cross, 0.0)).sum()
    return float(max(0.0, gap @ gap + trace))


def nearest_distance(a: FloatArray, b: FloatArray) -> float:
    """Mean distance of the windows of ``a`` (W, K) from the nearest of ``b``, per root of K.

    1 means about one deviation of the reference along every axis. NaN where a set is empty.
    """
    nearest = nearest_distances(a, b)
    return float(nearest.mean()) if len(nearest) else float("nan")


def nearest_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """(W,) distance of each window of ``a`` from the nearest of ``b``, per root of K."""
    if not len(a) or not len(b):
        return np.zeros(0)
    out = [
        np.sqrt(((a[i : i + 256, None] - b[None]) ** 2).sum(-1).min(1))
        for i in range(0, len(a), 256)
    ]
    return np.concatenate(out) / np.sqrt(a.shape[1])


def own_distance(sets: Sequence[FloatArray]) -> float:
    """Mean distance of each clip's windows from the nearest of all other clips (leave one out).

    What ``nearest_distance`` gives for a new set no different from the reference. NaN below two
    clips.
    """
    if len(sets) < 2:
        return float("nan")
    found = [
        nearest_distances(mine, np.concatenate([*sets[:k], *sets[k + 1 :]]))
        for k, mine in enumerate(sets)
    ]
    return float(np.concatenate(found).mean())


def pairwise_diversity(motions: Sequence[Tensor]) -> float:
    """Mean distance, m, of bodies between two motions, over all pairs of motions.

    Motions are body positions (T, B, 3); of a pair the frames that both have are compared. 0 where
    all are equal; NaN for fewer than two.
    """
    found = []
    for k, a in enumerate(motions):
        for b in motions[k + 1 :]:
            length = min(len(a), len(b))
            found.append(float((a[:length] - b[:length]).norm(dim=-1).mean()))
    return sum(found) / len(found) if found else float("nan")


def _square_root(matrix: FloatArray) -> FloatArray:
    """Symmetric root of a positive semi-definite matrix."""
    size, axes = np.linalg.eigh(matrix)
    return (axes * np.sqrt(np.maximum(size, 0.0))) @ axes.T
