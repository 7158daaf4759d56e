"""The generator test: motions on fixed test terrains, none filtered, every one measured.

One work item makes and measures the motions of a few terrains, so that a killed test goes on with
the terrains that are missing. A terrain's motions depend on nothing but the generator, the settings
and the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from algorithms.diffusion.generator import DiffusionGenerator
from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.config import EvaluationConfig
from parc_ray.evaluation.features import (
    FeatureSpace,
    FloatArray,
    nearest_distance,
    pairwise_diversity,
    window_features,
)
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.evaluation.protocols import terrain_digest
from parc_ray.evaluation.terrain_class import classify_line
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.stages._rollouts import PlannedBatch, load_generator_bytes, plan_terrains, roll_out
from parc_ray.stages.pool import ItemOutput, WorkItem
from parc_ray.synthesis.assemble import candidate_clip
from parc_ray.synthesis.config import SynthesisConfig
from parc_ray.synthesis.rollout import Candidate
from parc_ray.synthesis.selection import Verdict, select_candidates
from parc_ray.terrain.heightfield import Heightfield

TERRAINS_PER_ITEM = 2
MIN_FRAMES = 4
"""Shorter motions have no jerk and are counted as dropped."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The initial data in feature space, for the distance of new motions from it.

    Attributes:
        space: fitted on it.
        points: (W, K) its windows there.
    """

    space: FeatureSpace
    points: FloatArray

    def novelty(self, clip: MotionClip, character: Character) -> float:
        """Mean distance of a clip's windows from the nearest ones of the reference."""
        return nearest_distance(self.space.project(window_features(clip, character)), self.points)


@dataclass
class TestWorker:
    """Generates all motions on a few test terrains and measures every one."""

    __test__ = False
    generator: bytes
    character: Character
    config: EvaluationConfig
    synthesis: SynthesisConfig
    iteration: int
    device: str
    reference: Reference | None = None
    keep: Literal["best", "all"] = "best"
    _model: DiffusionGenerator = field(init=False)
    _digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Load the generator once per actor."""
        self._model, self._digest = load_generator_bytes(
            self.generator, self.character, self.config.s, self.device, self.config.stride
        )

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Test terrains ``first`` to ``last`` (exclusive).

        Returns:
            The best motion of each terrain, or all of them; ``rows`` has one entry per motion,
            ``terrains`` one per terrain.
        """
        cfg = self.config
        numbers = range(item.payload["first"], item.payload["last"])
        batch = plan_terrains(cfg.terrain, self.synthesis, numbers, cfg.seed)
        rows: list[dict[str, Any]] = []
        clips: list[MotionClip] = []
        terrains: list[dict[str, Any]] = []
        dropped = 0
        for position, number in enumerate(batch.numbers):
            alone = PlannedBatch(numbers=[number], planned=[batch.planned[position]], refused={})
            mine, kept, lost = self._terrain(alone)
            terrains.append(self._about(alone, kept))
            best = _best(mine)
            for index, (row, clip) in enumerate(zip(mine, kept, strict=True)):
                rows.append({**row, "best": index == best})
                if self.keep == "all" or index == best:
                    clips.append(clip)
            dropped += lost
        record = {
            "rows": rows,
            "terrains": terrains,
            "dropped": dropped,
            "without_path": {str(k): v for k, v in batch.refused.items()},
        }
        return ItemOutput(clips=clips, record=record)

    def _terrain(self, planned: PlannedBatch) -> tuple[list[dict[str, Any]], list[MotionClip], int]:
        """Rows and motions of one terrain, and how many were too short."""
        cfg = self.config
        candidates = roll_out(
            self._model, planned, self.character, self.synthesis, cfg.motions_per_terrain, cfg.seed
        )
        ground = planned.planned[0].terrain
        selection = replace(self.synthesis.selection, require_finished=False, top_k=1)
        chosen = select_candidates(candidates, [ground], self.character, selection, self._model.fps)
        rows, clips = [], []
        for candidate, verdict in zip(candidates, chosen.verdicts, strict=True):
            if candidate.frames.num_frames < MIN_FRAMES:
                continue
            clip = self._clip(planned, candidate, verdict)
            clips.append(clip)
            rows.append(self._row(planned.numbers[0], clip, candidate, verdict))
        return rows, clips, len(candidates) - len(clips)

    def _clip(self, planned: PlannedBatch, candidate: Candidate, verdict: Verdict) -> MotionClip:
        number, (ground, path) = planned.numbers[0], _ground_and_path(planned)
        provenance = Provenance(
            source="PARC-Ray motion generator",
            licence="that of the data set it was trained on",
            take=f"test{number:04d}",
            iteration=self.iteration,
            seeds={"evaluation": self.config.seed, "terrain": number},
            hashes={"generator": self._digest},
            maker="generate",
            class_name="test",
        )
        name = f"it{self.iteration:02d}_test{number:04d}_{candidate.index:03d}"
        fps = self._model.fps
        return candidate_clip(candidate, verdict, ground, path, name, fps, provenance, None)

    def _row(
        self, number: int, clip: MotionClip, candidate: Candidate, verdict: Verdict
    ) -> dict[str, Any]:
        figures = clip_metrics(clip, self.character, self.config.form)
        if self.reference is not None and clip.num_frames >= 2:
            figures["novelty"] = self.reference.novelty(clip, self.character)
        return {
            "terrain": number,
            "candidate": candidate.index,
            "finished": candidate.finished,
            "progress": candidate.progress,
            "score": verdict.score if math.isfinite(verdict.score) else None,
            **figures,
        }

    def _about(self, planned: PlannedBatch, clips: Sequence[MotionClip]) -> dict[str, Any]:
        """Class, digest and diversity of one terrain."""
        ground, path = _ground_and_path(planned)
        bodies = [_bodies(clip, self.character) for clip in clips]
        diversity = pairwise_diversity(bodies)
        return {
            "terrain": planned.numbers[0],
            "class": classify_line(ground, path[:, :2]),
            "digest": terrain_digest(ground, path),
            "diversity_m": diversity if math.isfinite(diversity) else None,
        }


def terrain_items(terrains: int) -> list[WorkItem]:
    """Work items over the test terrains."""
    return [
        WorkItem(
            id=f"test-{first:05d}",
            payload={"first": first, "last": min(first + TERRAINS_PER_ITEM, terrains)},
        )
        for first in range(0, terrains, TERRAINS_PER_ITEM)
    ]


def _ground_and_path(planned: PlannedBatch) -> tuple[Heightfield, Tensor]:
    first = planned.planned[0]
    if first.path.points is None:
        raise ValueError("terrains without a path are not tested")
    return first.terrain, first.path.points


def _best(rows: Sequence[dict[str, Any]]) -> int | None:
    """Position of the motion with the least score, or None where none has one."""
    scored = [(row["score"], k) for k, row in enumerate(rows) if row["score"] is not None]
    return min(scored)[1] if scored else None


def _bodies(clip: MotionClip, character: Character) -> Tensor:
    frames = clip.frames
    return fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)[0]
