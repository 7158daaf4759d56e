"""Generator and tracker tests of a run's models under a protocol: resumable stages of their own.

``<run>/evaluation/<protocol>/it_NN/generator-test`` and ``tracker-test`` are stage directories with
markers, like those of the loop: killed, they go on; finished, they are left alone; with another
model or other settings they are refused unless forced.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from algorithms.ppo.policy import MlpPolicy
from parc_ray.character.character import Character, load_character
from parc_ray.config import EvaluationConfig, ParcConfig
from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.store import load_dataset, read_part, write_part
from parc_ray.evaluation.features import FeatureSpace, windows_of
from parc_ray.evaluation.generator_test import Reference, TestWorker, terrain_items
from parc_ray.evaluation.limits import DriftConfig
from parc_ray.evaluation.protocols import Protocol, set_digest
from parc_ray.evaluation.tracker_test import TrackerTestWorker, tracker_items
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._datasets import item_parts, save_manifest
from parc_ray.stages._trackers import read_policy, warn_of_cpu
from parc_ray.stages.base import (
    Artifact,
    StageContext,
    StageOutputs,
    StageResult,
    StageRun,
    run_stage,
)
from parc_ray.stages.pool import ItemResult, run_items

GENERATOR_TEST = "generator-test"
TRACKER_TEST = "tracker-test"
REFERENCE_TEST = "tracker-reference"
KEPT = "kept.json"
"""Manifest of all motions that the items of a generator test stored."""


@dataclass(frozen=True, kw_only=True)
class TestPlan:
    """What is tested, and how.

    Attributes:
        protocol: the protocol.
        keep_motions: whether all test motions are stored, or the best of each terrain.
        connect: called before work that needs Ray; not called where everything is done already.
    """

    __test__ = False

    protocol: Protocol
    keep_motions: bool = True
    connect: Callable[[], None] = lambda: None


def run_generator_test(
    ctx: StageContext, plan: TestPlan, generator: Artifact, initial: Artifact | None
) -> StageResult:
    """The generator test of one iteration; outputs ``rows``, ``terrains`` and ``motions``.

    Args:
        ctx: its ``run`` is the directory of results, its ``config`` the run's.
        plan: what is tested.
        generator: the generator's file, by absolute path.
        initial: manifest of D0 by absolute path, for the distance from it.
    """
    config: ParcConfig = ctx.config
    section = {
        "protocol": plan.protocol.label,
        "evaluation": _of_generator(plan.protocol.evaluation),
        "synthesis": plan.protocol.synthesis(config.synthesis),
        "character": config.character,
        "keep": plan.keep_motions,
    }
    inputs = {"generator": generator} | ({"initial": initial} if initial else {})
    body = _connected(plan, lambda run: _generator_body(run, plan))
    return run_stage(ctx, GENERATOR_TEST, section, inputs, body)


def run_tracker_test(
    ctx: StageContext, plan: TestPlan, name: str, tracker: Artifact, motions: Artifact
) -> StageResult:
    """The tracker test on a set of motions; output ``rows``.

    Args:
        ctx: as in ``run_generator_test``.
        plan: what is tested.
        name: ``TRACKER_TEST`` or ``REFERENCE_TEST``: decides the directory.
        tracker: the policy's file or directory, by absolute path.
        motions: manifest of the motions, by absolute path.
    """
    config: ParcConfig = ctx.config
    section = {
        "starts": plan.protocol.evaluation.tracker_starts,
        "random_starts": plan.protocol.evaluation.tracker_random_starts,
        "seed": plan.protocol.evaluation.seed,
        "tracking": config.tracking,
        "sim": replace(config.sim, num_threads=1),
        "simulator": config.simulator,
        "character": config.character,
    }
    inputs = {"tracker": tracker, "motions": motions}
    body = _connected(plan, lambda run: _tracker_body(run, plan))
    return run_stage(ctx, name, section, inputs, body)


def _of_generator(evaluation: EvaluationConfig) -> EvaluationConfig:
    """The settings without those of the tracker test and of the report."""
    return replace(evaluation, tracker_starts=1, tracker_random_starts=1, drift=DriftConfig())


def _connected(
    plan: TestPlan, body: Callable[[StageRun], StageOutputs]
) -> Callable[[StageRun], StageOutputs]:
    def connected(run: StageRun) -> StageOutputs:
        plan.connect()
        return body(run)

    return connected


def _generator_body(run: StageRun, plan: TestPlan) -> StageOutputs:
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    storage, path = run.open_input("generator")
    resources = config.resources
    arguments = {
        "generator": storage.read_bytes(path),
        "character": character,
        "config": plan.protocol.evaluation,
        "synthesis": plan.protocol.synthesis(config.synthesis),
        "iteration": run.ctx.iteration,
        "device": resources.testing_pool().device,
        "reference": _reference(run, character),
        "keep": "all" if plan.keep_motions else "best",
    }
    pool = resources.testing_pool()
    items = terrain_items(plan.protocol.evaluation.terrains)
    label = f"{run.ctx.stage_path(run.name)} {plan.protocol.label}"
    results = run_items(run.dir, items, TestWorker, arguments, pool, label)
    rows = [row for r in results for row in r.record["rows"]]
    about = [t for r in results for t in r.record["terrains"]]
    _write_frame(run, "rows", rows)
    _write_frame(run, "terrains", about)
    best = _best_clips(run, results, rows)
    parts = [write_part(run.dir, "best.parquet", best)] if best else []
    name = f"test{run.ctx.iteration}"
    save_manifest(run, name, parts, character)
    _save_all(run, name, results, character)
    digest = set_digest([t["digest"] for t in about])
    run.dir.write_json_atomic("set.json", {"digest": digest, "expected": plan.protocol.digest})
    if plan.protocol.digest and digest != plan.protocol.digest:
        run.log.warning(
            "[%s] terrains differ from those of %s (%s, not %s): figures are not comparable",
            label,
            plan.protocol.label,
            digest,
            plan.protocol.digest,
        )
    return StageOutputs(
        paths={
            "rows": "rows.parquet",
            "terrains": "terrains.parquet",
            "motions": FILE_NAME,
            "kept": KEPT,
        },
        rows={"rows": len(rows), "terrains": len(about), "motions": len(best)},
        metrics={
            "dropped": float(sum(r.record["dropped"] for r in results)),
            "without_path": float(sum(len(r.record["without_path"]) for r in results)),
        },
        worker_cpu_seconds=sum(r.cpu_s for r in results),
    )


def _reference(run: StageRun, character: Character) -> Reference | None:
    """D0 in its own feature space; None where it is not given or too small."""
    if "initial" not in run.inputs:
        return None
    clips = _clips_of(run, "initial")
    windows = windows_of(clips, character)
    if not windows or sum(len(w) for w in windows) < 2:
        return None
    together = np.concatenate(windows)
    space = FeatureSpace.fit(together)
    return Reference(space=space, points=space.project(together))


def _clips_of(run: StageRun, name: str) -> list[MotionClip]:
    """Clips of the data set behind an input, wherever it lies."""
    storage, path = run.open_input(name)
    return load_dataset(storage.join(path))[1]


def _save_all(
    run: StageRun, name: str, results: Sequence[ItemResult], character: Character
) -> None:
    """A manifest over everything that the items stored, in their order."""
    home = run.ctx.stage_path(run.name)
    manifest = Manifest(
        name=f"{name}-kept",
        iteration=run.ctx.iteration,
        parts=tuple(item_parts(results, home)),
        character_digest=character.digest,
    )
    manifest.save(run.ctx.run, f"{home}/{KEPT}")


def _best_clips(
    run: StageRun, results: Sequence[ItemResult], rows: Sequence[Mapping[str, Any]]
) -> list[MotionClip]:
    """The best motion of each terrain, in the order of the terrains."""
    wanted = {(row["terrain"], row["candidate"]) for row in rows if row["best"]}
    names = {f"it{run.ctx.iteration:02d}_test{t:04d}_{c:03d}" for t, c in wanted}
    found = [clip for r in results if r.part for clip in read_part(run.dir, r.part)]
    return [clip for clip in found if clip.clip_id in names]


def _tracker_body(run: StageRun, plan: TestPlan) -> StageOutputs:
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    clips = _clips_of(run, "motions")
    policy: MlpPolicy = read_policy(run)
    evaluation, resources = plan.protocol.evaluation, config.resources
    arguments = {
        "clips": clips,
        "character": character,
        "policy": policy,
        "tracking": config.tracking,
        "sim": replace(config.sim, num_threads=resources.threads_per_worker),
        "simulator": config.simulator,
        "starts": evaluation.tracker_starts,
        "random_starts": evaluation.tracker_random_starts,
        "seed": evaluation.seed,
    }
    pool = resources.tracker_testing_pool()
    warn_of_cpu(run, pool.gpus, "--resources.places.evaluate.gpus")
    items = tracker_items(len(clips))
    label = f"{run.ctx.stage_path(run.name)} {plan.protocol.label}"
    results = run_items(run.dir, items, TrackerTestWorker, arguments, pool, label)
    rows = [row for r in results for row in r.record["rows"]]
    _write_frame(run, "rows", rows)
    return StageOutputs(
        paths={"rows": "rows.parquet"},
        rows={"rows": len(rows)},
        metrics={"clips": float(len(clips))},
        worker_cpu_seconds=sum(r.cpu_s for r in results),
    )


def _write_frame(run: StageRun, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The same table as CSV and Parquet."""
    frame = pd.DataFrame(list(rows))
    run.dir.write_bytes_atomic(f"{name}.csv", frame.to_csv(index=False).encode())
    run.dir.write_bytes_atomic(f"{name}.parquet", parquet_bytes(frame))


def parquet_bytes(frame: pd.DataFrame) -> bytes:
    """A Parquet file of a data frame."""
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False)
    return stream.getvalue()
