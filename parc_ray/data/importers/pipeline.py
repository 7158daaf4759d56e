"""From files of any known format to clips that the platform can use.

Every motion is resampled to 30 fps (slerp), put on its floor, given a terrain (its own or an
inferred one) and contact labels, and named (docs/design/data.md, Traps).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import ModuleType

import torch

from parc_ray.character.character import Character
from parc_ray.data.checks import (
    SOURCE_FPS,
    CheckConfig,
    as_metrics,
    judge,
    measure,
    require_usable,
)
from parc_ray.data.importers import (
    amass,
    asf_amc,
    bvh,
    dataset,
    deepmimic,
    mimickit,
    parc_legacy,
    parc_ms,
    poselib,
    table,
)
from parc_ray.data.importers.discovery import (
    candidates,
    clip_ids,
    is_motion_file,
    motion_files,
    require_name,
)
from parc_ray.data.importers.naming import class_of, take_of
from parc_ray.data.importers.raw import RawMotion, reading_to_repair
from parc_ray.data.repair import RepairConfig, repair_floor, repair_motion, turn_up
from parc_ray.data.unpickle import LFS_MAGIC, check_not_pointer, safe_load
from parc_ray.errors import InputError
from parc_ray.motion.clip import LoopMode, MotionClip, Provenance, validate_clip
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.resample import PARC_FPS, resample, unroll_loop
from parc_ray.synthesis.terrain_inference import (
    InferenceConfig,
    TerrainEstimate,
    describe,
    figures,
    infer_terrain,
)
from parc_ray.terrain.heightfield import Heightfield

IMPORTERS: tuple[ModuleType, ...] = (
    *(parc_ms, parc_legacy, mimickit, deepmimic, poselib),
    *(table, amass, asf_amc, bvh),
)
"""Known formats; each module has NAME, DESCRIPTION, sniff(head, path) and load(path, character)."""

TRAINING_MIN_FRAMES = 16
"""Shortest clip to train on: a window of 15 frames needs 16."""

TerrainInference = Callable[[Character, MotionFrames, float, LoopMode], TerrainEstimate]

MAX_EXTENT_M = 1000.0
"""m, furthest way of a root within one motion; more means other units or a damaged file."""

REPAIRED = "repaired: "
"""What every note on a repair begins with in a clip's provenance."""

MAX_UNROLL_S = 600.0
"""s, longest that loops are repeated to."""
CELL_SIZES_M = (0.05, 10.0)
"""m, least and greatest cell of a terrain."""

_MOST_REASONS = 20
_HEAD_BYTES = 4096
_MOST_LOOKED = 1000
_PICKLE_SUFFIXES = (".pkl", ".pickle")


