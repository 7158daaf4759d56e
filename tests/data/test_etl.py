"""Ray Data over clips: the same clips as reading them at once, in order, twice the same bytes."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from parc_ray.data.etl import (
    _all_columns,
    filter_clips,
    map_clips,
    read_dataset,
    repartition,
    write_dataset,
)
from parc_ray.data.etl_filter import SCALAR_COLUMNS, ClipFilter
from parc_ray.data.migrations import VERSION_KEY
from parc_ray.data.schema import clips_to_table, table_to_clips
from parc_ray.data.storage import Storage
from parc_ray.data.store import encode_part, encode_table, load_dataset, save_dataset
from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance

from .clips import random_clip, tensors_of

pytestmark = pytest.mark.usefixtures("ray_session")
COUNT = 70
ROOT = Path(__file__).resolve().parents[2]


def clip_of(number):
    kind = ("walk", "run", "climb")[number % 3]
    return random_clip(
        number,
        frames=20 + number % 7,
        full=number % 2 == 0,
        provenance=Provenance(source=f"s{number % 2}", class_name=kind),
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A data set of 70 clips in parts of 40 (two row groups) and 30."""
    home = tmp_path_factory.mktemp("etl")
    clips = [clip_of(n) for n in range(COUNT)]
    save_dataset(home, "D", clips, "abc", clips_per_part=40)
    return home, clips


class Shift:
    """A map with state: moves clips up and renames them."""

    def __init__(self, metres):
        self.metres = metres

    def __call__(self, clips):
        for clip in clips:
            clip.frames.root_pos[:, 2] += self.metres
            clip.clip_id += "+"
        return clips


def same(a, b):
    """Two clips are equal in every tensor."""
    left, right = tensors_of(a), tensors_of(b)
    return left.keys() == right.keys() and all(
        (left[k] is None and right[k] is None) or torch.equal(left[k], right[k]) for k in left
    )


def test_rows_come_in_order_and_bit_exact(stored):
    home, clips = stored
    tables = list(read_dataset(home).iter_batches(batch_size=None, batch_format="pyarrow"))
    found = table_to_clips(_all_columns(pa.concat_tables(tables)))
    assert [c.clip_id for c in found] == [c.clip_id for c in clips]
    assert all(same(a, b) for a, b in zip(found, clips, strict=True))
    assert [c.provenance for c in found] == [c.provenance for c in clips]


def test_only_the_columns_asked_for(stored):
    home, clips = stored
    rows = read_dataset(home, columns=("clip_id", "num_frames")).take_all()
    assert rows == [{"clip_id": c.clip_id, "num_frames": c.num_frames} for c in clips]
    assert "root_pos" not in SCALAR_COLUMNS
    with pytest.raises(InputError, match="'colour' is not known"):
        read_dataset(home, columns=("colour",))


@pytest.mark.parametrize("early", [True, False])
def test_filters_before_and_after_decoding_agree(stored, early):
    home, clips = stored
    keep = ClipFilter(min_s=0.7, classes=("walk", "climb"), max_metrics={"tpl": 60.0})
    expected = [
        c.clip_id
        for n, c in enumerate(clips)
        if (20 + n % 7 - 1) / 30 >= 0.7 and n % 3 != 1 and 0.1 + n <= 60.0
    ]
    rows = read_dataset(home, keep=keep) if early else filter_clips(read_dataset(home), keep)
    assert [row["clip_id"] for row in rows.take_all()] == expected
    assert 0 < len(expected) < COUNT
    nobody = read_dataset(home, keep=ClipFilter(classes=("swim",)))
    assert nobody.take_all() == []


@pytest.mark.parametrize("actors", [0, 2])
def test_the_whole_way_equals_the_way_in_memory(stored, tmp_path, actors):
    """Read, filter, map, repartition, write: the very files that a loop in memory writes."""
    home, clips = stored
    way = filter_clips(read_dataset(home), ClipFilter(sources=("s0",)))
    if actors:
        way = map_clips(way, Shift, actors=actors, arguments={"metres": 2.0}, clips_per_batch=8)
    else:
        way = map_clips(way, Shift(2.0), clips_per_batch=8)
    manifest = write_dataset(repartition(way, 5), tmp_path / "a", "E", "abc", clips_per_part=16)
    mine = Shift(2.0)(copy.deepcopy(clips[::2]))
    expected = save_dataset(tmp_path / "b", "E", mine, "abc", clips_per_part=16)
    assert manifest == expected
    assert [p.rows for p in manifest.parts] == [16, 16, 3]
    assert load_dataset(tmp_path / "a")[0] == manifest
    files = [sorted(p.name for p in (tmp_path / side).iterdir()) for side in "ab"]
    assert files[0] == files[1]


def test_writing_again_leaves_equal_parts_alone_and_mends_others(stored, tmp_path):
    home, _ = stored
    first = write_dataset(read_dataset(home), tmp_path, "E", "abc", clips_per_part=32)
    names = [tmp_path / p.path for p in first.parts]
    (tmp_path / "manifest.json").unlink()
    names[1].write_bytes(b"half a fi")
    before = [p.stat().st_mtime_ns for p in names]
    assert write_dataset(read_dataset(home), tmp_path, "E", "abc", clips_per_part=32) == first
    after = [p.stat().st_mtime_ns for p in names]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert len(load_dataset(tmp_path)[1]) == COUNT


