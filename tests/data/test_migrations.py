"""Old parts read as new ones; the schema of version 1 is frozen here as it was written."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parc_ray.data import migrations
from parc_ray.data.columns import read_columns
from parc_ray.data.manifest import Manifest, Part
from parc_ray.data.migrations import SCHEMA_VERSION, VERSION_KEY
from parc_ray.data.schema import CLIP_SCHEMA, clip_to_row, clips_to_table
from parc_ray.data.storage import Storage
from parc_ray.data.store import load_dataset, read_part, write_part
from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance
from tests.data.clips import random_clip, tensors_of

_TEXT, _INT, _REAL = pa.string(), pa.int32(), pa.float64()
_LIST = pa.large_list(pa.field("item", pa.float32(), nullable=False))
_LAYERS = ("terrain_upper", "terrain_lower", "terrain_confidence")
_REPLAY = "root_pos root_rot root_lin_vel root_ang_vel dof_pos dof_vel pd_targets boxes offset"
VERSION_1 = {
    **dict.fromkeys(("clip_id",), _TEXT),
    "iteration": _INT,
    **dict.fromkeys(("class_name", "source"), _TEXT),
    "fps": _REAL,
    "loop": _TEXT,
    "weight": _REAL,
    **dict.fromkeys(("num_frames", "num_dofs", "num_bodies"), _INT),
    **dict.fromkeys(("root_pos", "root_rot", "dof", "contacts"), _LIST),
    **dict.fromkeys(("terrain_rows", "terrain_cols"), _INT),
    "terrain_cell_size": _REAL,
    **dict.fromkeys(("terrain_origin", "terrain_heights", *_LAYERS, "path_nodes"), _LIST),
    **dict.fromkeys(("provenance", "metrics"), _TEXT),
    **dict.fromkeys((f"replay_{name}" for name in _REPLAY.split()), _LIST),
    **dict.fromkeys(("replay_backend", "replay_model_hash"), _TEXT),
}
OPTIONAL = {*_LAYERS, "path_nodes", *(n for n in VERSION_1 if n.startswith("replay_"))}


def clip(number, notes, **changes):
    made = random_clip(number, **changes)
    told = Provenance(
        source=f"file {number}", licence=f"licence {number}", take=f"take{number}", notes=notes
    )
    return dataclasses.replace(made, provenance=told)


def old_part(storage, path, clips):
    """A part as version 1 wrote it."""
    fields = [pa.field(n, kind, nullable=n in OPTIONAL) for n, kind in VERSION_1.items()]
    schema = pa.schema(fields, metadata={b"parc_ray.schema_version": b"1"})
    rows = [clip_to_row(c) for c in clips]
    arrays = [pa.array([row[f.name] for row in rows], type=f.type) for f in fields]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink)
    data = sink.getvalue().to_pybytes()
    storage.write_bytes_atomic(path, data)
    return Part(
        path=path,
        rows=len(clips),
        seconds=sum(c.duration_s for c in clips),
        sha256=hashlib.sha256(data).hexdigest(),
    )


@pytest.fixture
def clips():
    return [clip(1, "terrain inferred, levels 0.00 m", full=True), clip(2, "")]


def test_a_part_of_version_1_reads_as_the_clips_it_was_made_of(tmp_path, clips):
    storage = Storage.from_uri(tmp_path)
    part = old_part(storage, "old.parquet", clips)
    for before, after in zip(clips, read_part(storage, part), strict=True):
        assert after.provenance == before.provenance
        assert after.metrics == before.metrics
        for name, value in tensors_of(before).items():
            other = tensors_of(after)[name]
            assert other is None if value is None else torch.equal(other, value), name


def test_new_columns_are_filled_for_old_parts(tmp_path, clips):
    storage = Storage.from_uri(tmp_path)
    wanted = ("clip_id", "licence", "take", "maker", "terrain_inferred")
    old = read_columns(storage, old_part(storage, "old.parquet", clips), wanted, verify=True)
    new = read_columns(storage, write_part(storage, "new.parquet", clips), wanted)
    assert (old.schema_version, new.schema_version) == (1, SCHEMA_VERSION)
    assert old.table.to_pylist() == new.table.to_pylist()
    assert old.table["terrain_inferred"].to_pylist() == [True, False]
    assert old.table["licence"].to_pylist() == ["licence 1", "licence 2"]
    assert new.num_bytes == (tmp_path / "new.parquet").stat().st_size


def test_a_data_set_may_name_parts_of_both_ages(tmp_path, clips):
    storage = Storage.from_uri(tmp_path)
    old = Manifest(name="D0", parts=(old_part(storage, "a.parquet", clips[:1]),), schema_version=1)
    both = old.extend([write_part(storage, "b.parquet", clips[1:])], "D1")
    assert both.schema_version == SCHEMA_VERSION
    both.save(storage)
    _, read = load_dataset(tmp_path)
    assert [c.clip_id for c in read] == ["clip/1", "clip/2"]


def test_every_older_version_has_a_step_that_ends_at_the_present_columns(clips):
    assert set(migrations.MIGRATIONS) == set(range(1, SCHEMA_VERSION))
    table = clips_to_table(clips).select(list(VERSION_1))
    table = table.replace_schema_metadata({VERSION_KEY: b"1"})
    migrated = migrations.migrate(table, "t")
    assert set(migrated.column_names) == set(CLIP_SCHEMA.names)
    assert migrated.schema.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()
    assert migrations.migrate(migrated, "t") is migrated


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_other_versions_are_refused(version, clips, tmp_path):
    table = clips_to_table(clips).replace_schema_metadata({VERSION_KEY: str(version).encode()})
    with pytest.raises(InputError, match=f"version {version};"):
        migrations.migrate(table, "t")
    storage = Storage.from_uri(tmp_path)
    pq.write_table(table, tmp_path / "n.parquet")
    part = Part(path="n.parquet", rows=2, seconds=1.0, sha256=storage.sha256("n.parquet"))
    with pytest.raises(InputError, match=rf"n\.parquet.*version {version};"):
        read_columns(storage, part, ("clip_id",))


def test_damaged_old_parts_are_refused(tmp_path, clips):
    storage = Storage.from_uri(tmp_path)
    table = clips_to_table(clips).select(list(VERSION_1))
    broken = table.set_column(
        table.column_names.index("provenance"), "provenance", pa.array(["{", json.dumps({})])
    ).replace_schema_metadata({VERSION_KEY: b"1"})
    with pytest.raises(InputError, match="cannot be read as clip schema version 1"):
        migrations.migrate(broken, "t")
    part = old_part(storage, "p.parquet", clips)
    for wrong, message in (({"rows": 3}, "2 clips"), ({"path": "q.parquet"}, "does not exist")):
        with pytest.raises(InputError, match=message):
            read_columns(storage, dataclasses.replace(part, **wrong), ("clip_id",))
    with pytest.raises(InputError, match="sha256"):
        read_columns(storage, dataclasses.replace(part, sha256="0"), ("clip_id",), verify=True)
    (tmp_path / "p.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_columns(storage, part, ("clip_id",))
