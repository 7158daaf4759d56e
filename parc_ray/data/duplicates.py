"""Which clips show the same movement: copies, cuts of one take, mirror images; and splits by take.

Half a second of joint coordinates is a window. Two windows are the same where their root mean
square difference over frames and dofs is below 0.06 rad, mirrored ones too; windows in which
nothing moves say nothing and are left out. A clip is never compared with itself, so the cycles of
a walk do not count. The share of a clip's windows that are found in another clip is their overlap
(docs/design/data.md, Traps).

Windows are compared in the space of their first principal components, where distances are never
greater than the true ones: a k-d tree gives candidates without missing any, which are then
compared in full.

Legend: W windows, F frames of a window, D dofs, K components.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.mirror import mirror_frames

_QUERIES = 512
_MOST_PAIRS = 1 << 16
_FIT_WINDOWS = 4096


@dataclass(frozen=True, kw_only=True)
class OverlapConfig:
    """What counts as the same movement."""

    window_s: float = 0.5
    """s, length of a window: 15 frames at 30 fps."""
    rms_rad: float = 0.06
    """rad, greatest root mean square difference of two windows that are the same."""
    still_rad: float = 0.03
    """rad, windows whose dofs vary by less (root mean square about their mean) are left out."""
    step: int = 2
    """Every how many frames a window is looked for; it is sought among all of the others."""
    components: int = 8
    """Principal components in which candidates are found; results do not depend on it."""
    report_share: float = 0.2
    """Overlap from which two clips are one take, and are reported, 0 to 1."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("window_s", "rms_rad", "step", "components"):
            if not getattr(self, name) > 0:
                value = getattr(self, name)
                raise InputError(f"overlap {name}: {value:g}; more than 0 is allowed; raise it")
        if not 0.0 < self.report_share <= 1.0:
            raise InputError(
                f"overlap report_share: {self.report_share:g}; above 0 to 1 is allowed; use 0.2"
            )


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Two clips that share movement."""

    first: str
    """Id of the clip whose windows were looked for."""
    second: str
    """Id of the clip they were found in."""
    share: float
    """Share of the first clip's windows, 0 to 1."""
    mirrored: bool
    """Whether they were found in the mirror."""

    def text(self) -> str:
        """In words."""
        how = "mirrored in" if self.mirrored else "in"
        return f"{self.first}: {self.share:.0%} {how} {self.second}"


@dataclass(frozen=True, eq=False)
class _Windows:
    """(W, F, D) windows and the clip (W,) each is of."""

    values: Tensor
    clip: np.ndarray


def find_overlaps(
    clips: Sequence[MotionClip], character: Character, config: OverlapConfig | None = None
) -> list[Overlap]:
    """Ordered pairs of clips of which one has ``report_share`` of its windows in the other.

    Args:
        clips: clips of one frame rate.
        character: whose motions they are; where it is not symmetric, mirrors are not looked for.
        config: thresholds.

    Returns:
        One entry per ordered pair and side, greatest share first.

    Raises:
        InputError: clips of different frame rates.
    """
    config = config or OverlapConfig()
    if len(clips) < 2:
        return []
    _check_rates(clips)
    frames = max(2, round(config.window_s * clips[0].fps))
    base = _windows([clip.frames.dof for clip in clips], frames, 1, config)
    if not len(base.values):
        return []
    index = _Index(base, len(clips), config)
    found = _shares(index, base, config.step, mirrored=False, clips=clips, config=config)
    mirrored = _mirrored_dofs(clips, character)
    if mirrored is not None:
        other = _windows(mirrored, frames, 1, config)
        found += _shares(index, other, config.step, mirrored=True, clips=clips, config=config)
    return sorted(found, key=lambda o: (-o.share, o.first, o.second, o.mirrored))


def _check_rates(clips: Sequence[MotionClip]) -> None:
    rates = {round(clip.fps, 3) for clip in clips}
    if len(rates) > 1:
        raise InputError(
            f"clips of {', '.join(f'{r:g}' for r in sorted(rates))} fps: one rate is needed to "
            "compare them; resample them"
        )


def _mirrored_dofs(clips: Sequence[MotionClip], character: Character) -> list[Tensor] | None:
    try:
        return [mirror_frames(character, clip.frames).dof for clip in clips]
    except InputError:
        return None


def _windows(dofs: Sequence[Tensor], frames: int, step: int, config: OverlapConfig) -> _Windows:
    """All windows in which something moves."""
    values: list[Tensor] = []
    owner: list[np.ndarray] = []
    for number, dof in enumerate(dofs):
        if len(dof) < frames:
            continue
        cut = dof.float().unfold(0, frames, step).transpose(1, 2)
        spread = (cut - cut.mean(1, keepdim=True)).square().mean((1, 2)).sqrt()
        keep = spread > config.still_rad
        values.append(cut[keep])
        owner.append(np.full(int(keep.sum()), number))
    if not values:
        return _Windows(torch.zeros(0, frames, 1), np.zeros(0, dtype=np.int64))
    return _Windows(torch.cat(values), np.concatenate(owner))


