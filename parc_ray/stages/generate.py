"""``generate``: terrains, paths, candidates, selection, kinematic optimisation, mirror images.

Output ``motions``: kinematic clips M~_i. ``records.json`` says what became of every terrain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from algorithms.diffusion.generator import DiffusionGenerator
from parc_ray.character.character import Character, load_character
from parc_ray.config import GeneratorBudget, IterationConfig, ParcConfig, TrackerBudget
from parc_ray.data.store import read_part
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.stages._datasets import save_manifest, write_clips
from parc_ray.stages._rollouts import (
    PlannedBatch,
    load_generator_bytes,
    plan_terrains,
    roll_out,
)
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.pool import ItemOutput, ItemResult, WorkItem, run_items
from parc_ray.stages.registry import StageSpec
from parc_ray.synthesis.assemble import candidate_clip, finish_clips
from parc_ray.synthesis.config import SynthesisConfig
from parc_ray.synthesis.rollout import Candidate
from parc_ray.synthesis.selection import Selection, Verdict, select_candidates

TERRAINS_PER_ITEM = 3
TERRAINS_PER_MOTION = 10
MIN_FRAMES = 16


@dataclass
class GenerateWorker:
    """Makes motions on a few terrains at a time."""

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

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Generate on terrains ``first`` to ``last`` (exclusive)."""
        numbers = range(item.payload["first"], item.payload["last"])
        batch = plan_terrains(self.row.terrain, self.synthesis, numbers, self.seed)
        candidates = roll_out(
            self._model, batch, self.character, self.synthesis, self.row.candidates, self.seed
        )
        terrains = [p.terrain for p in batch.planned]
        chosen = select_candidates(
            candidates, terrains, self.character, self.synthesis.selection, self._model.fps
        )
        motions = [self._clip(candidates[i], chosen.verdicts[i], batch) for i in chosen.kept]
        finished, table = self._finish(motions)
        return ItemOutput(clips=finished, record=_record(batch, candidates, chosen, table))

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

    def _finish(
        self, motions: list[MotionClip]
    ) -> tuple[list[MotionClip], dict[str, dict[str, float]]]:
        """Optimised clips and their mirror images; figures before and after."""
        table: dict[str, dict[str, float]] = {}
        made: list[MotionClip] = []
        finished = finish_clips(motions, self.character, self.synthesis, self.device)
        for before, motion in zip(motions, finished, strict=True):
            clip = motion.clip
            if clip.num_frames < MIN_FRAMES:
                table[before.clip_id] = {"dropped_frames_left": float(clip.num_frames)}
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
        return made, table

    def _figures(self, before: MotionClip, after: MotionClip) -> dict[str, float]:
        names = ("tpl", "tcl", "hjf_percent", "foot_slide_mps")
        old = clip_metrics(before, self.character, "paper")
        new = clip_metrics(after, self.character, "paper")
        out = {f"{name}_before": old[name] for name in names}
        out |= {f"{name}_after": new[name] for name in names}
        return {**out, "seconds": after.duration_s}


def _record(
    batch: PlannedBatch,
    candidates: Sequence[Candidate],
    chosen: Selection,
    table: dict[str, dict[str, float]],
) -> dict[str, Any]:
    return {
        "terrains": len(batch.numbers) + len(batch.refused),
        "without_path": {str(k): v for k, v in batch.refused.items()},
        "candidates": len(candidates),
        "finished": sum(c.finished for c in candidates),
        "rejections": chosen.rejections(),
        "motions": table,
    }


