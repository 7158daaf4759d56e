"""The operators of the stage ``generate``: plan, roll out and select, optimise.

Every operator reads an item's payload and what the one before handed over, and nothing else, so
that operators may share a process or not, and an item may be done again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from algorithms.diffusion.generator import DiffusionGenerator
from parc_ray.character.character import Character
from parc_ray.config import IterationConfig
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.stages._rollouts import (
    PlannedBatch,
    families,
    load_generator_bytes,
    pack_clips,
    pack_plans,
    plan_terrains,
    roll_out,
    unpack_clips,
    unpack_plans,
)
from parc_ray.stages.pool import Handover, ItemOutput, WorkItem
from parc_ray.synthesis.assemble import candidate_clip, finish_clips
from parc_ray.synthesis.config import SynthesisConfig
from parc_ray.synthesis.rollout import Candidate
from parc_ray.synthesis.selection import Selection, Verdict, select_candidates

MIN_FRAMES = 16
REJECTION_COLUMNS = ("terrain", "candidate", "reason", "tpl", "tcl", "progress", "seam_jerk")
"""Of ``rejections.csv``: numbers of terrain and candidate, why, m points, m, share, m/s^3."""
REJECTION_KEYS = ("rejected_terrains", "rejected_candidates", "rejected_motions")
"""Where an item's record has rows of the table: from planner, selection and optimiser."""

Rejection = dict[str, Any]


@dataclass
class PlanStep:
    """Makes the terrains of an item and a path over each."""

    row: IterationConfig
    synthesis: SynthesisConfig
    seed: int

    def __call__(self, item: WorkItem, data: bytes) -> Handover:
        """Terrains ``first`` to ``last`` (exclusive) of the payload."""
        numbers = range(item.payload["first"], item.payload["last"])
        batch = plan_terrains(self.row.terrain, self.synthesis, numbers, self.seed)
        refused = [_rejection(k, None, f"no path: {v}") for k, v in batch.refused.items()]
        record = {
            "terrains": len(numbers),
            "families": families(self.row.terrain, numbers, self.seed),
            "without_path": {str(k): v for k, v in batch.refused.items()},
            "rejected_terrains": refused,
        }
        return Handover(data=pack_plans(batch), record=record, motions=len(batch.planned))


@dataclass
class RollOutStep:
    """Rolls the candidates of all terrains of an item out in one batch and keeps the best."""

    generator: bytes
    character: Character
    row: IterationConfig
    synthesis: SynthesisConfig
    iteration: int
    seed: int
    device: str
    _model: DiffusionGenerator = field(init=False)
    _digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Load the generator once per actor."""
        self._model, self._digest = load_generator_bytes(
            self.generator, self.character, self.row.s, self.device
        )

    def __call__(self, item: WorkItem, data: bytes) -> Handover:
        """Selected candidates as clips; every other one with its reason in the record."""
        batch = unpack_plans(data)
        candidates = roll_out(
            self._model, batch, self.character, self.synthesis, self.row.candidates, self.seed
        )
        terrains = [p.terrain for p in batch.planned]
        chosen = select_candidates(
            candidates, terrains, self.character, self.synthesis.selection, self._model.fps
        )
        clips = [self._clip(candidates[i], chosen.verdicts[i], batch) for i in chosen.kept]
        record = {
            "candidates": len(candidates),
            "finished": sum(c.finished for c in candidates),
            "rejections": chosen.rejections(),
            "rejected_candidates": _rejections(batch, chosen),
        }
        return Handover(data=pack_clips(clips), record=record, motions=len(clips))

    def _clip(self, candidate: Candidate, verdict: Verdict, batch: PlannedBatch) -> MotionClip:
        number = batch.numbers[candidate.path_index]
        planned = batch.planned[candidate.path_index]
        if planned.path.points is None:
            raise ValueError(f"terrain {number} has no path")
        provenance = Provenance(
            source="PARC-Ray motion generator",
            licence="that of the data set it was trained on",
            take=f"it{self.iteration:02d}_t{number:05d}",
            iteration=self.iteration,
            seeds={"generate": self.seed, "terrain": number, "candidate": candidate.index},
            hashes={"generator": self._digest},
            maker="generate",
            class_name=f"generated_{self.row.terrain.kind}",
        )
        return candidate_clip(
            candidate,
            verdict,
            planned.terrain,
            planned.path.points,
            f"it{self.iteration:02d}_t{number:05d}_c{candidate.index:03d}",
            self._model.fps,
            provenance,
            self.synthesis.slice_padding_m,
        )


@dataclass
class OptimizeStep:
    """Optimises the selected motions of an item in one batch and mirrors them."""

    character: Character
    synthesis: SynthesisConfig
    device: str

    def __call__(self, item: WorkItem, data: bytes) -> ItemOutput:
        """Optimised clips and their mirror images; figures before and after in the record."""
        motions = unpack_clips(data)
        table: dict[str, dict[str, float]] = {}
        made: list[MotionClip] = []
        short: list[Rejection] = []
        finished = finish_clips(motions, self.character, self.synthesis, self.device)
        for before, motion in zip(motions, finished, strict=True):
            clip = motion.clip
            if clip.num_frames < MIN_FRAMES:
                table[before.clip_id] = {"dropped_frames_left": float(clip.num_frames)}
                short.append(_too_short(before, clip.num_frames))
                continue
            figures = self._figures(before, clip)
            figures["iterations"] = float(motion.report.iterations)
            figures["removed_frames"] = float(motion.hesitation_frames)
            clip.metrics.update(figures)
            table[clip.clip_id] = figures
            made.append(clip)
            if motion.mirrored is not None:
                twin = replace(motion.mirrored, clip_id=f"{clip.clip_id}_m")
                twin.metrics.update(figures)
                made.append(twin)
        record = {"motions": table, "rejected_motions": short}
        return ItemOutput(clips=made, record=record, motions=len(table) - len(short))

    def _figures(self, before: MotionClip, after: MotionClip) -> dict[str, float]:
        names = ("tpl", "tcl", "hjf_percent", "foot_slide_mps")
        old = clip_metrics(before, self.character, "paper")
        new = clip_metrics(after, self.character, "paper")
        out = {f"{name}_before": old[name] for name in names}
        out |= {f"{name}_after": new[name] for name in names}
        return {**out, "seconds": after.duration_s}


def _rejections(batch: PlannedBatch, chosen: Selection) -> list[Rejection]:
    return [
        _rejection(
            batch.numbers[v.path_index],
            v.index,
            v.reason,
            tpl=v.tpl,
            tcl=v.tcl,
            progress=v.progress,
            seam_jerk=v.seam_jerk,
        )
        for v in chosen.verdicts
        if not v.kept
    ]


def _too_short(clip: MotionClip, frames: int) -> Rejection:
    return _rejection(
        clip.provenance.seeds["terrain"],
        clip.provenance.seeds["candidate"],
        f"too short without pauses: {frames} frames against {MIN_FRAMES}",
        **{name: clip.metrics[f"sel_{name}"] for name in ("tpl", "tcl", "progress", "seam_jerk")},
    )


def _rejection(terrain: int, candidate: int | None, reason: str, **figures: float) -> Rejection:
    """A row of the table; figures that do not exist are None."""
    found = {k: v if math.isfinite(v) else None for k, v in figures.items()}
    named = {"terrain": terrain, "candidate": candidate, "reason": reason}
    return {**dict.fromkeys(REJECTION_COLUMNS), **named, **found}
