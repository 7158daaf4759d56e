"""What ``parc import`` says of motions: the table, the remarks, and the report on storage."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parc_ray.character.character import Character
from parc_ray.data.checks import Finding, judge, verdict
from parc_ray.data.duplicates import Overlap
from parc_ray.data.importers.pipeline import REPAIRED
from parc_ray.data.migrations import INFERRED_NOTE
from parc_ray.data.sample_data import WHEEL_NAME, cache_dir
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.synthesis.levels import level_change, seconds_with_level_change
from parc_ray.tools.base import format_table

LEVEL_CHANGE_M = 0.1
"""m, level change under the feet that counts in the totals."""
REPORT_STEM = "import_report"
"""Name of the report's files within a data set."""
RETARGET_RESIDUAL = "retarget_ankle_mean_m"
"""Metric of motions that were retargeted: mean distance of the ankles from the source's, m."""
INFERRED_CONFIDENCE = "inferred_confidence"
"""Metric of motions whose terrain was inferred: confidence of the cells that were touched."""
_CONTACT = 0.5
_MOST_OVERLAPS = 20
_MOST_FILES = 5
_INFERRED = re.compile(rf"{INFERRED_NOTE}.*?moved by [-0-9.]+ m")
_COLUMNS = ("clip", "class", "seconds", "levels (m)", "change (m)", "terrain", "sure", "contact")


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
    """One line per clip; the retargeting residual where any clip has one."""
    retargeted = any(RETARGET_RESIDUAL in clip.metrics for clip in clips)
    columns = [*_COLUMNS, *(["ankles (m)"] if retargeted else []), "verdict", "source"]
    return format_table(columns, [_row(clip, character, retargeted) for clip in clips])


def remarks(clips: Sequence[MotionClip], overlaps: Sequence[Overlap]) -> list[str]:
    """Lines on all that is worth a look: inferred terrain, repairs, doubtful values, overlaps."""
    lines: list[str] = []
    for clip in clips:
        if told := _INFERRED.search(clip.provenance.notes):
            lines.append(f"terrain: {clip.clip_id}: {told[0]}")
        lines += [f"repaired: {clip.clip_id}: {change}" for change in repairs(clip)]
        for finding in findings(clip):
            if finding.severity != "ok":
                lines.append(f"remark: {clip.clip_id}: {finding.text()}; {finding.remedy}")
    return lines + _overlap_lines(overlaps)


def _overlap_lines(overlaps: Sequence[Overlap]) -> list[str]:
    """One line per pair of clips and side, the greatest overlap first."""
    pairs: dict[tuple[frozenset[str], bool], list[Overlap]] = {}
    for overlap in overlaps:
        pair = frozenset((overlap.first, overlap.second))
        pairs.setdefault((pair, overlap.mirrored), []).append(overlap)
    lines = []
    for found in pairs.values():
        most, *back = found
        other = f" ({back[0].share:.0%} the other way)" if back else ""
        lines.append(f"overlap: {most.text()}{other}")
    hidden = len(lines) - _MOST_OVERLAPS
    if hidden <= 0:
        return lines
    return [*lines[:_MOST_OVERLAPS], f"overlap: {hidden} more pairs, all of them in the report"]


def passed_over_line(files: Sequence[Path]) -> str:
    """What was not taken for a motion: how many files, and some of them."""
    names = ", ".join(str(file) for file in files[:_MOST_FILES])
    more = ", ..." if len(files) > _MOST_FILES else ""
    return f"passed over: {len(files)} files whose content is no known motion ({names}{more})"


def findings(clip: MotionClip) -> tuple[Finding, ...]:
    """What the checks at the import found; nothing for clips that were never imported."""
    return judge(clip.metrics)


def repairs(clip: MotionClip) -> list[str]:
    """What was mended in a clip, from its notes."""
    notes = clip.provenance.notes.split("; ")
    return [note.removeprefix(REPAIRED) for note in notes if note.startswith(REPAIRED)]


def contact_share(clip: MotionClip, character: Character) -> float:
    """Share of the frames in which a foot is labelled in contact, 0 to 1."""
    feet = clip.frames.contacts[:, list(character.feet)]
    return float((feet > _CONTACT).any(-1).float().mean())


def terrain_origin(clip: MotionClip) -> str:
    """Where a clip's terrain comes from: ``given``, ``inferred``, or what made the clip."""
    if clip.provenance.maker != "import":
        return clip.provenance.maker
    return "inferred" if INFERRED_NOTE in clip.provenance.notes else "given"


