"""The initial clips of a run: import, cut to size, choose."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from parc_ray.character.character import Character
from parc_ray.config import D0Config, DataConfig
from parc_ray.data.importers.pipeline import (
    ImportOptions,
    TerrainInference,
    import_path,
    refusal,
)
from parc_ray.data.repair import RepairConfig
from parc_ray.data.sample_data import fetch_wheel, load_sample_clips
from parc_ray.errors import InputError
from parc_ray.motion.clip import LoopMode, MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.resample import unroll_loop
from parc_ray.synthesis.sample_variants import make_sample_variants
from parc_ray.synthesis.terrain_inference import TerrainEstimate
from parc_ray.terrain.heightfield import Heightfield

logger = logging.getLogger(__name__)

SAMPLE = "sample"


def load_initial(data: DataConfig, character: Character, seed: int) -> list[MotionClip]:
    """Import the run's initial data.

    Files of a directory that are too short to train on are left out with a line in the log;
    anything else that is wrong with a file stops the run.

    Args:
        data: where it is.
        character: whose motions they are to be.
        seed: of the terrain variants of the built-in sample.

    Raises:
        InputError: nothing there, a file that cannot be used, or nothing long enough.
    """
    if data.path == SAMPLE:
        flat = load_sample_clips(character, options=import_options(data))
        return make_sample_variants(flat, character, seed)
    clips, left_out = import_source(data, character)
    for line in left_out:
        logger.warning("left out: %s", line)
    return clips


def import_source(
    data: DataConfig,
    character: Character,
    infer: TerrainInference | None = None,
    *,
    repair: RepairConfig | None = None,
    refused: list[str] | None = None,
    passed_over: list[Path] | None = None,
) -> tuple[list[MotionClip], list[str]]:
    """Clips of a file, a directory or a data set, loops unrolled; and what was too short.

    Args:
        data: where it is; not the built-in sample.
        character: whose motions they are to be.
        infer: finds the terrain of motions that have none; ``infer_terrain`` by default.
        repair: what is mended in the files; nothing by default.
        refused: if given, what is said of motions that cannot be used is collected here, and they
            are passed over; with nothing else there the import is refused all the same.
        passed_over: if given, files that might have been motions are collected here.

    Returns:
        The clips, and one line per file that has too few frames.

    Raises:
        InputError: as ``load_initial``.
    """
    if "://" in data.path:
        raise InputError(
            f"data.path: {data.path} is remote; motions are read from mounted directories; "
            "copy them to one"
        )
    left_out: list[str] = []
    options = replace(import_options(data), repair=repair)
    clips = import_path(
        Path(data.path),
        character,
        options,
        infer=infer,
        too_short=left_out,
        refused=refused,
        passed_over=passed_over,
    )
    if not clips and refused:
        raise refusal(refused, len(refused) + len(left_out), data.path)
    if not clips and len(left_out) == 1:
        raise InputError(left_out[0])
    if not clips:
        raise InputError(
            f"data.path: {data.path} holds no clip of {data.min_frames} frames or more (the first "
            f"of {len(left_out)}: {left_out[0]}); add longer clips"
        )
    return [_unrolled(clip, character) for clip in clips], left_out


def check_initial(data: DataConfig, character: Character) -> None:
    """Refuse initial data that ``load_initial`` would refuse, without the slow part of the import.

    The sample is fetched if it is not cached yet.

    Raises:
        InputError: as ``load_initial``.
    """
    if data.path == SAMPLE:
        fetch_wheel()
    else:
        import_source(data, character, infer=_no_terrain)


def import_options(data: DataConfig) -> ImportOptions:
    """What becomes of imported motions in a run with this ``data`` section."""
    return ImportOptions(
        min_frames=data.min_frames, cell_size=data.cell_size, unroll_s=data.unroll_s
    )


def _no_terrain(
    character: Character, frames: MotionFrames, fps: float, loop: LoopMode
) -> TerrainEstimate:
    """A flat floor, for imports whose clips are thrown away."""
    flat = Heightfield.flat((1, 1))
    return TerrainEstimate(terrain=flat, levels=(), foot_levels=(), events=())


def _unrolled(clip: MotionClip, character: Character) -> MotionClip:
    """Loops become plain clips: every later stage works on these."""
    if clip.loop != "wrap":
        return clip
    return unroll_loop(character.skeleton, clip, clip.duration_s)


def choose_initial(clips: Sequence[MotionClip], config: D0Config) -> list[MotionClip]:
    """Cut long clips and take at most ``config.max_clips``, classes in turn.

    Within a class, clips with a greater level change under their path come first, so that a small
    run still sees terrain.
    """
    cut = [crop_to_change(clip, config.max_clip_s) for clip in clips]
    if config.max_clips is None or len(cut) <= config.max_clips:
        return cut
    groups: dict[str, list[MotionClip]] = defaultdict(list)
    for clip in cut:
        groups[clip.provenance.class_name].append(clip)
    for group in groups.values():
        group.sort(key=lambda c: (-path_change(c), c.clip_id))
    order = [groups[name] for name in sorted(groups)]
    chosen: list[MotionClip] = []
    for rank in range(max(len(group) for group in order)):
        chosen += [group[rank] for group in order if rank < len(group)]
    return chosen[: config.max_clips]


def path_change(clip: MotionClip) -> float:
    """Highest minus lowest ground under the root's path, m."""
    heights = clip.terrain.height_at(clip.frames.root_pos[:, :2])
    return float(heights.max() - heights.min())


def crop_to_change(clip: MotionClip, max_s: float | None) -> MotionClip:
    """The piece of at most ``max_s`` seconds that crosses the greatest level change.

    Of equal pieces the earliest is taken. Shorter clips stay as they are.
    """
    if max_s is None or clip.duration_s <= max_s + 1e-6:
        return clip
    length = max(2, round(max_s * clip.fps) + 1)
    ground = clip.terrain.height_at(clip.frames.root_pos[:, :2])
    windows = ground.unfold(0, length, 1)
    change = (windows.amax(-1) - windows.amin(-1)).mul(100).round()
    start = int(torch.argmax((change == change.max()).int()))
    provenance = replace(
        clip.provenance,
        notes=f"{clip.provenance.notes}; frames {start} to {start + length - 1}".strip("; "),
    )
    return replace(clip, frames=clip.frames.time(start, start + length), provenance=provenance)