class TooShortError(InputError):
    """A motion with fewer frames than are needed; nothing else is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What becomes of imported motions."""

    fps: float = PARC_FPS
    """Frames per second of the clips. PARC: 30."""
    cell_size: float = 0.4
    """m, cell size of terrains, inferred or resampled. PARC: 0.4."""
    min_frames: int = TRAINING_MIN_FRAMES
    """Least frames at ``fps``; 16 to train on, 2 is enough to evaluate."""
    unroll_s: float = 0.0
    """s, repeat looped motions to at least this length; 0 leaves them as loops."""
    checks: CheckConfig = field(default_factory=CheckConfig)
    """Limits beyond which a clip is refused."""
    repair: RepairConfig | None = None
    """What is mended before a clip is checked; None: nothing."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1.0 <= self.fps <= 1000.0:
            raise InputError(f"fps: {self.fps:g}; 1 to 1000 is allowed; PARC uses 30")
        if self.min_frames < 2:
            raise InputError(f"min_frames: {self.min_frames}; 2 or more is allowed; use 2")
        low, high = CELL_SIZES_M
        if not low <= self.cell_size <= high:
            raise InputError(
                f"cell_size: {self.cell_size:g}; {low:g} to {high:g} metres is allowed; use 0.4"
            )
        if not 0.0 <= self.unroll_s <= MAX_UNROLL_S:
            raise InputError(
                f"unroll_s: {self.unroll_s:g} s; 0 to {MAX_UNROLL_S:g} s is allowed; use 0 or 3"
            )


def detect(path: Path) -> ModuleType:
    """The importer for a file, found from its first bytes.

    Raises:
        InputError: missing file, LFS pointer, hostile or damaged pickle, or an unknown format.
    """
    head = _head(path)
    check_not_pointer(head, str(path))
    for importer in IMPORTERS:
        if importer.sniff(head, path):
            return importer
    if path.suffix.lower() in _PICKLE_SUFFIXES or head[:1] == b"\x80":
        content = safe_load(path.read_bytes(), str(path))
        found = ", ".join(map(str, list(content)[:8])) if isinstance(content, dict) else "no dict"
        problem = f"pickle of an unknown kind (fields: {found})"
    else:
        problem = "file of an unknown format"
    known = "; ".join(importer.DESCRIPTION for importer in IMPORTERS)
    raise InputError(f"{path}: {problem}; known are: {known}; convert it to one of these")


def load_raw(path: str | Path, character: Character) -> RawMotion:
    """One file as it is, only in this project's conventions; errors as ``detect`` and importers."""
    path = Path(path)
    return detect(path).load(path, character)


def import_path(
    path: str | Path,
    character: Character,
    options: ImportOptions | None = None,
    *,
    infer: TerrainInference | None = None,
    too_short: list[str] | None = None,
    refused: list[str] | None = None,
    passed_over: list[Path] | None = None,
) -> list[MotionClip]:
    """Import a file, a directory of files (and sub-directories), or a data set of this project.

    In directories pickles, BVH and AMC files must be motions; tables, texts and arrays are taken
    where their content is a known format and passed over otherwise, as is anything whose path
    contains "ignore". Links to directories are followed. A clip's id is its path below the
    directory without suffix; its class is the first sub-directory, or what its name says, or the
    directory it is in where that is a number only.

    Args:
        path: file or directory.
        character: the character that the motions are for.
        options: rate, cell size, least length.
        infer: finds a terrain for motions that have none; ``infer_terrain`` by default.
        too_short: if given, what is said of files with too few frames is collected here, and they
            are passed over instead of stopping the import.
        refused: the same for files that cannot be used and clips that fail their checks.
        passed_over: if given, files that might be motions by their suffix, but are not by their
            content, are collected here.

    Raises:
        InputError: nothing there, or files that cannot be used; all of them are named.
    """
    path, options = Path(path), options or ImportOptions()
    if not path.exists():
        raise InputError(f"{path}: does not exist; a motion file or directory is needed; check it")
    if dataset.is_dataset(path):
        clips = dataset.load_clips(path, character, options.min_frames)
        return _checked_again(clips, character, options, path, refused)
    if not path.is_dir() and not path.is_file():
        raise InputError(f"{path}: no regular file; a motion file or directory is needed; check it")
    files = motion_files(path, _is_known, passed_over) if path.is_dir() else [path]
    base = path.parent if path.is_file() else path
    clips: list[MotionClip] = []
    failed: list[InputError] = []
    for file, clip_id in zip(files, clip_ids(files, base), strict=True):
        try:
            clips.append(import_file(file, character, options, infer=infer, clip_id=clip_id))
        except TooShortError as error:
            if too_short is None:
                failed.append(error)
            else:
                too_short.append(str(error))
        except InputError as error:
            failed.append(error)
    _refuse(failed, len(files), path, refused)
    if not clips and not too_short and not refused:
        known = "; ".join(importer.DESCRIPTION for importer in IMPORTERS)
        raise InputError(f"{path}: no motion files in it; known are: {known}; check the path")
    return clips


def holds_motions(path: Path) -> bool:
    """Whether ``path`` is a motion file, or a directory with at least one, looked at briefly."""
    if path.is_file():
        return is_motion_file(path, _is_known)
    return any(is_motion_file(file, _is_known) for file in islice(candidates(path), _MOST_LOOKED))


