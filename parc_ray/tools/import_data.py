"""``parc import``: motions of any known format become a data set of this project."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from parc_ray.character.character import Character, load_character
from parc_ray.config import DataConfig
from parc_ray.console import setup_logging
from parc_ray.data.sample_data import WHEEL_NAME
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._initial import SAMPLE, import_source, load_initial
from parc_ray.synthesis.levels import level_change, seconds_with_level_change
from parc_ray.tools.base import (
    OneLineParser,
    format_table,
    name_of,
    require_target,
    write_dataset,
)

LEVEL_CHANGE_M = 0.1
"""m, level change under the feet that counts in the totals."""
_CONTACT = 0.5
_DEFAULTS = DataConfig()
_COLUMNS = ("clip", "class", "seconds", "levels (m)", "change (m)", "terrain", "contact", "source")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ImportTotals:
    """What an import holds."""

    clips: int
    seconds: float
    """Duration of all clips, s."""
    crossing_share: float
    """Share of the seconds whose clips cross a level change of 0.1 m or more, 0 to 1."""
    contact_share: float
    """Share of the frames with at least one foot in contact, 0 to 1."""


def run(argv: list[str]) -> None:
    """``parc import SOURCE --out DIR``: print what is in SOURCE and write it as a data set.

    Raises:
        InputError: a source that cannot be used, or a target that is not empty.
    """
    parser = arguments()
    options = parser.parse_args(argv)
    out = "" if options.check else options.out
    if out is None:
        parser.error("--out DIR is needed, or --check to look only")
    setup_logging("WARNING")
    character = load_character(options.character)
    data = replace(
        _DEFAULTS,
        path=options.source,
        min_frames=options.min_frames,
        cell_size=options.cell_size,
        unroll_s=options.unroll_s,
    )
    target = require_target(out) if out else None
    clips, left_out = load_source(data, character, options.seed)
    print(clip_table(clips, character))
    for line in left_out:
        print(f"left out: {line}")
    print(totals_line(totals(clips, character)))
    if target is not None:
        manifest = write_dataset(target, name_of(out, options.name), clips, character)
        print(
            f"{target}: data set {manifest.name!r}, {manifest.rows} clips in "
            f"{len(manifest.parts)} parts; use it with --data {out}"
        )


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc import",
        description="Import motions into a data set. SOURCE is 'sample' (built in, fetched once), "
        "a motion file, a directory of motion files, or a data set.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE")
    add("--out", metavar="DIR", help="directory of the new data set; must not exist or be empty")
    add("--check", action="store_true", help="print what would be imported and write nothing")
    add("--name", help="name of the data set (default: that of the directory)")
    add("--character", default="humanoid", help="humanoid, or an .xml with its .yaml beside it")
    add("--cell-size", type=float, default=_DEFAULTS.cell_size, help="of terrains, m (%(default)s)")
    add("--min-frames", type=int, default=_DEFAULTS.min_frames, help="shortest clip (%(default)s)")
    add("--unroll-s", type=float, default=_DEFAULTS.unroll_s, help="least length of loops, s")
    add("--seed", type=int, default=0, help="of the sample's terrain variants")
    return parser


def load_source(
    data: DataConfig, character: Character, seed: int = 0
) -> tuple[list[MotionClip], list[str]]:
    """Clips of a source, and one line per file that was too short.

    Args:
        data: the source and how it is imported.
        character: whose motions they are to be.
        seed: of the terrain variants, for the built-in sample.

    Raises:
        InputError: a source or file that cannot be used.
    """
    if data.path == SAMPLE:
        return load_initial(data, character, seed), []
    return import_source(data, character)


def totals(clips: Sequence[MotionClip], character: Character) -> ImportTotals:
    """Figures over all clips."""
    crossing, seconds = seconds_with_level_change(clips, character, LEVEL_CHANGE_M)
    frames = sum(clip.num_frames for clip in clips)
    touching = sum(contact_share(clip, character) * clip.num_frames for clip in clips)
    return ImportTotals(
        clips=len(clips),
        seconds=seconds,
        crossing_share=crossing / seconds if seconds else 0.0,
        contact_share=touching / frames if frames else 0.0,
    )


def totals_line(figures: ImportTotals) -> str:
    """The totals as a sentence."""
    return (
        f"{figures.clips} clips, {figures.seconds:.1f} s; {figures.crossing_share:.0%} of the "
        f"seconds in clips that cross a level change of {LEVEL_CHANGE_M:g} m or more; a foot in "
        f"contact in {figures.contact_share:.0%} of the frames"
    )


def clip_table(clips: Sequence[MotionClip], character: Character) -> str:
    """One line per clip."""
    return format_table(_COLUMNS, [_row(clip, character) for clip in clips])


def contact_share(clip: MotionClip, character: Character) -> float:
    """Share of the frames in which a foot is labelled in contact, 0 to 1."""
    feet = clip.frames.contacts[:, list(character.feet)]
    return float((feet > _CONTACT).any(-1).float().mean())


def terrain_origin(clip: MotionClip) -> str:
    """Where a clip's terrain comes from: ``given``, ``inferred``, or what made the clip."""
    if clip.provenance.maker != "import":
        return clip.provenance.maker
    return "inferred" if "terrain inferred" in clip.provenance.notes else "given"


def _row(clip: MotionClip, character: Character) -> list[str]:
    levels = (clip.terrain.heights * 100.0).round().unique() / 100.0
    span = f"{len(levels)}: {float(levels.min()):.2f} to {float(levels.max()):.2f}"
    return [
        clip.clip_id,
        clip.provenance.class_name,
        f"{clip.duration_s:.2f}",
        span if len(levels) > 1 else f"1: {float(levels[0]):.2f}",
        f"{level_change(clip, character):.2f}",
        terrain_origin(clip),
        f"{contact_share(clip, character):.0%}",
        clip.provenance.source.replace(WHEEL_NAME, "wheel"),
    ]
