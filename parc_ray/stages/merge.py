"""``merge``: D_i = D_{i-1} + M_i, by reference. In iteration 0 the first data set.

Output ``dataset``: a manifest whose parts lie in the stages that made them. Where the naturalness
filter is on, motions that are odder than D0's clips stay outside: ``naturalness.csv`` says of every
new one what was measured and why it was rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.data.manifest import FILE_NAME, Manifest, Part
from parc_ray.data.store import read_clips
from parc_ray.evaluation.naturalness import Judgement, NaturalnessFilter
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._datasets import read_input, read_manifest, require_clips, write_clips
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.registry import StageSpec


def body(run: StageRun) -> StageOutputs:
    """Extend the last data set, or begin the first one."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    name = f"D{run.ctx.iteration}"
    new = read_manifest(run, "motions")
    new.check_character(character.digest, "input 'motions'")
    rejected, share = 0, 0.0
    if "dataset" in run.inputs:
        before = read_manifest(run, "dataset")
        parts = new.parts
        if config.naturalness.enabled and new.rows:
            parts, rejected, share = _filtered(run, config, character, before, new)
        merged = before.extend(parts, name, run.ctx.iteration)
    else:
        merged = replace(new, name=name, iteration=run.ctx.iteration, parents=())
    kept = 0
    if "uncorrected" in run.inputs:
        merged, kept = _with_uncorrected(run, merged)
    home = run.ctx.stage_path(run.name)
    merged.save(run.ctx.run, f"{home}/{FILE_NAME}")
    clips = read_clips(run.ctx.run, merged)
    require_clips(clips, f"data set {name}", "nothing could be corrected; see records.json")
    return StageOutputs(
        paths={"dataset": FILE_NAME},
        rows={"dataset": merged.rows},
        metrics={
            "clips": float(merged.rows),
            "seconds": merged.seconds,
            "new_clips": float(new.rows - rejected),
            "rejected_clips": float(rejected),
            "naturalness_rejects_of_d0": share,
            "uncorrected_clips": float(kept),
        },
    )


def _filtered(
    run: StageRun, config: ParcConfig, character: Character, before: Manifest, new: Manifest
) -> tuple[tuple[Part, ...], int, float]:
    """Parts of the new clips that pass the filter, how many do not, and D0's rejected share."""
    known = read_clips(run.ctx.run, before)
    initial = [clip for clip in known if clip.provenance.iteration == 0]
    require_clips(initial, "naturalness filter", "it is calibrated on D0; switch it off")
    judge = NaturalnessFilter.fit(initial, character, config.naturalness)
    clips = read_clips(run.ctx.run, new)
    found = [judge.judge(clip, character) for clip in clips]
    _write_judgements(run, found, judge)
    kept = [clip for clip, j in zip(clips, found, strict=True) if not j.reasons]
    if len(kept) == len(clips):
        return new.parts, 0, judge.rejected_share
    home = run.ctx.stage_path(run.name)
    parts = tuple(part.under(home) for part in write_clips(run, kept, "natural"))
    return parts, len(clips) - len(kept), judge.rejected_share


def _write_judgements(run: StageRun, found: Sequence[Judgement], judge: NaturalnessFilter) -> None:
    """Every new clip with its figures and the reasons against it; the limits in the last row."""
    rows = [{"clip": j.clip_id, "reasons": "; ".join(j.reasons), **j.figures} for j in found]
    rows.append({"clip": "(limit)", "reasons": "", **judge.limits})
    table = pd.DataFrame(rows).to_csv(index=False)
    run.dir.write_bytes_atomic("naturalness.csv", table.encode())
    for j in found:
        if j.reasons:
            run.log.info("[%s] rejected %s: %s", run.name, j.clip_id, "; ".join(j.reasons))


def _section(config: ParcConfig, iteration: int) -> dict[str, object]:
    """The filter counts where it is on and there is something to filter."""
    section: dict[str, object] = {"character": config.character}
    if config.naturalness.enabled and iteration:
        section["naturalness"] = config.naturalness
    return section


def _with_uncorrected(run: StageRun, merged: Manifest) -> tuple[Manifest, int]:
    """Add the kinematic clips of which no recording was made, marked by their maker."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    recorded = {p for clip in read_clips(run.ctx.run, merged) for p in clip.provenance.parents}
    missing: list[MotionClip] = [
        clip for clip in read_input(run, "uncorrected", character) if clip.clip_id not in recorded
    ]
    home = run.ctx.stage_path(run.name)
    parts = [part.under(home) for part in write_clips(run, missing, "uncorrected")]
    return replace(merged, parts=(*merged.parts, *parts)), len(missing)


STAGE = StageSpec(
    section=_section,
    body=body,
    needs_ray=False,
)