def _refuse(
    failed: Sequence[InputError], total: int, path: Path, refused: list[str] | None
) -> None:
    """Collect what failed, or raise one error that names all of it."""
    if refused is not None:
        refused += [str(error) for error in failed]
    elif len(failed) == 1:
        raise failed[0]
    elif failed:
        raise refusal([str(error) for error in failed], total, path)


def refusal(reasons: Sequence[str], total: int, path: str | Path) -> InputError:
    """One error that names every motion of ``path`` that cannot be used.

    Args:
        reasons: one message each; the file stands before the first colon.
        total: number of motions there.
        path: where they are.
    """
    if len(reasons) == 1:
        return InputError(reasons[0])
    said = [f"({n}) {reason}" for n, reason in enumerate(reasons[:_MOST_REASONS], 1)]
    said += [f"{reason.split(': ')[0]}" for reason in reasons[_MOST_REASONS:]]
    return InputError(
        f"{path}: {len(reasons)} of {total} motions cannot be used: {'; '.join(said)}"
    )


def _checked_again(
    clips: Sequence[MotionClip],
    character: Character,
    options: ImportOptions,
    path: Path,
    refused: list[str] | None,
) -> list[MotionClip]:
    """Those of a stored data set's clips that pass the checks, with what the checks measured."""
    good: list[MotionClip] = []
    failed: list[InputError] = []
    for clip in clips:
        try:
            values = measure(clip, character)
            require_usable(clip.clip_id, judge(values, options.checks))
            good.append(replace(clip, metrics={**as_metrics(values), **clip.metrics}))
        except InputError as error:
            failed.append(InputError(f"{path}: {error}"))
    _refuse(failed, len(clips), path, refused)
    return good


def import_file(
    path: Path,
    character: Character,
    options: ImportOptions | None = None,
    *,
    infer: TerrainInference | None = None,
    clip_id: str | None = None,
) -> MotionClip:
    """Import one motion file; arguments and errors as ``import_path``."""
    require_name(path)
    raw = _load(path, character, options)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    clip_id = path.stem if clip_id is None else clip_id
    folder = clip_id.split("/")[0] if "/" in clip_id else ""
    provenance = Provenance(
        source=f"{raw.source}: {path.name}",
        licence=raw.licence,
        take=take_of(path.stem),
        class_name=folder or class_of(path.stem, path.absolute().parent.name),
        hashes={"file": digest},
        notes=raw.notes,
    )
    try:
        return finish_clip(raw, clip_id, provenance, character, options, infer=infer)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error


