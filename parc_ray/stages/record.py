"""``record``: kinematic motions become physical ones; only what passes the gate is kept.

The tracker goes over all motions first, in chunks; MPC then tries what the tracker did not record
whole, one motion per work item. Output ``recorded``: M_i. ``records.json`` says, motion by motion,
who corrected it, how much of it, at what cost, or why not; ``corrections.csv``, ``failures.csv``
and ``correctors.csv`` are tables of that. Recordings that the gate refused are kept beside the data
set, in ``refused.json`` and its parts, to be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from algorithms.ppo.policy import MlpPolicy
from envs.sims.base import BackendFactory, SimConfig
from envs.tracking.config import TrackingConfig
from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.correction.by_mpc import correct_by_mpc
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.outcome import Outcome
from parc_ray.correction.strategies import (
    better,
    correct_by_tracker,
    judge,
    needs_mpc,
    record_config,
    source_seed,
)
from parc_ray.correction.tables import (
    clip_table,
    corrector_figures,
    corrector_table,
    failure_table,
    rule_counts,
)
from parc_ray.data.manifest import Manifest
from parc_ray.data.store import read_part
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._datasets import read_input, save_manifest, write_clips
from parc_ray.stages._trackers import make_factory, read_policy, warn_of_cpu
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.pool import ItemOutput, ItemResult, WorkItem, run_items
from parc_ray.stages.registry import StageSpec

CLIPS_PER_TRACKER_ITEM = 32
RECORD_GPUS = "--resources.places.record.gpus"
"""Setting of the GPUs of each actor that corrects motions."""
REFUSED = "refused.json"
"""Manifest of recordings that the gate refused."""


@dataclass(frozen=True, kw_only=True)
class RecordSetup:
    """What both kinds of workers need."""

    clips: list[MotionClip]
    character: Character
    correction: CorrectionConfig
    tracking: TrackingConfig
    sim: SimConfig
    simulator: str
    iteration: int
    seed: int

    def factory(self) -> BackendFactory:
        """Makes simulators."""
        return make_factory(self.character, self.sim, self.simulator)


@dataclass
class TrackerWorker:
    """Records chunks of clips with the policy."""

    setup: RecordSetup
    policy: MlpPolicy

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Record clips ``first`` to ``last`` (exclusive)."""
        setup = self.setup
        clips = setup.clips[item.payload["first"] : item.payload["last"]]
        outcomes = correct_by_tracker(
            setup.character,
            setup.factory(),
            clips,
            self.policy,
            setup.correction,
            setup.tracking,
            setup.seed,
            {"tracker": self.policy.digest},
            setup.iteration,
        )
        return _output(outcomes)


@dataclass
class MpcWorker:
    """Corrects one clip at a time."""

    setup: RecordSetup
    by_id: dict[str, MotionClip] = field(init=False)

    def __post_init__(self) -> None:
        """Index the clips."""
        self.by_id = {clip.clip_id: clip for clip in self.setup.clips}

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Correct clip ``clip``."""
        setup = self.setup
        clip = self.by_id[item.payload["clip"]]
        seed = source_seed(setup.seed, clip.clip_id)
        outcome = correct_by_mpc(
            setup.character,
            setup.factory(),
            clip,
            setup.correction,
            setup.tracking,
            record_config(setup.correction, seed),
            seed,
            setup.iteration,
        )
        judge(outcome, clip, setup.character, setup.correction)
        return _output([outcome])


def _output(outcomes: Sequence[Outcome]) -> ItemOutput:
    return ItemOutput(
        clips=[clip for o in outcomes for clip in o.clips()],
        record={"outcomes": [o.record() for o in outcomes]},
    )


def record_setup(
    run: StageRun, config: ParcConfig, character: Character, clips: list[MotionClip]
) -> RecordSetup:
    """What workers of a stage need."""
    return RecordSetup(
        clips=clips,
        character=character,
        correction=config.correction_for(run.ctx.iteration),
        tracking=config.tracking,
        sim=replace(config.sim, num_threads=config.resources.threads_per_worker),
        simulator=config.simulator,
        iteration=run.ctx.iteration,
        seed=run.seed,
    )


def body(run: StageRun) -> StageOutputs:
    """Tracker, then MPC, as the strategy says; then one data set of what was kept."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    correction = config.correction_for(run.ctx.iteration)
    clips = read_input(run, "motions", character)
    setup = record_setup(run, config, character, clips)
    warn_of_cpu(run, config.resources.recording_pool().gpus, RECORD_GPUS)
    outcomes = {clip.clip_id: Outcome(source_id=clip.clip_id) for clip in clips}
    results: list[ItemResult] = []
    if "tracker" in run.inputs and correction.strategy != "mpc":
        results += _by_tracker(run, config, setup, outcomes)
    if correction.strategy != "tracker":
        results += _by_mpc(run, config, setup, outcomes)
    made = list(outcomes.values())
    parts = write_clips(run, [o.clip for o in made if o.clip is not None], "recorded")
    manifest = save_manifest(run, f"M{run.ctx.iteration}", parts, character)
    run.dir.write_json_atomic("records.json", [o.record() for o in made])
    _write_refused(run, made, character)
    for name, table in (
        ("corrections", clip_table(made)),
        ("failures", failure_table(made)),
        ("correctors", corrector_table(made)),
    ):
        run.dir.write_bytes_atomic(f"{name}.csv", table.to_csv(index=False).encode())
    return StageOutputs(
        paths={"recorded": "manifest.json"},
        rows={"recorded": manifest.rows},
        metrics=metrics_of(made, manifest.seconds) | corrector_figures(made) | rule_counts(made),
        worker_cpu_seconds=sum(r.cpu_s for r in results),
    )


