"""``evaluate``: the generator on fixed test terrains, the tracker on its clips and on the best.

Tables: ``generator.csv`` (one row per test motion), ``tracker_clips.csv`` (one per training clip),
``baseline_clips.csv`` (the same with zero residual), ``tracker_test.csv`` (best motion per test
terrain). Output ``metrics``: the means as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch

from algorithms.diffusion.generator import DiffusionGenerator
from envs.tracking.rollouts import ERRORS
from envs.tracking.task import Noise
from parc_ray.character.character import Character, load_character
from parc_ray.config import EvaluationConfig, ParcConfig
from parc_ray.data.store import read_part
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.stages._datasets import save_manifest, write_clips
from parc_ray.stages._rollouts import (
    load_generator_bytes,
    plan_terrains,
    roll_out,
)
from parc_ray.stages._trackers import (
    clip_table,
    make_factory,
    read_policy,
    table_figures,
    track_clips,
)
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.pool import ItemOutput, ItemResult, WorkItem, run_items
from parc_ray.stages.registry import StageSpec
from parc_ray.stages.train_tracker import training_clips
from parc_ray.synthesis.assemble import candidate_clip
from parc_ray.synthesis.config import SynthesisConfig
from parc_ray.synthesis.levels import level_change
from parc_ray.synthesis.selection import select_candidates

TERRAINS_PER_ITEM = 2
MIN_FRAMES = 4
GENERATOR_FIGURES = ("fwd_m", "tpl", "tcl", "hjf_percent", "tpl_in_grid", "tpl_per_frame")


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
    _model: DiffusionGenerator = field(init=False)
    _digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Load the generator once per actor."""
        self._model, self._digest = load_generator_bytes(
            self.generator, self.character, self.config.s, self.device
        )

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Test terrains ``first`` to ``last`` (exclusive); the best motion of each is kept."""
        cfg = self.config
        numbers = range(item.payload["first"], item.payload["last"])
        batch = plan_terrains(cfg.terrain, self.synthesis, numbers, cfg.seed)
        candidates = roll_out(
            self._model, batch, self.character, self.synthesis, cfg.motions_per_terrain, cfg.seed
        )
        terrains = [p.terrain for p in batch.planned]
        selection = replace(self.synthesis.selection, require_finished=False, top_k=1)
        chosen = select_candidates(candidates, terrains, self.character, selection, self._model.fps)
        rows, best, dropped = [], {}, 0
        for candidate, verdict in zip(candidates, chosen.verdicts, strict=True):
            path = batch.planned[candidate.path_index].path.points
            if candidate.frames.num_frames < MIN_FRAMES or path is None:
                dropped += 1
                continue
            number = batch.numbers[candidate.path_index]
            clip = candidate_clip(
                candidate,
                verdict,
                terrains[candidate.path_index],
                path,
                f"it{self.iteration:02d}_test{number:04d}_{candidate.index:03d}",
                self._model.fps,
                self._provenance(number),
                None,
            )
            figures = clip_metrics(clip, self.character, cfg.form)
            rows.append(
                {
                    "terrain": number,
                    "candidate": candidate.index,
                    "finished": candidate.finished,
                    "progress": candidate.progress,
                    **figures,
                }
            )
            key = verdict.score
            if math.isfinite(key) and (number not in best or key < best[number][0]):
                best[number] = (key, clip)
        record = {
            "rows": rows,
            "dropped": dropped,
            "without_path": {str(k): v for k, v in batch.refused.items()},
        }
        return ItemOutput(clips=[clip for _, clip in best.values()], record=record)

    def _provenance(self, number: int) -> Provenance:
        return Provenance(
            source="PARC-Ray motion generator",
            licence="that of the data set it was trained on",
            take=f"test{number:04d}",
            iteration=self.iteration,
            seeds={"evaluation": self.config.seed, "terrain": number},
            hashes={"generator": self._digest},
            maker="generate",
            class_name="test",
        )


def body(run: StageRun) -> StageOutputs:
    """Measure both models."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    results = _test_generator(run, config, character)
    rows = [row for result in results for row in result.record["rows"]]
    _write_table(run, "generator.csv", pd.DataFrame(rows))
    best = [clip for r in results if r.part for clip in read_part(run.dir, r.part)]
    metrics = generator_figures(rows)
    records = [result.record for result in results]
    metrics["gen_dropped"] = float(sum(r["dropped"] for r in records))
    metrics["gen_terrains_without_path"] = float(sum(len(r["without_path"]) for r in records))
    if "tracker" in run.inputs:
        metrics |= _test_tracker(run, config, character, best)
    save_manifest(run, f"test{run.ctx.iteration}", write_clips(run, best, "best"), character)
    finite = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
    run.dir.write_json_atomic("metrics.json", finite)
    return StageOutputs(
        paths={"metrics": "metrics.json"},
        metrics=metrics,
        worker_cpu_seconds=sum(r.cpu_s for r in results),
    )


