"""What the ``augment`` stage tells of its variants: a table, figures, a gallery, a forecast."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from parc_ray.character.character import Character
from parc_ray.evaluation.gallery import Exhibit, render_gallery
from parc_ray.evaluation.report import Card, text_of
from parc_ray.motion.clip import MotionClip
from parc_ray.stages.pool import ItemResult
from parc_ray.synthesis.augmentation import VariantOutcome, make_variants, place_motion
from parc_ray.synthesis.config import AugmentConfig
from parc_ray.synthesis.variant_plan import VariantPlan, recipe_for, recipe_name

_PLAN_COLUMNS = ("start", "num_frames", "mirror", "scale_x", "scale_y", "extent_x", "extent_y")
_PLAN_COLUMNS += ("grow", "kind", "height_scale")
_FIGURES = (
    "depth_mean_before_m",
    "depth_mean_m",
    "depth_max_m",
    "point_depth_mean_m",
    "limit_excess_deg",
    "largest_jerk",
    "parent_jerk",
    "contact_gap_m",
    "foot_slide_mps",
    "level_change",
    "kin_iterations",
)
Row = dict[str, Any]
"""One try at a variant: its plan and figures, as ``variants.csv`` has them."""
_TRIAL_STEPS = 10


def attempt_rows(outcome: VariantOutcome, class_name: str, fps: float) -> list[Row]:
    """JSON rows of a variant's tries, the last one being what it came to."""
    rows: list[Row] = []
    for attempt in outcome.attempts:
        plan = attempt.plan
        rows.append(
            {
                "variant": plan.variant_id,
                "parent": plan.parent_id,
                "class": class_name,
                "attempt": plan.attempt,
                "seed": plan.seed,
                "kept": not attempt.faults,
                "faults": "; ".join(attempt.faults),
                "seconds": (plan.num_frames - 1) / fps,
                "heading_deg": math.degrees(plan.heading),
                "boxes": len(plan.boxes),
                **{name: getattr(plan, name) for name in _PLAN_COLUMNS},
                **{name: attempt.metrics.get(name) for name in _FIGURES},
            }
        )
    return rows


def all_rows(results: Sequence[ItemResult]) -> list[Row]:
    """The rows of every try of every variant, in the order of their ids."""
    rows = [row for result in results for row in result.record["attempts"]]
    return sorted(rows, key=lambda row: (row["variant"], row["attempt"]))


def variant_metrics(rows: Sequence[Row], cpu_s: float) -> dict[str, float]:
    """Counts, and means over the kept variants (depths in mm); NaN where there are none."""
    kept = [row for row in rows if row["kept"]]
    planned = len({row["variant"] for row in rows})
    parents = len({row["parent"] for row in rows})

    def mean(name: str) -> float:
        return sum(row[name] for row in kept) / len(kept) if kept else math.nan

    def most(name: str) -> float:
        return max((row[name] for row in kept), default=math.nan)

    per_variant = cpu_s / planned if planned else math.nan
    return {
        "planned": float(planned),
        "variants": float(len(kept)),
        "dropped": float(planned - len(kept)),
        "tries": float(len(rows)),
        "depth_mean_before_mm": 1e3 * mean("depth_mean_before_m"),
        "depth_mean_mm": 1e3 * mean("depth_mean_m"),
        "point_depth_mean_mm": 1e3 * mean("point_depth_mean_m"),
        "depth_max_mm": 1e3 * most("depth_max_m"),
        "limit_excess_max_deg": most("limit_excess_deg"),
        "contact_gap_mm": 1e3 * mean("contact_gap_m"),
        "jerk_max_m_s3": most("largest_jerk"),
        "variant_cpu_s": cpu_s,
        "cpu_s_per_variant": per_variant,
        "cpu_h_for_50_per_clip": per_variant * 50 * parents / 3600,
    }


def gallery_page(
    rows: Sequence[Row],
    made: Sequence[MotionClip],
    parents: Sequence[MotionClip],
    character: Character,
    most: int,
    metrics: dict[str, float],
) -> str:
    """The gallery of at most ``most`` variants, taken evenly, and the table of all.

    Args:
        rows: of ``all_rows``.
        made: kept variants; their provenance holds their plans.
        parents: the clips they are made from.
        character: the character.
        most: strips on the page.
        metrics: of ``variant_metrics``.
    """
    last = {row["variant"]: _readable(row) for row in rows}
    picked = sorted(made, key=lambda clip: clip.clip_id)
    if len(picked) > most:
        picked = [picked[round(i)] for i in np.linspace(0, len(picked) - 1, most)]
    by_id = {clip.clip_id: clip for clip in parents}
    exhibits = []
    for clip in picked:
        plan = VariantPlan.from_json(clip.provenance.notes)
        before = place_motion(by_id[plan.parent_id], plan, character)
        facts = {k: text_of(v) for k, v in last[clip.clip_id].items() if k not in _NOT_SHOWN}
        exhibits.append(Exhibit(clip=clip, before=before, facts=facts))
    cards = [Card(label=label, value=text_of(metrics[name])) for label, name in _CARDS]
    table = pd.DataFrame(list(last.values()))
    title = "Spatial variants of the initial clips"
    return render_gallery(title, cards, table, exhibits, character)


