"""Data sets too large for memory: read, filter, map, repartition and write on Ray Data.

A ``ray.data.Dataset`` of rows of ``CLIP_SCHEMA`` streams from immutable parts to immutable parts. A
row group is read at a time, columns that nobody asked for are not decoded, order is kept, and a
part's name follows from its place, so a write that was cut off and is started again gives the
files and hashes of an undisturbed one (docs/design/ray.md, Data sets at size).

    clips = read_dataset("runs/data")
    clips = filter_clips(clips, ClipFilter(min_s=1.0))
    clips = map_clips(clips, lambda batch: [mirror_clip(character, clip) for clip in batch])
    write_dataset(clips, "runs/mirrored", "mirrored", character.digest)

Nothing runs before ``write_dataset`` or another consumer asks for rows.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.data import ActorPoolStrategy, DataContext, Dataset

from parc_ray.data.etl_filter import SCALAR_COLUMNS, Keep
from parc_ray.data.manifest import FILE_NAME, Manifest, Part, open_dataset
from parc_ray.data.migrations import SCHEMA_VERSION, migrate, stored_version
from parc_ray.data.schema import CLIP_SCHEMA, check_schema, clips_to_table, table_to_clips
from parc_ray.data.storage import Storage
from parc_ray.data.store import encode_table, locate_part
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip

BLOCK_BYTES = 8 << 20
"""Largest block between two steps; memory in flight is a few of these per task."""
CLIPS_PER_PART = 256
CLIPS_PER_BATCH = 32

logger = logging.getLogger(__name__)

ClipMap = Callable[[list[MotionClip]], Iterable[MotionClip]]
"""Makes clips of clips; called with batches in order, from several processes at once."""


def read_dataset(
    location: str | Path | Storage,
    *,
    columns: Sequence[str] | None = None,
    keep: Keep | None = None,
    verify: bool = True,
) -> Dataset:
    """The clips of a data set as rows, lazily, in the manifest's order.

    Args:
        location: a manifest's path or its directory.
        columns: columns of ``CLIP_SCHEMA`` to read; all by default. ``map_clips`` and
            ``write_dataset`` need all.
        keep: as for ``filter_clips``; row groups without a clip to keep are not decoded.
        verify: compare every part's hash with the manifest's before its rows are used.

    Raises:
        InputError: no data set there, an unknown column, no parts. While rows are read: a part
            that is missing or changed (inside Ray's own error).
    """
    root, manifest = open_dataset(location)
    unknown = [name for name in columns or () if name not in CLIP_SCHEMA.names]
    if unknown:
        raise InputError(
            f"columns: {unknown[0]!r} is not known; allowed are {', '.join(CLIP_SCHEMA.names)}; "
            "correct the name"
        )
    if not manifest.parts:
        raise InputError(
            f"data set {manifest.name!r}: it has no parts; at least one is needed; import some data"
        )
    jobs = [{"path": p.path, "sha256": p.sha256, "rows": p.rows} for p in manifest.parts]
    reader = _PartReader(root, None if columns is None else tuple(columns), keep, verify)
    with _streaming():
        items = ray.data.from_items(jobs, override_num_blocks=len(jobs))
        return items.map_batches(reader, batch_size=1, batch_format="pyarrow")


def filter_clips(clips: Dataset, keep: Keep) -> Dataset:
    """The rows for which ``keep`` is true.

    Args:
        clips: rows.
        keep: takes a table of the scalar columns among them (``SCALAR_COLUMNS``), returns one
            bool per row; ``ClipFilter`` is one.
    """

    def chosen(table: pa.Table) -> pa.Table:
        return table.filter(_mask(table, keep))

    with _streaming():
        return clips.map_batches(chosen, batch_size=None, batch_format="pyarrow")


def map_clips(
    clips: Dataset,
    make: ClipMap | Callable[..., ClipMap],
    *,
    clips_per_batch: int = CLIPS_PER_BATCH,
    actors: int = 0,
    arguments: Mapping[str, Any] | None = None,
) -> Dataset:
    """Make clips of clips.

    Args:
        clips: rows with all columns.
        make: with ``actors`` 0 the map itself, run in stateless tasks; else called with
            ``arguments`` once in every actor, returns the map.
        clips_per_batch: clips handed over at a time.
        actors: size of an actor pool, for maps that are dear to set up.
        arguments: pickled to the actors.
    """
    compute: dict[str, Any] = {}
    if actors:
        compute = {
            "compute": ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=2),
            "fn_constructor_args": (make, dict(arguments or {})),
        }
    with _streaming():
        return clips.map_batches(
            _ActorMap if actors else _TaskMap(make),  # pyright: ignore[reportArgumentType]
            batch_size=clips_per_batch,
            batch_format="pyarrow",
            **compute,
        )


def repartition(clips: Dataset, clips_per_block: int) -> Dataset:
    """Blocks of so many rows, in the same order and without a shuffle, for what comes next."""
    if clips_per_block < 1:
        raise InputError(f"clips_per_block: {clips_per_block}; 1 or more is allowed; use 256")
    with _streaming():
        return clips.repartition(target_num_rows_per_block=clips_per_block)


def write_dataset(
    clips: Dataset,
    location: str | Path | Storage,
    name: str,
    character_digest: str,
    *,
    clips_per_part: int = CLIPS_PER_PART,
    writers: int = 2,
) -> Manifest:
    """Run everything and write a stand-alone data set; its manifest comes last.

    A part is ``clips_per_part`` consecutive clips and is named by its place. Parts that an earlier
    attempt left with the same content stay as they are.

    Args:
        clips: rows with all columns.
        location: directory, created if needed; not one that ``clips`` are read from.
        name: name of the data set.
        character_digest: ``Character.digest`` of the clips' character.
        clips_per_part: clips in one file.
        writers: parts that are encoded at the same time, by threads of this process.

    Raises:
        InputError: a clip id appears twice, columns are missing, or no clip is left.
    """
    storage = Storage.from_uri(location)
    seen: set[str] = set()
    parts: list[Part] = []
    batches = clips.iter_batches(
        batch_size=clips_per_part, batch_format="pyarrow", prefetch_batches=0
    )
    with ThreadPoolExecutor(max_workers=writers) as pool:
        pending: deque[Future[Part]] = deque()
        for number, batch in enumerate(batches):
            table = _all_columns(batch)
            _note_ids(table, seen, name)
            if len(pending) >= writers:
                parts.append(pending.popleft().result())
            path = f"part-{number:05d}.parquet"
            pending.append(pool.submit(_write_part, storage, path, table))
            del batch, table
        parts += [future.result() for future in pending]
    if not parts:
        raise InputError(
            f"data set {name!r}: no clip is left to write; at least one is needed; keep more clips"
        )
    manifest = Manifest(name=name, parts=tuple(parts), character_digest=character_digest)
    manifest.save(storage, FILE_NAME)
    logger.info("data set %s: %d clips in %d parts", name, manifest.rows, len(parts))
    return manifest


@contextmanager
def _streaming() -> Iterator[None]:
    """Settings that a data set captures when it is made: small blocks, order kept, no bars."""
    with warnings.catch_warnings():  # copying sets Ray's own deprecated fields
        warnings.simplefilter("ignore", DeprecationWarning)
        context = DataContext.get_current().copy()
    context.target_max_block_size = BLOCK_BYTES
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    with DataContext.current(context):
        yield


class _PartReader:
    """Reads parts row group by row group."""

    def __init__(
        self, root: Storage, columns: tuple[str, ...] | None, keep: Keep | None, verify: bool
    ) -> None:
        self._root, self._columns, self._keep, self._verify = root, columns, keep, verify

    def __call__(self, job: pa.Table) -> Iterator[pa.Table]:
        """Tables of one part."""
        row = job.to_pylist()[0]
        home, path = locate_part(self._root, row["path"])
        where = home.full_path(path)
        if self._verify and (found := home.sha256(path)) != row["sha256"]:
            raise InputError(
                f"{where}: sha256 {found[:12]} differs from the manifest's {row['sha256'][:12]}; "
                "parts must not change once written; restore the file or make the set again"
            )
        with home.filesystem.open_input_file(where) as file:
            parquet = pq.ParquetFile(file)
            for group in range(parquet.num_row_groups):
                yield self._group(parquet, group, where)

    def _group(self, parquet: pq.ParquetFile, group: int, where: str) -> pa.Table:
        names = list(self._columns or CLIP_SCHEMA.names)
        schema = pa.schema([CLIP_SCHEMA.field(name) for name in names])
        stored = parquet.schema_arrow
        if stored_version(stored, where) < SCHEMA_VERSION:
            table = parquet.read_row_group(group, use_threads=False)
            table = migrate(table.replace_schema_metadata(stored.metadata), where)
        else:
            check_schema(stored, where)
            if self._keep is not None:
                scalars = parquet.read_row_group(group, list(SCALAR_COLUMNS), use_threads=False)
                if not _mask(scalars, self._keep).true_count:
                    return schema.empty_table()
            needed = names if self._keep is None else list({*names, *SCALAR_COLUMNS})
            table = parquet.read_row_group(group, needed, use_threads=False)
        if self._keep is not None:
            table = table.filter(_mask(table, self._keep))
        return _plain(table.select(names), schema)


class _TaskMap:
    """A map of clips as a map of tables."""

    def __init__(self, function: Any) -> None:
        self._function: ClipMap = function

    def __call__(self, table: pa.Table) -> pa.Table:
        """Rows of the clips that the map makes of these rows."""
        torch.set_num_threads(1)
        return clips_to_table(list(self._function(table_to_clips(_all_columns(table)))))


class _ActorMap(_TaskMap):
    """The same, with a map that is built once."""

    def __init__(self, make: Callable[..., ClipMap], arguments: dict[str, Any]) -> None:
        super().__init__(make(**arguments))


def _write_part(storage: Storage, path: str, table: pa.Table) -> Part:
    data = encode_table(table)
    digest = hashlib.sha256(data).hexdigest()
    if not (storage.exists(path) and storage.sha256(path) == digest):
        storage.write_bytes_atomic(path, data)
    frames, rates = table.column("num_frames").to_pylist(), table.column("fps").to_pylist()
    seconds = sum((n - 1) / fps for n, fps in zip(frames, rates, strict=True))
    return Part(path=path, rows=table.num_rows, seconds=seconds, sha256=digest)


def _mask(table: pa.Table, keep: Keep) -> pa.BooleanArray:
    present = [name for name in SCALAR_COLUMNS if name in table.column_names]
    return pa.array(keep(table.select(present)), type=pa.bool_())


def _all_columns(table: pa.Table) -> pa.Table:
    """The table as ``CLIP_SCHEMA`` has it (blocks lose the order, nullability and metadata)."""
    missing = [name for name in CLIP_SCHEMA.names if name not in table.column_names]
    if missing:
        raise InputError(
            f"clips: columns {', '.join(missing)} are missing; all columns are needed here; "
            "read the data set without columns="
        )
    return _plain(table.select(CLIP_SCHEMA.names), CLIP_SCHEMA)


def _plain(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same columns under another schema, nothing copied."""
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)],
        schema=schema,
    )


def _note_ids(table: pa.Table, seen: set[str], name: str) -> None:
    for clip_id in table.column("clip_id").to_pylist():
        if clip_id in seen:
            raise InputError(
                f"data set {name!r}: clip id {clip_id!r} appears twice; ids must differ; rename one"
            )
        seen.add(clip_id)