def terrain_confidence(clip: MotionClip) -> float | None:
    """How sure an inferred terrain is where it was touched, 0 to 1; None where it was given.

    Without a figure from the inference it is the mean over the cells under the root's path.
    """
    known = clip.metrics.get(INFERRED_CONFIDENCE)
    layer = clip.terrain.confidence
    if known is not None or layer is None:
        return known
    index = clip.terrain.index_of(clip.frames.root_pos[:, :2]).unique(dim=0)
    return float(layer[index[:, 0], index[:, 1]].mean())


def _row(clip: MotionClip, character: Character, retargeted: bool) -> list[str]:
    levels = (clip.terrain.heights * 100.0).round().unique() / 100.0
    span = f"{len(levels)}: {float(levels.min()):.2f} to {float(levels.max()):.2f}"
    sure = terrain_confidence(clip)
    residual = clip.metrics.get(RETARGET_RESIDUAL)
    return [
        clip.clip_id,
        clip.provenance.class_name,
        f"{clip.duration_s:.2f}",
        span if len(levels) > 1 else f"1: {float(levels[0]):.2f}",
        f"{level_change(clip, character):.2f}",
        terrain_origin(clip),
        "-" if sure is None else f"{sure:.2f}",
        f"{contact_share(clip, character):.0%}",
        *(["-" if residual is None else f"{residual:.3f}"] if retargeted else []),
        verdict(findings(clip)),
        clip.provenance.source.replace(WHEEL_NAME, "wheel"),
    ]


def require_report(path: str) -> tuple[Storage, str]:
    """Directory and stem of the report's two files.

    Raises:
        InputError: the directory does not exist, or a directory is named.
    """
    file = Path(path)
    if file.is_dir():
        raise InputError(f"--report: {file} is a directory; a file is needed; name one in it")
    stem = file.stem if file.suffix in (".csv", ".json") else file.name
    if not file.parent.is_dir():
        raise InputError(f"--report: {file.parent} is no directory; an existing one is needed")
    return Storage.from_uri(file.parent.resolve()), stem


def default_report(sources: Sequence[str]) -> tuple[Storage, str]:
    """Where ``--check`` writes: the cache directory, one name per list of sources."""
    full = "\n".join(str(Path(source).resolve()) for source in sources)
    name = f"{Path(sources[0]).stem}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"
    return Storage.from_uri(cache_dir() / "checks"), name


def report_files(
    clips: Sequence[MotionClip],
    character: Character,
    refused: Sequence[str],
    left_out: Sequence[str],
    overlaps: Sequence[Overlap],
) -> dict[str, bytes]:
    """The report as CSV (one row per clip) and JSON (everything), by suffix."""
    shared: dict[str, list[str]] = defaultdict(list)
    for overlap in overlaps:
        shared[overlap.first].append(overlap.text().removeprefix(f"{overlap.first}: "))
    entries = [_entry(clip, character, shared[clip.clip_id]) for clip in clips]
    entries += [{"clip": _file_of(line), "verdict": "fail", "reason": line} for line in refused]
    entries += [{"clip": _file_of(line), "verdict": "short", "reason": line} for line in left_out]
    content = {
        "totals": asdict(totals(clips, character)),
        "clips": entries,
        "overlaps": [asdict(overlap) for overlap in overlaps],
    }
    text = json.dumps(content, indent=2) + "\n"
    return {".csv": _csv(entries).encode(), ".json": text.encode()}


def _file_of(line: str) -> str:
    return line.split(": ")[0]


def _entry(clip: MotionClip, character: Character, overlaps: list[str]) -> dict[str, Any]:
    found = findings(clip)
    figures = {k: v for k, v in clip.metrics.items() if k.split("_")[0] in ("retarget", "inferred")}
    return {
        "clip": clip.clip_id,
        "verdict": verdict(found),
        "reason": "; ".join(f.text() for f in found if f.severity != "ok"),
        "seconds": clip.duration_s,
        "class": clip.provenance.class_name,
        "take": clip.provenance.take,
        "source": clip.provenance.source,
        "licence": clip.provenance.licence,
        "terrain": terrain_origin(clip),
        "terrain_confidence": terrain_confidence(clip),
        "contact_share": contact_share(clip, character),
        "overlaps": overlaps,
        "repairs": repairs(clip),
        "notes": clip.provenance.notes,
        **figures,
        **{finding.name: finding.value for finding in found},
    }


def _csv(entries: Sequence[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for entry in entries for key in entry))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        flat = {k: " | ".join(v) if isinstance(v, list) else v for k, v in entry.items()}
        writer.writerow(flat)
    return text.getvalue()