_CARDS = (
    ("variants kept", "variants"),
    ("dropped", "dropped"),
    ("mean depth before, mm", "depth_mean_before_mm"),
    ("mean depth after, mm", "depth_mean_mm"),
    ("worst depth, mm", "depth_max_mm"),
    ("beyond parents' joint limits, deg", "limit_excess_max_deg"),
    ("CPU-s per variant", "cpu_s_per_variant"),
)
_NOT_SHOWN = ("variant", "dropped for")


def _readable(row: Row) -> dict[str, Any]:
    """A row of the page, in its units."""
    return {
        "variant": row["variant"],
        "class": row["class"],
        "tries": row["attempt"] + 1,
        "s": row["seconds"],
        "mirrored": row["mirror"],
        "turn (deg)": row["heading_deg"],
        "heights x": row["height_scale"],
        "extents x": f"{row['extent_x']:.2f}, {row['extent_y']:.2f}",
        "stretch": f"{row['scale_x']:.2f}, {row['scale_y']:.2f}",
        "grown (cells)": row["grow"],
        "boxes": row["boxes"],
        "level change (m)": row["level_change"],
        "depth before (mm)": 1e3 * row["depth_mean_before_m"],
        "depth after (mm)": 1e3 * row["depth_mean_m"],
        "worst depth (mm)": 1e3 * row["depth_max_m"],
        "limits (deg)": row["limit_excess_deg"],
        "jerk (m/s^3)": row["largest_jerk"],
        "of parent": row["parent_jerk"],
        "off contacts (mm)": 1e3 * row["contact_gap_m"],
        "dropped for": row["faults"],
    }


def forecast(
    clips: Sequence[MotionClip],
    plans: Sequence[VariantPlan],
    character: Character,
    config: AugmentConfig,
    batch: int,
) -> str:
    """What the plans are and what they will cost, from a short trial on this machine.

    Args:
        clips: the parents.
        plans: all plans.
        character: the character.
        config: settings.
        batch: plans that are made together.
    """
    by_clip: dict[str, list[VariantPlan]] = defaultdict(list)
    for plan in plans:
        by_clip[plan.parent_id].append(plan)
    lines = [
        f"{'clip':<28} {'class':<12} {'recipe':<12} {'kind':<12} {'n':>4} {'s each':>7}  drawn",
    ]
    for clip in clips:
        drawn = by_clip.get(clip.clip_id, [])
        recipe = recipe_for(clip, config)
        seconds = sum(p.num_frames - 1 for p in drawn) / max(1, len(drawn)) / clip.fps
        lines.append(
            f"{clip.clip_id:<28} {clip.provenance.class_name:<12} {recipe_name(clip, config):<12} "
            f"{recipe.kind:<12} {len(drawn):>4} {seconds:>7.2f}  {_ranges(drawn)}"
        )
    frames = sum(plan.num_frames for plan in plans)
    lines.append(f"{len(plans)} variants of {len(clips)} clips, {frames} frames")
    if plans:
        per_frame = frame_cost(clips, plans, character, config, batch)
        lines.append(
            f"projected: {per_frame * 1e3:.1f} CPU-ms a frame here, "
            f"{frames * per_frame / 3600:.3f} CPU-hours in all, at most "
            f"{config.quality.attempts} times that if every variant must be made again"
        )
    return "\n".join(lines)


def frame_cost(
    clips: Sequence[MotionClip],
    plans: Sequence[VariantPlan],
    character: Character,
    config: AugmentConfig,
    batch: int,
) -> float:
    """CPU-seconds per frame of a whole adaptation, by three short trials of a middling batch."""
    order = sorted(plans, key=lambda plan: plan.num_frames)
    middle = max(0, (len(order) - batch) // 2)
    chosen = order[middle : middle + batch]

    def trial(ik: int, steps: int) -> float:
        settings = replace(config.optimizer, iterations=steps, tolerance=0.0)
        began = time.process_time()
        make_variants(
            clips, chosen, character, replace(config, ik_iterations=ik, optimizer=settings)
        )
        return time.process_time() - began

    trial(1, 1)  # first calls build tables and code
    fixed = trial(0, 0)
    ik = max(0.0, trial(_TRIAL_STEPS, 0) - fixed) / _TRIAL_STEPS
    step = max(0.0, trial(0, _TRIAL_STEPS) - fixed) / _TRIAL_STEPS
    total = fixed + config.ik_iterations * ik + config.optimizer.iterations * step
    return total / sum(plan.num_frames for plan in chosen)


def _ranges(plans: Sequence[VariantPlan]) -> str:
    """Least and greatest of what was drawn."""
    if not plans:
        return "-"

    def span(values: Sequence[float], digits: int = 2) -> str:
        return f"{min(values):.{digits}f}..{max(values):.{digits}f}"

    words = [
        f"turn {span([math.degrees(p.heading) for p in plans], 0)} deg",
        f"extents {span([v for p in plans for v in (p.extent_x, p.extent_y)])}",
        f"stretch {span([v for p in plans for v in (p.scale_x, p.scale_y)])}",
    ]
    if plans[0].kind == "height_scale":
        words.insert(0, f"heights {span([p.height_scale for p in plans])}")
    if any(p.boxes for p in plans):
        words.insert(0, f"boxes {span([len(p.boxes) for p in plans], 0)}")
        words.append(f"box heights {span([b.height for p in plans for b in p.boxes])} m")
    if any(p.grow for p in plans):
        words.append(f"grown {span([p.grow for p in plans], 0)} cells")
    return ", ".join([*words, f"mirrored {sum(p.mirror for p in plans)}"])
