"""Whether a loop that feeds on its own motions drifts away from the data it began with.

Everything is read from what the stages left. Distances are in the feature space of D0. The
*ancestor* of a generated motion is the clip of the data set before it to which most of its windows
are nearest; its depth is one more than its ancestor's, and 0 for the clips of D0. So depth grows
where motions resemble earlier generated ones more than real ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from parc_ray.character.character import Character
from parc_ray.data.manifest import FILE_NAME
from parc_ray.data.storage import Storage
from parc_ray.data.store import load_dataset
from parc_ray.evaluation.features import (
    FeatureSpace,
    FloatArray,
    frechet_distance,
    nearest_distance,
    own_distance,
    windows_of,
)
from parc_ray.evaluation.limits import DriftConfig
from parc_ray.evaluation.terrain_class import CLASSES, class_shares, classify_clip
from parc_ray.motion.clip import MotionClip

SINGLE = (
    "frechet_d0",
    "nearest_ratio",
    "frechet_correction",
    "nearest_correction",
    "depth_mean",
    "depth_max",
    "survival",
)
"""Figures of an iteration that are one number each."""


@dataclass(frozen=True, kw_only=True)
class DriftRow:
    """How far an iteration's motions are from D0.

    Attributes:
        iteration: from 1.
        generated: motions before correction.
        kept: motions that joined the data set.
        figures: see ``SINGLE``; NaN where there was too little to compare.
        class_share: share of each terrain class among the generated motions.
        class_survival: share of each class's generated motions that were kept; NaN without any.
        ancestor_share: share of the generated motions by their ancestor in D0.
        ancestor_survival: share of those that were kept.
    """

    iteration: int
    generated: int
    kept: int
    figures: Mapping[str, float]
    class_share: Mapping[str, float] = field(default_factory=dict)
    class_survival: Mapping[str, float] = field(default_factory=dict)
    ancestor_share: Mapping[str, float] = field(default_factory=dict)
    ancestor_survival: Mapping[str, float] = field(default_factory=dict)

    def alarms(self, limits: DriftConfig) -> list[str]:
        """What is beyond its limit, a sentence each."""
        share = max(self.class_share.items(), key=lambda item: item[1], default=("", 0.0))
        checks = (
            ("Frechet distance from D0", self.figures["frechet_d0"], limits.max_frechet),
            (
                "distance from the nearest of D0, over D0's own",
                self.figures["nearest_ratio"],
                limits.max_nearest_ratio,
            ),
            (
                "Frechet distance made by the correction",
                self.figures["frechet_correction"],
                limits.max_correction_frechet,
            ),
            (f"share of class {share[0]}", share[1], limits.max_class_share),
            ("depth of ancestry", self.figures["depth_max"], limits.max_depth),
        )
        found = [
            f"iteration {self.iteration}: {name} {value:.3g} is above {limit:g}"
            for name, value, limit in checks
            if value > limit
        ]
        survival = self.figures["survival"]
        if survival < limits.min_survival:
            found.append(
                f"iteration {self.iteration}: share of motions kept {survival:.3g} is below "
                f"{limits.min_survival:g}"
            )
        return found

    def flat(self) -> dict[str, float | int]:
        """One row of a table."""
        out: dict[str, float | int] = {
            "iteration": self.iteration,
            "generated": self.generated,
            "kept": self.kept,
            **self.figures,
        }
        for name in CLASSES:
            out[f"share_{name}"] = self.class_share.get(name, math.nan)
            out[f"survival_{name}"] = self.class_survival.get(name, math.nan)
        return out


class DriftMonitor:
    """Compares iteration after iteration with D0.

    Args:
        initial: the clips of D0, at least one of two frames or more.
        character: the character.
    """

    def __init__(self, initial: Sequence[MotionClip], character: Character) -> None:
        """Fit the space and place D0 in it."""
        self.character = character
        known = [c for c in initial if c.num_frames >= 2]
        windows = windows_of(known, character)
        self.space = FeatureSpace.fit(np.concatenate(windows))
        self.initial = [self.space.project(w) for w in windows]
        self.own = own_distance(self.initial)
        self._points = list(self.initial)
        self._root = [clip.clip_id for clip in known]
        self._depth = [0] * len(known)

    def add(
        self, iteration: int, generated: Sequence[MotionClip], kept: Sequence[MotionClip]
    ) -> DriftRow:
        """Judge an iteration, then let what was kept be ancestors of the next one.

        Args:
            iteration: from 1, in order.
            generated: motions before correction.
            kept: what joined the data set; clips name what they were made from as parents, or
                bear its id.
        """
        generated = [c for c in generated if c.num_frames >= 2]
        kept = [c for c in kept if c.num_frames >= 2]
        before = [self.space.project(w) for w in windows_of(generated, self.character)]
        after = [self.space.project(w) for w in windows_of(kept, self.character)]
        nearest = [self._ancestor(points) for points in before]
        roots = [self._root[k] for k in nearest]
        depths = [self._depth[k] + 1 for k in nearest]
        made_from = {p for clip in kept for p in (clip.clip_id, *clip.provenance.parents)}
        survived = [clip.clip_id in made_from for clip in generated]
        classes = [classify_clip(clip) for clip in generated]
        start = np.concatenate(self.initial)
        new, last = _joined(before, start), _joined(after, start)
        row = DriftRow(
            iteration=iteration,
            generated=len(generated),
            kept=len(kept),
            figures={
                "frechet_d0": frechet_distance(last, start),
                "nearest_ratio": nearest_distance(last, start) / self.own,
                "frechet_correction": frechet_distance(new, last),
                "nearest_correction": nearest_distance(last, new),
                "depth_mean": float(np.mean(depths)) if depths else math.nan,
                "depth_max": float(max(depths, default=0)),
                "survival": float(np.mean(survived)) if survived else math.nan,
            },
            class_share=class_shares(classes),
            class_survival=_survival(classes, survived),
            ancestor_share={k: n / len(roots) for k, n in Counter(roots).most_common()},
            ancestor_survival=_survival(roots, survived),
        )
        parents = [self._ancestor(points) for points in after]
        self._points += after
        self._root += [self._root[k] for k in parents]
        self._depth += [self._depth[k] + 1 for k in parents]
        return row

    def _ancestor(self, points: FloatArray) -> int:
        """Index of the clip to which most windows are nearest."""
        distance = np.stack(
            [((points[:, None] - other[None]) ** 2).sum(-1).min(1) for other in self._points]
        )
        return int(np.bincount(distance.argmin(0), minlength=len(distance)).argmax())


def monitor_run(run: Storage, iterations: int, character: Character) -> list[DriftRow]:
    """Rows of all iterations of a run that have generated and kept motions.

    Args:
        run: the run directory.
        iterations: how many it is to have.
        character: its character.
    """
    initial = _clips(run, "it_00/merge")
    if not any(clip.num_frames >= 2 for clip in initial):
        return []
    monitor = DriftMonitor(initial, character)
    rows = []
    for iteration in range(1, iterations + 1):
        home = f"it_{iteration:02d}"
        if not run.exists(f"{home}/merge/{FILE_NAME}"):
            break
        before = {clip.clip_id for clip in _clips(run, f"it_{iteration - 1:02d}/merge")}
        kept = [c for c in _clips(run, f"{home}/merge") if c.clip_id not in before]
        rows.append(monitor.add(iteration, _clips(run, f"{home}/generate"), kept))
    return rows


def drift_table(rows: Sequence[DriftRow]) -> pd.DataFrame:
    """One row per iteration."""
    return pd.DataFrame([row.flat() for row in rows])


def _clips(run: Storage, stage: str) -> list[MotionClip]:
    path = f"{stage}/{FILE_NAME}"
    return load_dataset(run.join(path))[1] if run.exists(path) else []


def _joined(sets: Sequence[FloatArray], like: FloatArray) -> FloatArray:
    return np.concatenate(sets) if sets else like[:0]


def _survival(names: Sequence[str], survived: Sequence[bool]) -> dict[str, float]:
    total, alive = Counter(names), Counter(n for n, s in zip(names, survived, strict=True) if s)
    return {name: alive[name] / count for name, count in total.most_common()}
