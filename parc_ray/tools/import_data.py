"""``parc import``: motions of any known format become a data set of this project."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parc_ray.character.character import Character, load_character
from parc_ray.config import DataConfig
from parc_ray.console import setup_logging
from parc_ray.data.checks import as_metrics, measure
from parc_ray.data.duplicates import Overlap, find_overlaps
from parc_ray.data.importers.pipeline import refusal
from parc_ray.data.importers.raw import UNKNOWN_LICENCE
from parc_ray.data.repair import RepairConfig
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._initial import SAMPLE, import_source, load_initial
from parc_ray.tools.base import OneLineParser, name_of, require_target, write_dataset
from parc_ray.tools.import_report import (
    REPORT_STEM,
    clip_table,
    default_report,
    passed_over_line,
    remarks,
    report_files,
    require_report,
    totals,
    totals_line,
)

_DEFAULTS = DataConfig()


def run(argv: list[str]) -> None:
    """``parc import SOURCE... --out DIR``: print what is there and write it as one data set.

    The report (CSV and JSON) goes into the data set, or where ``--report`` says; ``--check`` alone
    writes it into the cache directory and says where on the error output.

    Raises:
        InputError: a source that cannot be used, motions in it that cannot (all are named; with
            ``--skip-bad`` they are left out), clips of one id, or a target that is not empty.
    """
    parser = arguments()
    options = parser.parse_args(argv)
    out = "" if options.check else options.out or ""
    if not out and not options.check:
        parser.error("--out DIR is needed, or --check to look only")
    setup_logging("WARNING")
    character = load_character(options.character)
    data = replace(
        _DEFAULTS,
        min_frames=options.min_frames,
        cell_size=options.cell_size,
        unroll_s=options.unroll_s,
    )
    target = require_target(out) if out else None
    report = require_report(options.report) if options.report else None
    refused: list[str] = []
    passed_over: list[Path] = []
    clips, left_out = load_sources(
        options.source,
        data,
        character,
        options.seed,
        repair=options.repair,
        refused=refused,
        passed_over=passed_over,
    )
    clips = [_licensed(clip, options.licence) for clip in clips]
    overlaps = find_overlaps(clips, character)
    files = report_files(clips, character, refused, left_out, overlaps)
    stop = bool(refused) and not options.skip_bad
    if not stop or options.check:
        _show(clips, character, left_out, refused, overlaps)
        if passed_over:
            print(passed_over_line(passed_over))
    if report is not None:
        _write(*report, files)
    elif options.check:
        _write(*default_report(options.source), files)
    if stop:
        total = len(clips) + len(refused) + len(left_out)
        raise refusal(refused, total, ", ".join(options.source))
    if target is not None:
        manifest = write_dataset(target, name_of(out, options.name), clips, character)
        print(
            f"{target}: data set {manifest.name!r}, {manifest.rows} clips in "
            f"{len(manifest.parts)} parts; use it with --data {out}"
        )
        if report is None:
            _write(target, REPORT_STEM, files)


def _show(
    clips: list[MotionClip],
    character: Character,
    left_out: list[str],
    refused: list[str],
    overlaps: list[Overlap],
) -> None:
    print(clip_table(clips, character))
    for line in remarks(clips, overlaps):
        print(line)
    for line in left_out:
        print(f"left out: {line}")
    for line in refused:
        print(f"refused: {line}")
    print(totals_line(totals(clips, character)))


def _write(storage: Storage, stem: str, files: dict[str, bytes]) -> None:
    """Write a report and say where, apart from what is printed of the motions."""
    for suffix, content in files.items():
        storage.write_bytes_atomic(f"{stem}{suffix}", content)
    names = " and ".join(f"{stem}{suffix}" for suffix in files)
    print(f"report: {storage}/{names}", file=sys.stderr)


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(
        prog="parc import",
        description="Import motions into a data set. Each SOURCE is 'sample' (built in, fetched "
        "once), a motion file, a directory of motion files, or a data set.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE")
    add("--out", metavar="DIR", help="directory of the new data set; must not exist or be empty")
    add("--check", action="store_true", help="print what would be imported and write nothing")
    add("--repair", action="store_true", help="mend gaps, jumps and floors, and say what changed")
    add("--skip-bad", action="store_true", help="leave out motions that cannot be used")
    add("--report", metavar="FILE", help="write the report to FILE (.csv and .json)")
    add("--licence", help="of motions whose format does not tell it, for the provenance")
    add("--name", help="name of the data set (default: that of the directory)")
    add("--character", default="humanoid", help="humanoid, or an .xml with its .yaml beside it")
    add("--cell-size", type=float, default=_DEFAULTS.cell_size, help="of terrains, m (%(default)s)")
    add("--min-frames", type=int, default=_DEFAULTS.min_frames, help="shortest clip (%(default)s)")
    add("--unroll-s", type=float, default=_DEFAULTS.unroll_s, help="least length of loops, s")
    add("--seed", type=int, default=0, help="of the sample's terrain variants")
    return parser


def load_sources(
    sources: Sequence[str],
    data: DataConfig,
    character: Character,
    seed: int,
    *,
    repair: bool,
    refused: list[str],
    passed_over: list[Path],
) -> tuple[list[MotionClip], list[str]]:
    """Clips of all sources in order, and one line per file that was too short.

    Args:
        sources: where they are.
        data: how they are imported; its ``path`` is not used.
        character: whose motions they are to be.
        seed: of the built-in sample.
        repair: mend what can be mended.
        refused: motions that cannot be used are named here.
        passed_over: files that might have been motions are collected here.

    Raises:
        InputError: a source without any motion, nothing that can be used, or clips of one id.
    """
    clips: list[MotionClip] = []
    left_out: list[str] = []
    place: dict[str, str] = {}
    for source in sources:
        bad: list[str] = []
        one = replace(data, path=source)
        try:
            found, short = load_source(
                one, character, seed, repair=repair, refused=bad, passed_over=passed_over
            )
        except InputError:
            if not bad or len(sources) == 1:
                raise
            found, short = [], []
        for clip in found:
            if clip.clip_id in place:
                raise InputError(
                    f"clip {clip.clip_id!r}: in {place[clip.clip_id]} and in {source}; ids must "
                    "differ in a data set; rename a file, or import a directory above both"
                )
            place[clip.clip_id] = source
        clips, left_out = clips + found, left_out + short
        refused += bad
    if not clips:
        raise refusal(refused, len(refused) + len(left_out), ", ".join(sources))
    return clips, left_out


def load_source(
    data: DataConfig,
    character: Character,
    seed: int = 0,
    *,
    repair: bool = False,
    refused: list[str] | None = None,
    passed_over: list[Path] | None = None,
) -> tuple[list[MotionClip], list[str]]:
    """Clips of a source, and one line per file that was too short.

    Args:
        data: the source and how it is imported.
        character: whose motions they are to be.
        seed: of the terrain variants, for the built-in sample.
        repair: mend what can be mended.
        refused: if given, motions that cannot be used are named here instead of ending the import.
        passed_over: if given, files that might have been motions are collected here.

    Raises:
        InputError: a source or file that cannot be used.
    """
    if data.path == SAMPLE:
        made = load_initial(data, character, seed)
        return [_measured(clip, character) for clip in made], []
    config = RepairConfig() if repair else None
    return import_source(data, character, repair=config, refused=refused, passed_over=passed_over)


def _measured(clip: MotionClip, character: Character) -> MotionClip:
    """A clip made here, checked as a file's would be."""
    return replace(clip, metrics={**clip.metrics, **as_metrics(measure(clip, character))})


def _licensed(clip: MotionClip, licence: str | None) -> MotionClip:
    """A clip under ``licence`` where its own is not known."""
    if licence is None or clip.provenance.licence not in ("", UNKNOWN_LICENCE):
        return clip
    return replace(clip, provenance=replace(clip.provenance, licence=licence))