def _write_refused(run: StageRun, outcomes: Sequence[Outcome], character: Character) -> None:
    """Keep what the gate refused, in a data set of its own."""
    parts = write_clips(run, [o.refused for o in outcomes if o.refused is not None], "refused")
    home = run.ctx.stage_path(run.name)
    Manifest(
        name=f"refused{run.ctx.iteration}",
        iteration=run.ctx.iteration,
        parts=tuple(part.under(home) for part in parts),
        character_digest=character.digest,
    ).save(run.ctx.run, f"{home}/{REFUSED}")


def _by_tracker(
    run: StageRun, config: ParcConfig, setup: RecordSetup, outcomes: dict[str, Outcome]
) -> list[ItemResult]:
    count = len(setup.clips)
    items = [
        WorkItem(
            id=f"tracker-{first:05d}",
            payload={"first": first, "last": min(first + CLIPS_PER_TRACKER_ITEM, count)},
        )
        for first in range(0, count, CLIPS_PER_TRACKER_ITEM)
    ]
    arguments = {"setup": setup, "policy": read_policy(run)}
    pool = config.resources.recording_pool()
    label = f"{run.ctx.stage_path(run.name)} tracker"
    results = run_items(run.dir, items, TrackerWorker, arguments, pool, label)
    for outcome in outcomes_of(run, results):
        outcomes[outcome.source_id] = outcome
    return results


def _by_mpc(
    run: StageRun, config: ParcConfig, setup: RecordSetup, outcomes: dict[str, Outcome]
) -> list[ItemResult]:
    open_ids = [i for i, outcome in outcomes.items() if needs_mpc(outcome, setup.correction)]
    index = {clip.clip_id: number for number, clip in enumerate(setup.clips)}
    items = [WorkItem(id=f"mpc-{index[i]:05d}", payload={"clip": i}) for i in open_ids]
    pool = config.resources.recording_pool()
    label = f"{run.ctx.stage_path(run.name)} mpc"
    results = run_items(run.dir, items, MpcWorker, {"setup": setup}, pool, label)
    for outcome in outcomes_of(run, results):
        outcomes[outcome.source_id] = better(outcomes[outcome.source_id], outcome)
    return results


def outcomes_of(run: StageRun, results: Sequence[ItemResult]) -> list[Outcome]:
    """What finished items came to, in their order."""
    made = []
    for result in results:
        clips = read_part(run.dir, result.part) if result.part is not None else []
        by_id = {clip.clip_id: clip for clip in clips}
        made += [Outcome.from_record(record, by_id) for record in result.record["outcomes"]]
    return made


def metrics_of(outcomes: Sequence[Outcome], seconds: float) -> dict[str, float]:
    """Counts by corrector and extent, each corrector's cost, mean errors of what was kept."""
    kept = [o for o in outcomes if o.clip is not None]
    by = {name: sum(o.corrector == name for o in kept) for name in ("tracker", "mpc")}
    attempts = [a for o in outcomes for a in o.attempts]
    mpc = [a for a in attempts if a.corrector == "mpc"]
    out: dict[str, float] = {
        "attempted": float(len(outcomes)),
        "corrected": float(len(kept)),
        "corrected_share": len(kept) / len(outcomes) if outcomes else math.nan,
        "corrected_tracker": float(by["tracker"]),
        "corrected_mpc": float(by["mpc"]),
        "corrected_whole": float(sum(o.whole for o in kept)),
        "corrected_segment": float(sum(not o.whole for o in kept)),
        "seconds": seconds,
        "mpc_attempts": float(len(mpc)),
        "mpc_rewinds": float(sum(a.rewinds for a in mpc)),
        "mpc_cpu_s": sum(a.cpu_s for a in mpc),
        "mpc_cpu_s_per_motion_s": _ratio(
            sum(a.cpu_s for a in mpc), sum(a.frames for a in mpc) / 30.0
        ),
    }
    names = ("body_global_m", "body_local_m", "hjf_frames_percent", "contact_f1", "tpl")
    for name in names:
        values = [v for o in kept if math.isfinite(v := o.metrics.get(name, math.nan))]
        out[name] = sum(values) / len(values) if values else math.nan
    return out


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan


def _section(config: ParcConfig, iteration: int) -> dict[str, Any]:
    return {
        "correction": config.correction_for(iteration),
        "tracking": config.tracking,
        "sim": replace(config.sim, num_threads=1),
        "simulator": config.simulator,
        "character": config.character,
    }


STAGE = StageSpec(section=_section, body=body)