def _test_generator(run: StageRun, config: ParcConfig, character: Character) -> list[ItemResult]:
    storage, path = run.open_input("generator")
    cfg = config.evaluation
    rollout = replace(config.synthesis.rollout, max_duration_s=cfg.max_duration_s, stall_s=None)
    items = [
        WorkItem(
            id=f"test-{first:05d}",
            payload={"first": first, "last": min(first + TERRAINS_PER_ITEM, cfg.terrains)},
        )
        for first in range(0, cfg.terrains, TERRAINS_PER_ITEM)
    ]
    arguments = {
        "generator": storage.read_bytes(path),
        "character": character,
        "config": cfg,
        "synthesis": replace(config.synthesis, rollout=rollout),
        "iteration": run.ctx.iteration,
        "device": config.resources.device,
    }
    pool = config.resources.pool(config.resources.generate_actors, gpus=True)
    return run_items(run.dir, items, TestWorker, arguments, pool, run.ctx.stage_path(run.name))


def generator_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over all test motions."""
    out = {
        "gen_motions": float(len(rows)),
        "gen_finished_share": _mean([float(r["finished"]) for r in rows]),
    }
    names = {"fwd_m": "gen_fwd", **{n: f"gen_{n}" for n in GENERATOR_FIGURES if n != "fwd_m"}}
    for name, key in names.items():
        out[key] = _mean([r[name] for r in rows if name in r])
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _test_tracker(
    run: StageRun, config: ParcConfig, character: Character, best: Sequence[MotionClip]
) -> dict[str, float]:
    """The tracker and the zero-residual baseline on the training set; the tracker on ``best``."""
    cfg = config.evaluation
    torch.set_num_threads(config.tracker.threads)
    factory = make_factory(character, config.sim, config.simulator)
    policy = read_policy(run)
    clips = training_clips(run, character)
    changes = [level_change(clip, character) for clip in clips]
    random_starts = max(1, math.ceil(cfg.tracker_random_starts / max(1, len(clips))))
    figures: dict[str, float] = {}
    for name, actor, seed in (
        ("tracker", policy, cfg.seed + 17),
        ("baseline", None, cfg.seed + 17),
    ):
        first, anywhere = track_clips(
            character,
            factory,
            clips,
            actor,
            config.tracking,
            starts=cfg.tracker_starts,
            random_starts=random_starts,
            seed=seed,
        )
        table = clip_table(clips, first, anywhere, changes)
        _write_table(run, f"{name}_clips.csv", table)
        figures |= table_figures(table, name)
    if best:
        first, anywhere = track_clips(
            character,
            factory,
            list(best),
            policy,
            config.tracking,
            starts=1,
            random_starts=max(1, cfg.tracker_starts // 4),
            seed=cfg.seed + 23,
            noise=Noise(),
        )
        table = clip_table(best, first, anywhere, [level_change(c, character) for c in best])
        _write_table(run, "tracker_test.csv", table)
        found = table_figures(table, "test")
        figures["test_success"] = found["test_completed_from_start"]
        figures["test_survived"] = found["test_survived_from_start"]
        figures["test_body_error_relative_m"] = float(
            anywhere.errors[:, ERRORS.index("body_local_m")].nanmean()
        )
    return figures


def _write_table(run: StageRun, name: str, table: pd.DataFrame) -> None:
    run.dir.write_bytes_atomic(name, table.to_csv(index=False).encode())


STAGE = StageSpec(
    section=lambda config, iteration: {
        "evaluation": config.evaluation,
        "synthesis": config.synthesis,
        "tracking": config.tracking,
        "min_tracked_s": config.d0.min_tracked_s,
        "sim": replace(config.sim, num_threads=1),
        "simulator": config.simulator,
        "character": config.character,
    },
    body=body,
)
