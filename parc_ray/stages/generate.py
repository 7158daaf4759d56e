"""``generate``: terrains, paths, candidates, selection, kinematic optimisation, mirror images.

Output ``motions``: kinematic clips M~_i. ``records.json`` says what became of every terrain,
``rejections.csv`` why each candidate was not kept, ``throughput.csv`` how fast each operator was.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from parc_ray.character.character import Character, load_character
from parc_ray.config import GeneratorBudget, IterationConfig, ParcConfig, TrackerBudget
from parc_ray.data.store import read_part
from parc_ray.motion.clip import MotionClip
from parc_ray.pool_config import ChainPools, PoolConfig
from parc_ray.stages._datasets import save_manifest, write_clips
from parc_ray.stages._operators import (
    REJECTION_COLUMNS,
    REJECTION_KEYS,
    OptimizeStep,
    PlanStep,
    RollOutStep,
)
from parc_ray.stages._success import row_and_factor
from parc_ray.stages._throughput import log_item, write_throughput
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.pool import ItemResult, Operator, WorkItem, run_chain
from parc_ray.stages.registry import StageSpec
from parc_ray.stages.streams import capacity

TERRAINS_PER_ITEM = 3
TERRAINS_PER_MOTION = 10
GROWTH = 4
"""A round is at most this many times as large as all rounds before it."""


def body(run: StageRun) -> StageOutputs:
    """Generate in rounds until enough motions are kept or enough terrains were tried."""
    config: ParcConfig = run.ctx.config
    row, factor = row_and_factor(run)
    character = load_character(config.character)
    pools = config.resources.generate_pools()
    together = pools.shared(capacity())
    run.log.info("[%s] %s", run.ctx.stage_path(run.name), describe(pools, together))
    results = _rounds(run, row, operators(run, row, character, pools), pools, together)
    clips = _first_motions(run, results, row.motions)
    parts = write_clips(run, clips, "motions")
    manifest = save_manifest(run, f"M~{run.ctx.iteration}", parts, character)
    _write_records(run, results)
    return StageOutputs(
        paths={"motions": "manifest.json"},
        rows={"motions": manifest.rows},
        metrics={
            **_metrics(results, clips, manifest.seconds),
            "difficulty": row.terrain.difficulty,
            "difficulty_factor": factor,
            **write_throughput(run, results),
        },
        worker_cpu_seconds=sum(r.cpu_s for r in results),
    )


def operators(
    run: StageRun, row: IterationConfig, character: Character, pools: ChainPools
) -> list[Operator]:
    """The chain: plan, roll-out, optimise."""
    config: ParcConfig = run.ctx.config
    synthesis = config.synthesis_for(run.ctx.iteration)
    storage, path = run.open_input("generator")
    pool = pools.operators
    plan = {"row": row, "synthesis": synthesis, "seed": run.seed}
    rolling = {
        **plan,
        "generator": storage.read_bytes(path),
        "character": character,
        "iteration": run.ctx.iteration,
        "device": pool["roll-out"].device,
    }
    finishing = {
        "character": character,
        "synthesis": synthesis,
        "device": pool["optimise"].device,
    }
    return [
        Operator(name="plan", make=PlanStep, arguments=plan, pool=pool["plan"]),
        Operator(name="roll-out", make=RollOutStep, arguments=rolling, pool=pool["roll-out"]),
        Operator(name="optimise", make=OptimizeStep, arguments=finishing, pool=pool["optimise"]),
    ]


def describe(pools: ChainPools, together: PoolConfig | None) -> str:
    """Where the operators run, for the log."""
    if together is not None:
        return f"{together.actors} actors run all operators, {together.gpus:g} GPUs each"
    return ", ".join(
        f"{name}: {pool.actors} actors of {pool.cpus:g} CPUs and {pool.gpus:g} GPUs"
        for name, pool in pools.operators.items()
    )


def _rounds(
    run: StageRun,
    row: IterationConfig,
    chain: Sequence[Operator],
    pools: ChainPools,
    together: PoolConfig | None,
) -> list[ItemResult]:
    """Items in rounds whose size depends on results only, never on the number of actors."""
    limit = row.max_terrains or TERRAINS_PER_MOTION * row.motions
    top_k = run.ctx.config.synthesis.selection.top_k
    results: list[ItemResult] = []
    tried, kept = 0, 0
    while kept < row.motions and tried < limit:
        count = min(round_size(tried, kept, row.motions, top_k), limit - tried)
        firsts = range(tried, tried + count, TERRAINS_PER_ITEM)
        items = [
            WorkItem(
                id=f"terrains-{first:05d}",
                payload={"first": first, "last": min(first + TERRAINS_PER_ITEM, tried + count)},
            )
            for first in firsts
        ]
        steps = {item.id: item.payload["first"] for item in items}
        results += run_chain(
            run.dir,
            items,
            chain,
            run.ctx.stage_path(run.name),
            together=together,
            queued=pools.queued,
            watch=lambda result, steps=steps: log_item(run, steps[result.id], result),
        )
        tried += count
        kept = sum(_kept(r) for r in results)
    return results


def round_size(tried: int, kept: int, motions: int, top_k: int) -> int:
    """Terrains of the next round: what the missing motions take at the share kept so far.

    Args:
        tried: terrains of all rounds before.
        kept: motions that came of them.
        motions: motions wanted.
        top_k: most motions per terrain, expected at first.

    Returns:
        Whole items; few rounds, for each of which actors are started.
    """
    if tried == 0:
        wanted = math.ceil(motions / top_k)
    elif kept == 0:
        wanted = GROWTH * tried
    else:
        wanted = min(math.ceil((motions - kept) * tried / kept), GROWTH * tried)
    return TERRAINS_PER_ITEM * math.ceil(wanted / TERRAINS_PER_ITEM)


def _write_records(run: StageRun, results: Sequence[ItemResult]) -> None:
    """``records.json``, one entry per item, and ``rejections.csv``, one line per rejection."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, REJECTION_COLUMNS, lineterminator="\n")
    writer.writeheader()
    records = []
    for result in results:
        for key in REJECTION_KEYS:
            writer.writerows(result.record[key])
        rest = {k: v for k, v in result.record.items() if k not in REJECTION_KEYS}
        records.append({"id": result.id, **rest})
    run.dir.write_json_atomic("records.json", records)
    run.dir.write_bytes_atomic("rejections.csv", stream.getvalue().encode())


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
        late = [row["reason"].partition(":")[0] for row in result.record["rejected_motions"]]
        rejections.update(late)
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
    # The same frames, those that the generator plants; the labels of a finished clip are others.
    for when in ("before", "after"):
        values = [c.metrics[f"kin_foot_slide_{when}"] for c in clips]
        out[f"planted_way_m_{when}"] = sum(values) / len(values) if values else math.nan
    return out


STAGE = StageSpec(
    section=lambda config, iteration: {
        "row": replace(config.row(iteration), generator=GeneratorBudget(), tracker=TrackerBudget()),
        "synthesis": config.synthesis_for(iteration),
        "character": config.character,
        "curriculum": config.curriculum if config.curriculum.by == "success" else None,
    },
    body=body,
)
