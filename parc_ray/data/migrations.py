"""From older clip schemas to the present one, one version at a time, on Arrow tables.

``MIGRATIONS[n]`` turns a table of version n into one of version n + 1. Parts on storage are never
rewritten: they are migrated whenever they are read, so a data set may name parts of any age.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from parc_ray.errors import InputError

VERSION_KEY = b"parc_ray.schema_version"
SCHEMA_VERSION = 2
"""Version of the clip schema that is written.

1: provenance as JSON only. 2: licence, take, maker and whether the terrain was inferred as columns.
"""
INFERRED_NOTE = "terrain inferred"
"""What the notes of a clip say whose file had no terrain."""

Migration = Callable[[pa.Table], pa.Table]


def provenance_columns(provenance: dict[str, Any]) -> dict[str, Any]:
    """What of a clip's provenance stands in columns of its own."""
    return {
        "licence": str(provenance.get("licence", "")),
        "take": str(provenance.get("take", "")),
        "maker": str(provenance.get("maker", "")),
        "terrain_inferred": INFERRED_NOTE in str(provenance.get("notes", "")),
    }


def _one_to_two(table: pa.Table) -> pa.Table:
    """Columns for what until then stood in the provenance alone."""
    rows = [provenance_columns(json.loads(text)) for text in table["provenance"].to_pylist()]
    kinds = {"licence": pa.string(), "take": pa.string(), "maker": pa.string()}
    for name, kind in {**kinds, "terrain_inferred": pa.bool_()}.items():
        values = pa.array([row[name] for row in rows], type=kind)
        table = table.append_column(pa.field(name, kind, nullable=False), values)
    return table


MIGRATIONS: dict[int, Migration] = {1: _one_to_two}
"""For every older version the step to the next."""


def stored_version(schema: pa.Schema, where: str) -> int:
    """Schema version of a table or file.

    Raises:
        InputError: none, or a newer one than this program knows.
    """
    stored = (schema.metadata or {}).get(VERSION_KEY)
    if stored is None or not stored.isdigit():
        raise InputError(
            f"{where}: no clip schema version in the metadata; files written by this project are "
            "needed; import the data with 'parc import'"
        )
    version = int(stored)
    if not 1 <= version <= SCHEMA_VERSION:
        raise InputError(
            f"{where}: clip schema version {version}; 1 to {SCHEMA_VERSION} can be read; "
            "update this program"
        )
    return version


def migrate(table: pa.Table, where: str) -> pa.Table:
    """``table`` in the present version; the same table where it has it already.

    Raises:
        InputError: as ``stored_version``, or a column that a migration reads is missing.
    """
    version = stored_version(table.schema, where)
    metadata = dict(table.schema.metadata or {})
    while version < SCHEMA_VERSION:
        try:
            table = MIGRATIONS[version](table)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{where}: cannot be read as clip schema version {version} ({error}); "
                "restore the file"
            ) from error
        version += 1
        metadata[VERSION_KEY] = str(version).encode()
        table = table.replace_schema_metadata(metadata)
    return table
