"""Data sets that grow clip by clip: what was made by hand is kept there."""

from __future__ import annotations

from dataclasses import replace

from parc_ray.character.character import Character
from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips, write_part
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, validate_clip
from parc_ray.tools.base import name_of


def put(directory: str, clip: MotionClip, character: Character) -> tuple[str, Manifest]:
    """Add a clip to the data set at ``directory``, which is made if there is none.

    Every clip is a part of its own; the manifest is written last, so that the set is whole at any
    time. An id that is taken gets a number.

    Returns:
        The id under which the clip is kept, and the manifest.

    Raises:
        InputError: something else lies there, or the clip cannot be used.
    """
    validate_clip(clip, character)
    storage = Storage.from_uri(directory)
    if storage.exists(FILE_NAME):
        manifest = Manifest.load(storage, FILE_NAME)
        manifest.check_character(character.digest, directory)
        taken = {kept.clip_id for kept in read_clips(storage, manifest)}
    elif storage.exists() and (not storage.is_dir() or storage.list() or storage.list_dirs()):
        raise InputError(
            f"--out: {directory} holds something that is no data set; name another directory"
        )
    else:
        name = name_of(directory, None)
        manifest = Manifest(name=name, character_digest=character.digest)
        taken = set()
    name, number = clip.clip_id, 1
    while name in taken:
        number += 1
        name = f"{clip.clip_id}_{number}"
    path = f"part-{len(manifest.parts):05d}.parquet"
    part = write_part(storage, path, [replace(clip, clip_id=name)])
    grown = replace(manifest, parts=(*manifest.parts, part))
    grown.save(storage, FILE_NAME)
    return name, grown