def test_maps_may_drop_and_add_clips(stored, tmp_path):
    home, clips = stored

    def twice(batch):
        for clip in batch:
            if clip.provenance.class_name == "run":
                yield clip
                yield replace(clip, clip_id=clip.clip_id + "b")

    write_dataset(map_clips(read_dataset(home), twice), tmp_path, "E", "abc")
    ids = [c.clip_id for c in load_dataset(tmp_path)[1]]
    assert ids == [c.clip_id + end for c in clips[1::3] for end in ("", "b")]


def test_refusals_leave_no_manifest(stored, tmp_path):
    home, _ = stored

    def same_name(batch):
        return [replace(clip, clip_id="x") for clip in batch]

    with pytest.raises(InputError, match="'x' appears twice"):
        write_dataset(map_clips(read_dataset(home), same_name), tmp_path / "a", "E", "abc")
    nothing = read_dataset(home, keep=ClipFilter(classes=("swim",)))
    with pytest.raises(InputError, match="no clip is left"):
        write_dataset(nothing, tmp_path / "a", "E", "abc")
    few = read_dataset(home, columns=("clip_id",))
    with pytest.raises(InputError, match="columns iteration"):
        write_dataset(few, tmp_path / "a", "E", "abc")
    with pytest.raises(InputError, match="clips_per_block: 0"):
        repartition(few, 0)
    with pytest.raises(InputError, match="min_s"):
        ClipFilter(min_s=2.0, max_s=1.0)
    assert not (tmp_path / "a" / "manifest.json").exists()


def test_a_changed_part_is_refused(tmp_path):
    save_dataset(tmp_path, "D", [clip_of(n) for n in range(3)], "abc")
    part = tmp_path / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match="differs from the manifest's"):
        read_dataset(tmp_path).take_all()


def test_tables_and_clips_encode_to_the_same_bytes(stored):
    home, clips = stored
    batches = list(read_dataset(home).iter_batches(batch_size=7, batch_format="pyarrow"))
    table = _all_columns(pa.concat_tables(batches))
    assert table.column(0).num_chunks > 1
    assert encode_table(table) == encode_part(clips)


def test_the_example_of_the_page_runs_as_it_stands(humanoid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skeleton = humanoid.skeleton
    clips = [
        random_clip(n, frames=20 + 6 * n, dofs=skeleton.num_dofs, bodies=skeleton.num_bodies)
        for n in range(6)
    ]
    save_dataset("runs/my_data", "D", clips, humanoid.digest)
    text = (ROOT / "docs" / "data.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if "parc_ray.data.etl" in block]
    exec(compile(example, "docs/data.md", "exec"), {})
    made = load_dataset("runs/mirrored")[1]
    assert [c.clip_id for c in made] == [f"clip/{n}_mirror" for n in range(2, 6)]
    y = clips[2].frames.root_pos[:, 1]
    assert torch.equal(made[0].frames.root_pos[:, 1], -y)


def test_older_parts_are_migrated(stored, tmp_path):
    """A part of schema version 1, as earlier releases wrote them, reads as the others do."""
    _, clips = stored
    manifest = save_dataset(tmp_path, "D", clips[:5], "abc")
    table = clips_to_table(clips[:5])
    late = ["licence", "take", "maker", "terrain_inferred"]
    old = table.drop_columns(late).replace_schema_metadata({VERSION_KEY: b"1"})
    path = tmp_path / manifest.parts[0].path
    pq.write_table(old, path)
    part = replace(manifest.parts[0], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    replace(manifest, parts=(part,), schema_version=1).save(Storage.from_uri(tmp_path))
    keep = ClipFilter(classes=("walk",))
    rows = read_dataset(tmp_path, columns=("clip_id", "maker"), keep=keep).take_all()
    assert rows == [{"clip_id": c.clip_id, "maker": "import"} for c in clips[:5:3]]


SCRIPT = """
import sys, time
import ray
from parc_ray.data.etl import map_clips, read_dataset, write_dataset

def slow(batch):
    time.sleep(0.4)
    return batch

if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
             object_store_memory=200 * 2**20, logging_level="ERROR")
    rows = map_clips(read_dataset(sys.argv[1]), slow, clips_per_batch=8)
    write_dataset(rows, sys.argv[2], "E", "abc", clips_per_part=8)
"""


@pytest.mark.slow
def test_killed_and_started_again_gives_the_same_set(stored, tmp_path):
    home, clips = stored
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    command = [sys.executable, str(script), str(home), str(out)]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (out / "part-00001.parquet").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not (out / "manifest.json").exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, env=env, check=True, timeout=300)
    expected = save_dataset(tmp_path / "want", "E", clips, "abc", clips_per_part=8)
    assert load_dataset(out)[0] == expected
    left = [name for name in Storage.from_uri(out).list() if name.endswith(".parquet")]
    assert left == [part.path for part in expected.parts]
    assert json.loads((out / "manifest.json").read_text())["name"] == "E"