def _load(path: Path, character: Character, options: ImportOptions | None) -> RawMotion:
    """One file, mended where the options say so; what was mended stands in its notes."""
    if options is None or options.repair is None:
        return load_raw(path, character)
    config = options.repair
    with reading_to_repair() as changes:
        raw = load_raw(path, character)
    try:
        raw, mended = repair_motion(raw, character, config)
    except InputError as error:
        raise InputError(f"{path}: cannot be repaired: {error}") from error
    raw, turned = turn_up(raw, character, options.checks.y_up.fail)
    said = [REPAIRED + change for change in (*changes, *mended, *turned)]
    return replace(raw, notes=_joined(raw.notes, *said))


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def finish_clip(
    raw: RawMotion,
    clip_id: str,
    provenance: Provenance,
    character: Character,
    options: ImportOptions | None = None,
    *,
    infer: TerrainInference | None = None,
) -> MotionClip:
    """Resample, unroll, put on the ground, label and check one motion.

    Motions with a terrain of their own stay where they are (but see ``repair``); others are moved
    vertically so that the inferred floor is at zero. What the checks measured stands in the
    metrics. Checks that need the terrain are left out where ``infer`` only stands in for one.

    Raises:
        InputError: too short, values that no clip may have, or a clip that fails its checks.
    """
    options = options or ImportOptions()
    skeleton = character.skeleton
    contacts = raw.contacts
    if contacts is None:
        contacts = raw.dof.new_zeros(len(raw.dof), skeleton.num_bodies)
    frames = MotionFrames(raw.root_pos, raw.root_rot, raw.dof, contacts).to(torch.float32)
    clip = MotionClip(
        clip_id=clip_id,
        frames=frames,
        fps=raw.fps,
        terrain=raw.terrain or Heightfield.flat((1, 1), cell_size=options.cell_size),
        loop=raw.loop,
        path_nodes=raw.path_nodes,
        provenance=provenance,
        metrics={SOURCE_FPS: float(raw.fps), **{k: float(v) for k, v in raw.metrics.items()}},
    )
    clip = replace(resample(skeleton, clip, options.fps), fps=float(options.fps))
    if options.unroll_s > 0.0 and clip.loop == "wrap":
        clip = unroll_loop(skeleton, clip, options.unroll_s)
    if clip.num_frames < options.min_frames:
        raise TooShortError(
            f"clip {clip_id!r}: too short: {clip.num_frames} frames at {clip.fps:g} fps; at least "
            f"{options.min_frames} are needed here; use a longer motion (shorter ones load for "
            "evaluation only)"
        )
    validate_clip(clip, character)
    way = clip.frames.root_pos[:, :2]
    extent = float((way.amax(0) - way.amin(0)).max())
    if extent > MAX_EXTENT_M:
        raise InputError(
            f"clip {clip_id!r}: root_pos covers {extent:.3g} m; up to {MAX_EXTENT_M:g} m are "
            "allowed; positions are metres, repair or convert the file"
        )
    if raw.terrain is None:
        clip = _ground(clip, character, options, infer)
    elif abs(clip.terrain.cell_size - options.cell_size) > 1e-6:
        clip = replace(clip, terrain=clip.terrain.resampled(options.cell_size))
    if raw.terrain is not None and options.repair is not None:
        clip, moves = repair_floor(clip, character, options.repair)
        notes = _joined(clip.provenance.notes, *(REPAIRED + move for move in moves))
        clip = replace(clip, provenance=replace(clip.provenance, notes=notes))
    if raw.contacts is None:
        labels = label_contacts(character, clip.frames, clip.terrain)
        clip = replace(clip, frames=replace(clip.frames, contacts=labels))
    values = measure(clip, character, ground=infer is None or raw.terrain is not None)
    require_usable(clip_id, judge(values, options.checks))
    return replace(clip, metrics={**clip.metrics, **as_metrics(values)})


def _ground(
    clip: MotionClip,
    character: Character,
    options: ImportOptions,
    infer: TerrainInference | None,
) -> MotionClip:
    """Infer the terrain and move clip and terrain so that the floor is at zero."""
    if infer is None:
        config = InferenceConfig(cell_size=options.cell_size)
        estimate = infer_terrain(character, clip.frames, clip.fps, clip.loop, config)
    else:
        estimate = infer(character, clip.frames, clip.fps, clip.loop)
    down = torch.tensor([0.0, 0.0, -estimate.floor])
    frames = replace(clip.frames, root_pos=clip.frames.root_pos + down)
    found = describe(estimate, estimate.floor)
    inferred = f"terrain inferred, {found}, moved by {down[2]:.3f} m"
    provenance = replace(clip.provenance, notes=_joined(clip.provenance.notes, inferred))
    terrain = estimate.terrain.translated(down)
    metrics = {**clip.metrics, **figures(estimate)}
    return replace(clip, frames=frames, terrain=terrain, provenance=provenance, metrics=metrics)


def _is_known(file: Path) -> bool:
    """Whether a file is a motion, stands for one that was never downloaded, or cannot be read."""
    try:
        head = _head(file)
    except InputError:
        return True  # importing it says why
    return head.startswith(LFS_MAGIC) or any(i.sniff(head, file) for i in IMPORTERS)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); a motion file is needed; check the path"
        ) from error
