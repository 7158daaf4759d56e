"""Writing and reading the Parquet parts of data sets.

Equal clips give equal bytes, so that a run that was killed and continued ends with the same hashes
as one that was not. Hashes are verified whenever a part is read.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from parc_ray.data.manifest import FILE_NAME, Manifest, Part, open_dataset
from parc_ray.data.schema import clips_to_table, table_to_clips
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip

ROW_GROUP_ROWS = 32
"""Clips per row group; 16 to 64 give 2 to 6 MB."""
_READ_THREADS = 4


def encode_part(clips: Sequence[MotionClip]) -> bytes:
    """The Parquet file of ``clips``: equal clips and library versions give equal bytes."""
    return encode_table(clips_to_table(clips))


def encode_table(table: pa.Table) -> bytes:
    """The Parquet file of rows of ``CLIP_SCHEMA``, bytes as ``encode_part`` of their clips."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.combine_chunks(),
        sink,
        row_group_size=ROW_GROUP_ROWS,
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=False,
        write_statistics=False,
    )
    return sink.getvalue().to_pybytes()


def write_part(storage: Storage, path: str, clips: Sequence[MotionClip]) -> Part:
    """Write clips as one immutable part, whole or not at all.

    Args:
        storage: directory that ``path`` is relative to.
        path: file name, ending in ``.parquet``.
        clips: clips in the order in which they shall be read; ids must differ.

    Returns:
        The part, for a manifest.
    """
    _check_ids(clips, f"part {path}")
    data = encode_part(clips)
    storage.write_bytes_atomic(path, data)
    return Part(
        path=path,
        rows=len(clips),
        seconds=sum(clip.duration_s for clip in clips),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def read_part(storage: Storage, part: Part) -> list[MotionClip]:
    """Clips of one part, in the order in which they were written.

    Raises:
        InputError: the file is missing, its hash or row count differs from the manifest's, or its
            schema cannot be read.
    """
    home, path = locate_part(storage, part.path)
    where = home.full_path(path)
    data = home.read_bytes(path)
    found = hashlib.sha256(data).hexdigest()
    if found != part.sha256:
        raise InputError(
            f"{where}: sha256 {found[:12]} differs from the manifest's {part.sha256[:12]}; parts "
            "must not change once written; restore the file or make the data set again"
        )
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{where}: not a Parquet file ({error}); restore the file or make the data set again"
        ) from error
    if table.num_rows != part.rows:
        raise InputError(
            f"{where}: {table.num_rows} clips, the manifest says {part.rows}; restore the manifest"
        )
    return table_to_clips(table, where)


def read_clips(storage: Storage | str | Path, manifest: Manifest) -> list[MotionClip]:
    """All clips of a data set in the manifest's order.

    Args:
        storage: root that the parts' paths are relative to.
        manifest: the data set.

    Raises:
        InputError: as ``read_part``; also when two clips have the same id.
    """
    return list(iter_clips(storage, manifest))


def iter_clips(storage: Storage | str | Path, manifest: Manifest) -> Iterator[MotionClip]:
    """The same clips one after the other, a few parts in memory at a time; errors likewise."""
    seen: set[str] = set()
    for part in iter_parts(Storage.from_uri(storage), manifest):
        _check_ids(part, f"data set {manifest.name!r}", seen)
        yield from part


def iter_parts(storage: Storage, manifest: Manifest) -> Iterator[list[MotionClip]]:
    """Clips part by part in the manifest's order, a few parts read ahead in threads."""
    with ThreadPoolExecutor(max_workers=_READ_THREADS) as pool:
        ahead: deque[Future[list[MotionClip]]] = deque()
        for part in manifest.parts:
            ahead.append(pool.submit(read_part, storage, part))
            if len(ahead) > _READ_THREADS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def load_dataset(location: str | Path | Storage) -> tuple[Manifest, list[MotionClip]]:
    """Manifest and clips of the data set at a manifest's path or its directory.

    Raises:
        InputError: as ``open_dataset`` and ``read_clips``.
    """
    root, manifest = open_dataset(location)
    return manifest, read_clips(root, manifest)


def save_dataset(
    location: str | Path | Storage,
    name: str,
    clips: Sequence[MotionClip],
    character_digest: str,
    *,
    clips_per_part: int = 256,
) -> Manifest:
    """Write a stand-alone data set: parts and manifest in one directory.

    Args:
        location: directory, created if needed.
        name: name of the data set.
        clips: all clips; ids must differ.
        character_digest: ``Character.digest`` of the clips' character.
        clips_per_part: clips in one file.
    """
    _check_ids(clips, f"data set {name!r}")
    storage = Storage.from_uri(location)
    parts = [
        write_part(storage, f"part-{n:05d}.parquet", clips[start : start + clips_per_part])
        for n, start in enumerate(range(0, len(clips), clips_per_part))
    ]
    manifest = Manifest(name=name, parts=tuple(parts), character_digest=character_digest)
    manifest.save(storage, FILE_NAME)
    return manifest


def extend(
    manifest: Manifest, parts: Sequence[Part], name: str, iteration: int | None = None
) -> Manifest:
    """D_i of D_{i-1}: its parts by reference plus ``parts``; see ``Manifest.extend``."""
    return manifest.extend(parts, name, iteration)


def locate_part(storage: Storage, path: str) -> tuple[Storage, str]:
    """The directory that a part's path is relative to, and the path there."""
    if "://" in path or path.startswith("/"):
        parent, _, leaf = path.rpartition("/")
        return Storage.from_uri(parent or "/"), leaf
    return storage, path


def _check_ids(clips: Sequence[MotionClip], where: str, seen: set[str] | None = None) -> None:
    seen = set() if seen is None else seen
    for clip in clips:
        if clip.clip_id in seen:
            raise InputError(
                f"{where}: clip id {clip.clip_id!r} appears twice; ids must differ; rename one"
            )
        seen.add(clip.clip_id)
