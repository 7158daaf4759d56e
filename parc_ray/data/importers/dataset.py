"""Data sets of this project as a source of clips: a directory with a manifest, or the manifest."""

from __future__ import annotations

from pathlib import Path

from parc_ray.character.character import Character
from parc_ray.data.manifest import FILE_NAME
from parc_ray.data.store import load_dataset
from parc_ray.motion.clip import MotionClip, validate_clip

NAME = "dataset"
DESCRIPTION = f"data set of this project (directory with {FILE_NAME})"


def is_dataset(path: Path) -> bool:
    """Whether ``path`` is a manifest or a directory that holds one."""
    return (path / FILE_NAME).is_file() or (path.name == FILE_NAME and path.is_file())


def load_clips(path: Path, character: Character, min_frames: int) -> list[MotionClip]:
    """All clips of the data set, as they were stored.

    Raises:
        InputError: another character, damaged parts, or a clip below ``min_frames``.
    """
    manifest, clips = load_dataset(path)
    manifest.check_character(character.digest, str(path))
    for clip in clips:
        validate_clip(clip, character, min_frames)
    return clips
