"""Clips in Parquet parts: bit-exact, deterministic, verified; data sets by reference."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parc_ray.data.manifest import Manifest, Part, open_dataset
from parc_ray.data.schema import (
    CLIP_SCHEMA,
    SCHEMA_VERSION,
    VERSION_KEY,
    clip_to_row,
    clips_to_table,
    row_to_clip,
    table_to_clips,
)
from parc_ray.data.storage import Storage
from parc_ray.data.store import (
    encode_part,
    extend,
    load_dataset,
    read_clips,
    read_part,
    save_dataset,
    write_part,
)
from parc_ray.errors import InputError

from .clips import random_clip, tensors_of


def assert_same(a, b):
    ta, tb = tensors_of(a), tensors_of(b)
    assert ta.keys() == tb.keys()
    for name, value in ta.items():
        if value is None:
            assert tb[name] is None, name
        else:
            assert tb[name].dtype == torch.float32
            assert torch.equal(value, tb[name]), name
    for name in ("clip_id", "fps", "loop", "provenance", "metrics", "weight"):
        assert getattr(a, name) == getattr(b, name)
    assert a.terrain.cell_size == b.terrain.cell_size


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.integers(2, 40), st.booleans()),
        min_size=1,
        max_size=5,
        unique_by=lambda t: t[0],
    )
)
def test_table_round_trip_is_bit_exact(specs):
    clips = [random_clip(seed, frames=frames, full=full) for seed, frames, full in specs]
    for before, after in zip(clips, table_to_clips(clips_to_table(clips)), strict=True):
        assert_same(before, after)
    for clip in clips:
        assert_same(clip, row_to_clip(clip_to_row(clip)))


def test_special_float_values_survive():
    clip = random_clip(0)
    clip.frames.root_pos[0] = torch.tensor([-0.0, 1e-45, 3.4e38])
    clip.metrics["jerk"] = float("inf")
    again = table_to_clips(clips_to_table([clip]))[0]
    assert torch.equal(
        again.frames.root_pos.view(torch.int32), clip.frames.root_pos.view(torch.int32)
    )
    assert again.metrics["jerk"] == float("inf")


def test_replay_that_float32_cannot_hold_is_refused():
    clip = random_clip(0, full=True)
    wide = dataclasses.replace(clip.replay, dof_pos=torch.full((5,), 0.1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"replay\.dof_pos"):
        clip_to_row(dataclasses.replace(clip, replay=wide))
    exact = dataclasses.replace(clip.replay, dof_pos=clip.replay.dof_pos.double())
    assert_same(clip, row_to_clip(clip_to_row(dataclasses.replace(clip, replay=exact))))


def test_sliced_and_chunked_tables_read_right():
    clips = [random_clip(i, frames=10 + i, full=i % 2 == 0) for i in range(6)]
    table = clips_to_table(clips)
    assert_same(clips[3], table_to_clips(table.slice(3, 1))[0])
    joined = pa.concat_tables([table.slice(4), table.slice(0, 2)])
    assert [c.clip_id for c in table_to_clips(joined)] == ["clip/4", "clip/5", "clip/0", "clip/1"]


def test_parts_have_equal_bytes_in_another_process(tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from tests.data.clips import random_clip\n"
        "from parc_ray.data.store import encode_part\n"
        "import torch, hashlib; torch.manual_seed(0)\n"
        "d = encode_part([random_clip(i, full=i == 0) for i in range(40)])\n"
        "print(hashlib.sha256(d).hexdigest())"
    )
    torch.manual_seed(0)
    storage = Storage.from_uri(tmp_path)
    part = write_part(storage, "p.parquet", [random_clip(i, full=i == 0) for i in range(40)])
    out = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == part.sha256
    assert storage.sha256("p.parquet") == part.sha256
    assert part.rows == 40
    assert part.seconds == pytest.approx(40 * 19 / 30)
    assert pq.ParquetFile(tmp_path / "p.parquet").num_row_groups == 2


def test_data_set_by_reference(tmp_path):
    run = Storage.from_uri(tmp_path)
    first = [random_clip(i) for i in range(3)]
    part = write_part(run.join("it_00"), "items/a.parquet", first).under("it_00")
    d0 = Manifest(name="D0", parts=(part,), character_digest="h")
    d0.save(run, "it_00/merge/manifest.json")
    new = [random_clip(i, full=True) for i in (7, 5)]
    d1 = extend(d0, [write_part(run, "it_01/b.parquet", new)], "D1")
    d1.save(run, "it_01/merge/manifest.json")
    assert d1.parts[0] == part
    assert d1.parents == ("D0",)
    assert d1.iteration == 1
    assert (d1.rows, d1.seconds) == (5, pytest.approx(5 * 19 / 30))
    assert Manifest.load(run, "it_01/merge/manifest.json") == d1
    assert open_dataset(tmp_path / "it_01/merge")[0].root == str(tmp_path)
    manifest, clips = load_dataset(tmp_path / "it_01/merge/manifest.json")
    assert manifest == d1
    assert [c.clip_id for c in clips] == ["clip/0", "clip/1", "clip/2", "clip/7", "clip/5"]
    for before, after in zip([*first, *new], clips, strict=True):
        assert_same(before, after)
    assert sorted(run.list(recursive=True, suffix=".parquet")) == [
        "it_00/items/a.parquet",
        "it_01/b.parquet",
    ]


def test_parts_elsewhere_by_absolute_path(tmp_path):
    part = write_part(Storage.from_uri(tmp_path / "other"), "a.parquet", [random_clip(1)])
    moved = dataclasses.replace(part, path=str(tmp_path / "other" / "a.parquet"))
    clips = read_clips(tmp_path / "run", Manifest(name="D", parts=(moved,)))
    assert clips[0].clip_id == "clip/1"


def test_damage_is_noticed(tmp_path):
    storage = Storage.from_uri(tmp_path)
    part = write_part(storage, "p.parquet", [random_clip(1)])
    data = bytearray(storage.read_bytes("p.parquet"))
    data[100] ^= 1
    storage.write_bytes_atomic("p.parquet", bytes(data))
    with pytest.raises(InputError, match="sha256"):
        read_part(storage, part)
    other = write_part(storage, "p.parquet", [random_clip(1), random_clip(2)])
    with pytest.raises(InputError, match="the manifest says 1"):
        read_part(storage, dataclasses.replace(other, rows=1))
    storage.delete("p.parquet")
    with pytest.raises(InputError, match="does not exist"):
        read_part(storage, part)
    with pytest.raises(InputError, match="twice"):
        write_part(storage, "q.parquet", [random_clip(1), random_clip(1)])


def test_schema_version(tmp_path):
    storage = Storage.from_uri(tmp_path)
    table = clips_to_table([random_clip(1)])
    assert CLIP_SCHEMA.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()
    newer = table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION + 1).encode()})
    with pytest.raises(InputError, match="update this program"):
        table_to_clips(newer, "p.parquet")
    with pytest.raises(InputError, match="no clip schema version"):
        table_to_clips(table.replace_schema_metadata({}), "p.parquet")
    with pytest.raises(InputError, match="dof"):
        table_to_clips(table.drop_columns(["dof"]), "p.parquet")
    manifest = Manifest(name="D", schema_version=SCHEMA_VERSION).to_dict()
    storage.write_json_atomic("manifest.json", {**manifest, "schema_version": SCHEMA_VERSION + 1})
    with pytest.raises(InputError, match="update this program"):
        Manifest.load(storage)
    storage.write_json_atomic("manifest.json", {"a": 1})
    with pytest.raises(InputError, match="not a data set manifest"):
        load_dataset(tmp_path)
    del manifest["parts"]
    storage.write_json_atomic("manifest.json", manifest)
    with pytest.raises(InputError, match="parts"):
        load_dataset(tmp_path)


def test_damaged_row_names_clip_and_column():
    row = clip_to_row(random_clip(1))
    row["dof"] = row["dof"][:-1]
    with pytest.raises(InputError, match=r"clip/1.*dof"):
        row_to_clip(row)


def test_manifest_rules(tmp_path):
    part = Part(path="a", rows=1, seconds=1.0, sha256="x")
    with pytest.raises(InputError, match="twice"):
        Manifest(name="D", parts=(part, part))
    manifest = save_dataset(
        tmp_path, "mine", [random_clip(i) for i in range(5)], "abc", clips_per_part=2
    )
    assert [p.rows for p in manifest.parts] == [2, 2, 1]
    manifest.check_character("abc")
    with pytest.raises(InputError, match="character"):
        manifest.check_character("def")
    assert json.loads((tmp_path / "manifest.json").read_text())["levels_below_root"] == 0
    assert encode_part([random_clip(0)]) == encode_part([random_clip(0)])
