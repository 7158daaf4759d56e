"""``evaluate``: the generator on fixed test terrains, the tracker on its clips and on the best.

Tables: ``generator.csv`` (one row per test motion), ``tracker_clips.csv`` (one per training clip),
``baseline_clips.csv`` (the same with zero residual), ``tracker_groups.csv`` and
``baseline_groups.csv`` (the same by class and by terrain difficulty), ``tracker_test.csv`` (best
motion per test terrain). Output ``metrics``: the means as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from envs.tracking.rollouts import ERRORS
from envs.tracking.standard_test import group_rows
from envs.tracking.task import Noise
from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.data.store import read_part
from parc_ray.evaluation.generator_test import TestWorker, terrain_items
from parc_ray.evaluation.terrain_class import coverage
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._datasets import save_manifest, write_clips
from parc_ray.stages._trackers import (
    clip_table,
    make_factory,
    read_policy,
    table_figures,
    track_clips,
)
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.pool import ItemResult, run_items
from parc_ray.stages.registry import StageSpec
from parc_ray.stages.train_tracker import training_clips
from parc_ray.synthesis.levels import level_change

GENERATOR_FIGURES = ("fwd_m", "tpl", "tcl", "hjf_percent", "tpl_in_grid", "tpl_per_frame")
GENERATOR_FIGURES += ("floating_percent", "contact_f1", "foot_slide_mps")


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
    metrics |= _breadth(records, rows)
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
    items = terrain_items(cfg.terrains)
    arguments = {
        "generator": storage.read_bytes(path),
        "character": character,
        "config": cfg,
        "synthesis": replace(config.synthesis, rollout=rollout),
        "iteration": run.ctx.iteration,
        "device": config.resources.testing_pool().device,
    }
    pool = config.resources.testing_pool()
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


def _breadth(records: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Diversity and coverage of terrain classes."""
    about = {t["terrain"]: t for record in records for t in record["terrains"]}
    spread = [t["diversity_m"] for t in about.values() if t["diversity_m"] is not None]
    classes = [about[row["terrain"]]["class"] for row in rows]
    return {
        "gen_diversity_m": _mean(spread),
        "gen_class_coverage": coverage(classes, [row["finished"] for row in rows]),
    }


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
        groups = pd.DataFrame(group_rows(clips, first, anywhere))
        _write_table(run, f"{name}_groups.csv", groups)
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
