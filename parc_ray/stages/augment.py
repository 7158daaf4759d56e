"""``augment``: the initial clips and spatial variants of them.

Output ``dataset``: kinematic clips, originals first; iteration 0 then makes them physical.
``variants.csv`` tells every try at a variant, what it kept or why not; ``gallery.html`` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch

from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_part
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._datasets import item_parts, require_clips, save_manifest, write_clips
from parc_ray.stages._initial import check_initial, choose_initial, load_initial
from parc_ray.stages._variants import (
    all_rows,
    attempt_rows,
    forecast,
    gallery_page,
    variant_metrics,
)
from parc_ray.stages.base import StageContext, StageOutputs, StageRun
from parc_ray.stages.pool import ItemOutput, ItemResult, WorkItem, run_items
from parc_ray.stages.registry import StageSpec
from parc_ray.synthesis.assemble import with_bounds
from parc_ray.synthesis.augmentation import make_good_variants
from parc_ray.synthesis.config import AugmentConfig
from parc_ray.synthesis.levels import level_change
from parc_ray.synthesis.variant_plan import VariantPlan, plan_variants

PLANS_PER_ITEM = 8
LEVEL_CHANGE_M = 0.1


@dataclass
class VariantWorker:
    """Carries out some plans."""

    clips: list[MotionClip]
    plans: list[VariantPlan]
    character: Character
    config: AugmentConfig

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Make the variants of plans ``first`` to ``last`` (exclusive)."""
        plans = self.plans[item.payload["first"] : item.payload["last"]]
        parents = {clip.clip_id: clip for clip in self.clips}
        made = make_good_variants(self.clips, plans, self.character, self.config)
        rows = []
        for outcome, plan in zip(made, plans, strict=True):
            parent = parents[plan.parent_id]
            rows += attempt_rows(outcome, parent.provenance.class_name, parent.fps)
        return ItemOutput(
            clips=[with_bounds(o.clip, self.character) for o in made if o.clip is not None],
            record={"attempts": rows},
        )


def body(run: StageRun) -> StageOutputs:
    """Import, choose, vary."""
    config: ParcConfig = run.ctx.config
    torch.set_num_threads(config.resources.threads_per_worker)
    character = load_character(config.character)
    originals, plans = make_plans(config, character, run.seed)
    run.log.info("[augment] %d clips, %d variants", len(originals), len(plans))
    items = [
        WorkItem(
            id=f"variants-{first:05d}",
            payload={"first": first, "last": min(first + PLANS_PER_ITEM, len(plans))},
        )
        for first in range(0, len(plans), PLANS_PER_ITEM)
    ]
    arguments = {
        "clips": originals,
        "plans": plans,
        "character": character,
        "config": config.augment,
    }
    results = run_items(
        run.dir,
        items,
        VariantWorker,
        arguments,
        config.resources.augmenting_pool(),
        run.ctx.stage_path(run.name),
    )
    bounded = [with_bounds(clip, character) for clip in originals]
    parts = [*write_clips(run, bounded, "originals"), *item_parts(results)]
    manifest = save_manifest(run, "initial", parts, character)
    figures = _tell(run, results, originals, character)
    return StageOutputs(
        # the gallery tells times, and what is listed here is hashed
        paths={"dataset": "manifest.json", "variants": "variants.csv"},
        rows={"dataset": manifest.rows},
        metrics={
            "clips": float(manifest.rows),
            "seconds": manifest.seconds,
            "level_change_share": _share(originals, character),
            **figures,
        },
        worker_cpu_seconds=sum(r.cpu_s for r in results),
    )


def make_plans(
    config: ParcConfig, character: Character, seed: int
) -> tuple[list[MotionClip], list[VariantPlan]]:
    """The initial clips and the plans of their variants, longest first.

    Plans of like length are made together, so that little is padded.
    """
    originals = choose_initial(load_initial(config.data, character, seed), config.d0)
    require_clips(originals, "initial data", "give a directory with motions")
    per_clip = max(1, config.augment.variants_per_clip)
    plans = [
        replace(plan, variant_id=f"{plan.parent_id}_a{number % per_clip:03d}")
        for number, plan in enumerate(plan_variants(originals, config.augment, seed))
    ]
    return originals, sorted(plans, key=lambda plan: -plan.num_frames)


def _tell(
    run: StageRun,
    results: Sequence[ItemResult],
    originals: Sequence[MotionClip],
    character: Character,
) -> dict[str, float]:
    """Write the table and the gallery; return the figures."""
    rows = all_rows(results)
    table = pd.DataFrame(rows).to_csv(index=False)
    run.dir.write_bytes_atomic("variants.csv", table.encode())
    metrics = variant_metrics(rows, sum(r.cpu_s for r in results))
    made = [clip for r in results if r.part is not None for clip in read_part(run.dir, r.part)]
    most = run.ctx.config.augment.gallery
    page = gallery_page(rows, made, originals, character, most, metrics)
    run.dir.write_bytes_atomic("gallery.html", page.encode())
    for row in rows:
        if not row["kept"]:
            run.log.info("[augment] %s, try %d: %s", row["variant"], row["attempt"], row["faults"])
    run.log.info("[augment] %s/gallery.html", run.dir)
    return metrics


def preview(config: ParcConfig) -> str:
    """The plan of the variants, per clip, with projected CPU-hours."""
    torch.set_num_threads(config.resources.threads_per_worker)
    character = load_character(config.character)
    run = Storage.from_uri(config.storage).join(config.name)
    seed = StageContext(run=run, iteration=0, config=config).seed("augment")
    originals, plans = make_plans(config, character, seed)
    return forecast(originals, plans, character, config.augment, PLANS_PER_ITEM)


def _share(clips: Sequence[MotionClip], character: Character) -> float:
    """Share of the originals' seconds whose feet cross a level change of 0.1 m or more."""
    total = sum(clip.duration_s for clip in clips)
    crossing = sum(
        clip.duration_s for clip in clips if level_change(clip, character) >= LEVEL_CHANGE_M - 1e-4
    )
    return crossing / total if total else 0.0


STAGE = StageSpec(
    section=lambda config, iteration: {
        "augment": config.augment,
        "data": config.data,
        "d0": {"max_clips": config.d0.max_clips, "max_clip_s": config.d0.max_clip_s},
        "character": config.character,
    },
    body=body,
    check=lambda config: check_initial(config.data, load_character(config.character)),
    preview=preview,
)
