"""Data sets between stages: reading inputs, and manifests over the parts that a stage wrote.

Every manifest of a run has the run directory as its root, so that later data sets name the parts of
earlier ones as they are (D_i holds D_{i-1}'s parts by reference).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parc_ray.character.character import Character
from parc_ray.data.manifest import FILE_NAME, Manifest, Part
from parc_ray.data.store import read_clips, write_part
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.stages.base import StageRun
from parc_ray.stages.pool import ItemResult

CLIPS_PER_PART = 64


def read_manifest(run: StageRun, name: str) -> Manifest:
    """The manifest behind input ``name``."""
    storage, path = run.open_input(name)
    return Manifest.load(storage, path)


def read_input(run: StageRun, name: str, character: Character) -> list[MotionClip]:
    """All clips of input ``name``, for this run's character.

    Raises:
        InputError: another character, or a part that is missing or damaged.
    """
    manifest = read_manifest(run, name)
    manifest.check_character(character.digest, f"input {name!r}")
    return read_clips(run.ctx.run, manifest)


def write_clips(run: StageRun, clips: Sequence[MotionClip], stem: str) -> list[Part]:
    """Write clips into parts of the stage's directory; paths are relative to it."""
    return [
        write_part(run.dir, f"{stem}-{number:04d}.parquet", clips[start : start + CLIPS_PER_PART])
        for number, start in enumerate(range(0, len(clips), CLIPS_PER_PART))
    ]


def item_parts(results: Iterable[ItemResult], prefix: str = "") -> list[Part]:
    """The parts of finished items, in order."""
    return [r.part.under(prefix) if prefix else r.part for r in results if r.part is not None]


def save_manifest(
    run: StageRun, name: str, parts: Sequence[Part], character: Character
) -> Manifest:
    """Write ``manifest.json`` over parts of this stage (paths relative to its directory)."""
    home = run.ctx.stage_path(run.name)
    manifest = Manifest(
        name=name,
        iteration=run.ctx.iteration,
        parts=tuple(part.under(home) for part in parts),
        character_digest=character.digest,
    )
    manifest.save(run.ctx.run, f"{home}/{FILE_NAME}")
    return manifest


def require_clips(clips: Sequence[object], what: str, remedy: str) -> None:
    """Raise an ``InputError`` where there is nothing to work on."""
    if not clips:
        raise InputError(f"{what}: there are no clips; at least one is needed; {remedy}")
