"""Motions of a run before and after correction, those worth looking at first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.evaluation.summary import RunSummary
from parc_ray.motion.clip import MotionClip

KINEMATIC = "kinematic"


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """A motion and what correction made of it.

    Attributes:
        before: the kinematic motion.
        after: the recorded one, None where it was not corrected.
        label: what the recorded one is called.
        title: heading of a picture of both.
    """

    before: MotionClip
    after: MotionClip | None
    label: str
    title: str


def comparisons_of(
    summary: RunSummary, storage: Storage, iteration: int, limit: int | None = None
) -> list[Comparison]:
    """The motions of an iteration whose correction is done; none where it is not.

    Corrected motions come first, those on the most uneven ground before the others.
    """
    source = "augment" if iteration == 0 else "generate"
    kinematic, recorded = summary.stage(iteration, source), summary.stage(iteration, "record")
    if kinematic is None or recorded is None:
        return []
    before = _clips(storage, f"it_{iteration:02d}/{source}")
    after = {clip.clip_id: clip for clip in _clips(storage, f"it_{iteration:02d}/record")}
    by_id = {clip.clip_id: clip for clip in before}
    order = sorted(
        recorded.records(),
        key=lambda r: (r["clip_id"] is None, -_relief(by_id[r["source_id"]]), r["source_id"]),
    )
    return [_comparison(record, by_id, after) for record in order[:limit]]


def _comparison(
    record: dict[str, Any], by_id: dict[str, MotionClip], after: dict[str, MotionClip]
) -> Comparison:
    source = by_id[record["source_id"]]
    if record["clip_id"] is None:
        title = f"{source.clip_id}: not corrected"
        return Comparison(before=source, after=None, label="", title=title)
    label = f"corrected by {record['corrector']}"
    extent = "whole" if record["whole"] else f"{record['seconds']:.1f} s segment"
    return Comparison(
        before=source,
        after=after[record["clip_id"]],
        label=label,
        title=f"{source.clip_id}: {label}, {extent}",
    )


def _clips(storage: Storage, stage_path: str) -> Sequence[MotionClip]:
    return read_clips(storage, Manifest.load(storage, f"{stage_path}/{FILE_NAME}"))


def _relief(clip: MotionClip) -> float:
    ground = clip.terrain.height_at(clip.frames.root_pos[:, :2])
    spread = float(ground.max() - ground.min())
    return spread if math.isfinite(spread) else 0.0
