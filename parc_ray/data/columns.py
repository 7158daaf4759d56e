"""Some columns of stored clips, for overviews that need no frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from parc_ray.data.manifest import Part
from parc_ray.data.migrations import SCHEMA_VERSION, migrate, stored_version
from parc_ray.data.storage import Storage
from parc_ray.data.store import locate_part
from parc_ray.errors import InputError

_MIGRATION_READS = "provenance"


@dataclass(frozen=True, kw_only=True)
class PartColumns:
    """Some columns of one part."""

    table: pa.Table
    """The columns, in the present schema version."""
    num_bytes: int
    """Size of the file."""
    schema_version: int
    """Version that the file was written in."""


def read_columns(
    storage: Storage, part: Part, columns: Sequence[str], *, verify: bool = False
) -> PartColumns:
    """Some columns of one part, without reading the rest of the file.

    Args:
        storage: root that the part's path is relative to.
        part: the part.
        columns: columns of the present schema that are wanted.
        verify: compare the file's hash with the manifest's.

    Raises:
        InputError: a file that is missing, damaged, of a newer schema version, without one of the
            columns, with another number of clips than the manifest says, or of another hash.
    """
    home, path = locate_part(storage, part.path)
    where = home.full_path(path)
    if not home.exists(path):
        raise InputError(f"{where}: part of the data set does not exist; restore the file")
    if verify and (found := home.sha256(path)) != part.sha256:
        raise InputError(
            f"{where}: sha256 {found[:12]} differs from the manifest's {part.sha256[:12]}; parts "
            "must not change once written; restore the file or make the data set again"
        )
    with home.filesystem.open_input_file(where) as file:
        size = file.size()
        try:
            parquet = pq.ParquetFile(file)
            schema = parquet.schema_arrow
            version = stored_version(schema, where)
            wanted = [name for name in columns if name in schema.names]
            if version < SCHEMA_VERSION and _MIGRATION_READS in schema.names:
                wanted = sorted({*wanted, _MIGRATION_READS})
            table = parquet.read(columns=wanted, use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(
                f"{where}: not a Parquet file ({error}); restore the file or make the set again"
            ) from error
    table = migrate(table.replace_schema_metadata(schema.metadata), where)
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise InputError(f"{where}: columns {', '.join(missing)} are missing; restore the file")
    if table.num_rows != part.rows:
        raise InputError(
            f"{where}: {table.num_rows} clips, the manifest says {part.rows}; restore the manifest"
        )
    return PartColumns(table=table.select(list(columns)), num_bytes=size, schema_version=version)
