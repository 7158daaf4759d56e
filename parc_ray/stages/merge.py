"""``merge``: D_i = D_{i-1} + M_i, by reference. In iteration 0 the first data set.

Output ``dataset``: a manifest whose parts lie in the stages that made them.
"""

from __future__ import annotations

from dataclasses import replace

from parc_ray.character.character import load_character
from parc_ray.config import ParcConfig
from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.store import read_clips
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
    if "dataset" in run.inputs:
        merged = read_manifest(run, "dataset").extend(new.parts, name, run.ctx.iteration)
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
            "new_clips": float(new.rows),
            "uncorrected_clips": float(kept),
        },
    )


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
    section=lambda config, iteration: {"character": config.character},
    body=body,
    needs_ray=False,
)