class _Index:
    """Finds the clips in which windows occur."""

    def __init__(self, base: _Windows, num_clips: int, config: OverlapConfig) -> None:
        """Project all windows and put them into a tree."""
        self.base, self.num_clips = base, num_clips
        size = base.values.shape[1] * base.values.shape[2]
        self.radius = config.rms_rad * float(np.sqrt(size))
        flat = base.values.reshape(len(base.values), -1)
        fit = flat[:: max(1, len(flat) // _FIT_WINDOWS)]
        self.mean = fit.mean(0)
        _, _, axes = torch.linalg.svd(fit - self.mean, full_matrices=False)
        self.axes = axes[: config.components].T.contiguous()
        self.flat = flat
        self.tree = KDTree(self.project(flat))

    def project(self, flat: Tensor) -> np.ndarray:
        """Principal components (W, K) of windows (W, F * D)."""
        return ((flat - self.mean) @ self.axes).double().numpy()

    def clips_with(self, queries: Tensor) -> np.ndarray:
        """Which clips (Q, C) bool hold a window within the radius of each query (Q, F * D)."""
        found = np.zeros((len(queries), self.num_clips), dtype=bool)
        hits = self.tree.query_ball_point(self.project(queries), self.radius * (1.0 + 1e-5))
        counts = np.array([len(h) for h in hits])
        if not counts.sum():
            return found
        query = np.repeat(np.arange(len(queries)), counts)
        row = np.concatenate([np.asarray(h, dtype=np.int64) for h in hits])
        for start in range(0, len(row), _MOST_PAIRS):
            q, r = query[start : start + _MOST_PAIRS], row[start : start + _MOST_PAIRS]
            near = (queries[q] - self.flat[r]).square().sum(-1).sqrt().numpy() < self.radius
            found[q[near], self.base.clip[r[near]]] = True
        return found


def _shares(
    index: _Index,
    queries: _Windows,
    step: int,
    *,
    mirrored: bool,
    clips: Sequence[MotionClip],
    config: OverlapConfig,
) -> list[Overlap]:
    """Overlaps of each clip's windows with the other clips."""
    values, owner = queries.values[::step], queries.clip[::step]
    hits = np.zeros((index.num_clips, index.num_clips))
    totals = np.bincount(owner, minlength=index.num_clips)
    flat = values.reshape(len(values), -1)
    for start in range(0, len(flat), _QUERIES):
        found = index.clips_with(flat[start : start + _QUERIES])
        np.add.at(hits, owner[start : start + _QUERIES], found)
    np.fill_diagonal(hits, 0.0)
    shares = hits / np.maximum(totals, 1)[:, None]
    pairs = np.argwhere(shares >= config.report_share)
    return [
        Overlap(
            first=clips[a].clip_id,
            second=clips[b].clip_id,
            share=float(shares[a, b]),
            mirrored=mirrored,
        )
        for a, b in pairs.tolist()
    ]


def take_groups(clips: Sequence[MotionClip], overlaps: Iterable[Overlap] = ()) -> list[str]:
    """For each clip the name of the group that must stay on one side of a split.

    Clips of one take (``provenance.take``, or the id where it is empty), clips made from one
    another (parents), and clips that overlap are joined; a group is named after its first take.
    """
    takes = [clip.provenance.take or clip.clip_id for clip in clips]
    of_clip = {clip.clip_id: take for clip, take in zip(clips, takes, strict=True)}
    root = {take: take for take in takes}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    links = [(o.first, o.second) for o in overlaps]
    links += [(clip.clip_id, parent) for clip in clips for parent in clip.provenance.parents]
    for first, second in links:
        if first in of_clip and second in of_clip:
            a, b = find(of_clip[first]), find(of_clip[second])
            root[max(a, b)] = min(a, b)
    return [find(take) for take in takes]


def split_by_take(
    clips: Iterable[MotionClip],
    test_share: float,
    seed: int,
    *,
    character: Character | None = None,
    config: OverlapConfig | None = None,
) -> tuple[list[MotionClip], list[MotionClip]]:
    """Training and test clips; all clips of a take, mirrored or cut anew, stay on one side.

    Args:
        clips: the clips; their take is ``provenance.take``, or their id where it is empty.
        test_share: share of the groups of takes that go to the test set, 0 to 1.
        seed: which groups.
        character: if given, clips that overlap (``find_overlaps``) are one take too, whatever
            their names say.
        config: what overlaps.

    Raises:
        InputError: ``test_share`` is out of range.
    """
    if not 0.0 <= test_share <= 1.0:
        raise InputError(f"test_share: {test_share:g}; 0 to 1 is allowed; use 0.1")
    clips = list(clips)
    overlaps = [] if character is None else find_overlaps(clips, character, config)
    groups: dict[str, list[MotionClip]] = defaultdict(list)
    for clip, group in zip(clips, take_groups(clips, overlaps), strict=True):
        groups[group].append(clip)
    takes = sorted(groups)
    order = np.random.default_rng(seed).permutation(len(takes))
    chosen = {takes[i] for i in order[: round(test_share * len(takes))]}
    train = [c for take in takes if take not in chosen for c in groups[take]]
    return train, [c for take in takes if take in chosen for c in groups[take]]