def body(run: StageRun) -> StageOutputs:
    """Generate in rounds until enough motions are kept or enough terrains were tried."""
    config: ParcConfig = run.ctx.config
    row = config.row(run.ctx.iteration)
    character = load_character(config.character)
    storage, path = run.open_input("generator")
    arguments = {
        "generator": storage.read_bytes(path),
        "character": character,
        "row": row,
        "synthesis": config.synthesis_for(run.ctx.iteration),
        "iteration": run.ctx.iteration,
        "seed": run.seed,
        "device": config.resources.device,
    }
    results = _rounds(run, config, row, arguments)
    clips = _first_motions(run, results, row.motions)
    parts = write_clips(run, clips, "motions")
    manifest = save_manifest(run, f"M~{run.ctx.iteration}", parts, character)
    run.dir.write_json_atomic("records.json", [{"id": r.id, **r.record} for r in results])
    return StageOutputs(
        paths={"motions": "manifest.json"},
        rows={"motions": manifest.rows},
        metrics=_metrics(results, clips, manifest.seconds),
        worker_cpu_seconds=sum(r.cpu_s for r in results),
    )


def _rounds(
    run: StageRun, config: ParcConfig, row: IterationConfig, arguments: dict[str, Any]
) -> list[ItemResult]:
    """Items in rounds whose size depends on results only, never on the number of actors."""
    limit = row.max_terrains or TERRAINS_PER_MOTION * row.motions
    top_k = config.synthesis.selection.top_k
    results: list[ItemResult] = []
    tried, kept = 0, 0
    while kept < row.motions and tried < limit:
        wanted = math.ceil((row.motions - kept) / top_k)
        count = min(max(wanted, TERRAINS_PER_ITEM), limit - tried)
        items = [
            WorkItem(
                id=f"terrains-{first:05d}",
                payload={
                    "first": first,
                    "last": min(first + TERRAINS_PER_ITEM, tried + count),
                },
            )
            for first in range(tried, tried + count, TERRAINS_PER_ITEM)
        ]
        results += run_items(
            run.dir,
            items,
            GenerateWorker,
            arguments,
            config.resources.pool(config.resources.generate_actors, gpus=True),
            run.ctx.stage_path(run.name),
        )
        tried += count
        kept = sum(_kept(r) for r in results)
    return results


def _kept(result: ItemResult) -> int:
    return sum("seconds" in figures for figures in result.record["motions"].values())


def _first_motions(run: StageRun, results: Sequence[ItemResult], count: int) -> list[MotionClip]:
    """The clips of the first ``count`` motions in order of terrain, mirror images with them."""
    clips: list[MotionClip] = []
    taken: set[str] = set()
    for result in results:
        if result.part is None:
            continue
        for clip in read_part(run.dir, result.part):
            original = clip.clip_id.removesuffix("_m")
            if original not in taken and len(taken) == count:
                continue
            taken.add(original)
            clips.append(clip)
    return clips


def _metrics(
    results: Sequence[ItemResult], clips: Sequence[MotionClip], seconds: float
) -> dict[str, float]:
    rejections: Counter[str] = Counter()
    for result in results:
        rejections.update(result.record["rejections"])
    records = [r.record for r in results]
    out = {
        "terrains": float(sum(r["terrains"] for r in records)),
        "terrains_without_path": float(sum(len(r["without_path"]) for r in records)),
        "candidates": float(sum(r["candidates"] for r in records)),
        "candidates_finished": float(sum(r["finished"] for r in records)),
        "motions": float(sum(not c.clip_id.endswith("_m") for c in clips)),
        "clips": float(len(clips)),
        "seconds": seconds,
    }
    for reason, count in sorted(rejections.items()):
        out[f"rejected/{reason}"] = float(count)
    for name in ("tpl", "tcl", "hjf_percent", "foot_slide_mps"):
        for when in ("before", "after"):
            values = [c.metrics[f"{name}_{when}"] for c in clips]
            out[f"{name}_{when}"] = sum(values) / len(values) if values else math.nan
    return out


STAGE = StageSpec(
    section=lambda config, iteration: {
        "row": replace(config.row(iteration), generator=GeneratorBudget(), tracker=TrackerBudget()),
        "synthesis": config.synthesis_for(iteration),
        "character": config.character,
    },
    body=body,
)
