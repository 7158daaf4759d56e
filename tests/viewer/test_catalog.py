"""What is listed of data sets, runs and files; lineage; filters."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import save_dataset, write_part
from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance
from parc_ray.viewer.catalog import open_catalog
from parc_ray.viewer.filters import ClipFilter, choices
from parc_ray.viewer.session import MOST_FIGURES, Session
from parc_ray.viewer.versions import alignment, version_name
from tests.data import files
from tests.viewer.helpers import generated, recorded


@pytest.fixture
def three(tmp_path, humanoid):
    """A data set of a motion and its recording, and another motion."""
    source = generated(humanoid)
    clips = [source, recorded(humanoid, source), generated(humanoid, "other", fps=30.0)]
    clips[2] = replace(
        clips[2],
        provenance=Provenance(maker="augment", iteration=0, class_name="jump"),
        metrics={"tpl": 0.5},
    )
    save_dataset(tmp_path / "set", "set", clips, humanoid.digest)
    return str(tmp_path / "set"), clips


def test_a_data_set_is_listed_without_reading_frames(three, humanoid, monkeypatch):
    place, clips = three
    monkeypatch.setattr(
        "parc_ray.viewer.catalog._read_row", lambda *_: pytest.fail("frames were read")
    )
    catalog = open_catalog(place, humanoid)
    assert [e.clip_id for e in catalog.entries.values()] == ["walk", "walk_tracked", "other"]
    assert catalog.entry("walk").seconds == pytest.approx(clips[0].duration_s)
    assert catalog.entry("walk").metrics == {"tpl": 2.5, "tcl": 1.0}


def test_any_row_of_any_row_group_is_read_exactly(tmp_path, humanoid):
    clips = [replace(generated(humanoid, f"c{n:02d}")) for n in range(70)]
    for n, clip in enumerate(clips):
        clip.frames = clip.frames.map(lambda x, n=n: x + 0.001 * n)
    save_dataset(tmp_path / "many", "many", clips, humanoid.digest)
    catalog = open_catalog(str(tmp_path / "many"), humanoid)
    for n in (0, 31, 32, 69):
        found = catalog.clip(catalog.entry(f"c{n:02d}").key)
        assert found.clip_id == f"c{n:02d}"
        assert torch.equal(found.frames.dof, clips[n].frames.dof)
        assert torch.equal(found.terrain.heights, clips[n].terrain.heights)


def test_lineage_goes_both_ways(three, humanoid):
    catalog = open_catalog(three[0], humanoid)
    walk, tracked = catalog.entry("walk").key, catalog.entry("walk_tracked").key
    assert catalog.parents(tracked) == [walk]
    assert catalog.children(walk) == [tracked]
    assert catalog.versions(walk) == catalog.versions(tracked) == [walk, tracked]
    assert [version_name(catalog.entry(k)) for k in (walk, tracked)] == [
        "generated",
        "recorded (tracker)",
    ]


def test_a_recording_lies_on_its_source_in_space_and_time(three, humanoid):
    """States of the recording are the source's own frames from frame 6 on."""
    catalog = open_catalog(three[0], humanoid)
    session = Session(catalog=catalog, compare=True)
    session.select("walk_tracked")
    source, copy = session.scene.figures
    assert copy.start_s == pytest.approx(6 / 30)
    for time_s in (0.3, 0.8, 1.4):
        mine = copy.poses.bodies[0][copy.frame(time_s)] + copy.offset
        theirs = source.poses.bodies[0][source.frame(time_s)] + source.offset
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    shift, start = alignment(catalog, catalog.entry("walk").key)
    assert not shift.any()
    assert start == 0.0


def test_of_two_clips_of_one_id_the_older_is_the_parent(three, humanoid):
    place, clips = three
    catalog = open_catalog(place, humanoid)
    again = replace(clips[0], provenance=replace(clips[0].provenance, parents=("walk",)))
    key = catalog.add(again, "optimised")
    assert catalog.parents(key) == [catalog.entry("set/walk").key]
    assert catalog.parents("set/walk") == []


def test_filters_and_order(three, humanoid):
    entries = open_catalog(three[0], humanoid).entries.values()

    def ids(**how):
        return [e.clip_id for e in ClipFilter(**how).apply(entries)]

    assert ids(iteration="0") == ["other"]
    assert ids(class_name="walk") == ["walk", "walk_tracked"]
    assert ids(maker="tracker") == ["walk_tracked"]
    assert ids(text="TRACK") == ["walk_tracked"]
    assert ids(metric="tpl", low=1.0) == ["walk"]
    assert ids(sort="tpl") == ["other", "walk", "walk_tracked"]
    assert ids(sort="name", descending=True) == ["walk_tracked", "walk", "other"]
    assert ids(sort="seconds")[0] == "walk_tracked"
    with pytest.raises(InputError, match="no listed clip has a figure 'speed'"):
        ids(sort="speed")
    known = choices(entries)
    assert known["iteration"] == ["any", "0", "1"]
    assert known["class"] == ["any", "jump", "walk"]
    assert known["maker"] == ["any", "augment", "generate", "tracker"]
    assert known["metric"] == ["tcl", "tpl"]


def test_a_run_is_listed_by_stages_and_grows(tmp_path, humanoid):
    """Parts of finished items appear before the stage is done, and once only after it."""
    run = Storage.from_uri(tmp_path / "r")
    run.write_bytes_atomic("config.yaml", b"{}")
    home = run.join("it_01", "generate")

    def item(number):
        clip = generated(humanoid, f"it01_t{number:05d}_c000")
        part = write_part(home, f"items/part-{number}.parquet", [clip])
        record = {"part": vars(part), "record": {}, "efforts": []}
        home.write_json_atomic(f"items/t{number}.json", record)
        return clip, part

    first, part = item(0)
    catalog = open_catalog(str(tmp_path / "r"), humanoid)
    assert list(catalog.entries) == [f"it_01/generate/{first.clip_id}"]
    second, _ = item(1)
    assert catalog.refresh() == [f"it_01/generate/{second.clip_id}"]
    assert catalog.refresh() == []
    assert catalog.clip(f"it_01/generate/{second.clip_id}").num_frames == second.num_frames
    whole = write_part(home, "motions-0000.parquet", [first, second])
    manifest = Manifest(
        name="M", parts=(whole.under("it_01/generate"),), character_digest=humanoid.digest
    )
    manifest.save(run, "it_01/generate/manifest.json")
    manifest.save(run, "it_01/merge/manifest.json")
    assert catalog.refresh() == []
    assert len(catalog.entries) == 2
    assert json.loads((tmp_path / "r/it_01/merge/manifest.json").read_text())["name"] == "M"
    assert part.rows == 1


def test_what_was_made_here_stays_when_a_run_grows(tmp_path, humanoid):
    Storage.from_uri(tmp_path / "r").write_bytes_atomic("config.yaml", b"{}")
    catalog = open_catalog(str(tmp_path / "r"), humanoid)
    key = catalog.add(generated(humanoid), "edit")
    assert catalog.refresh() == []
    assert catalog.clip(key).clip_id == "walk"


def test_what_is_made_while_a_run_is_read_stays(tmp_path, humanoid, monkeypatch):
    """Reading a run takes seconds; a clip that is saved meanwhile is in the list afterwards."""
    Storage.from_uri(tmp_path / "r").write_bytes_atomic("config.yaml", b"{}")
    catalog = open_catalog(str(tmp_path / "r"), humanoid)
    read = []

    def slow(*_):
        read.append(catalog.add(generated(humanoid, f"made{len(read)}"), "edit"))
        return []

    monkeypatch.setattr("parc_ray.viewer.catalog._run_entries", slow)
    assert catalog.refresh() == []
    assert list(catalog.entries) == read == ["edit/made0"]
    assert catalog.take(catalog.scan()) == []
    assert list(catalog.entries) == read == ["edit/made0", "edit/made1"]


def test_a_variant_is_no_version_of_what_it_varies(three, humanoid):
    catalog = open_catalog(three[0], humanoid)
    walk = catalog.entry("walk")
    made = Provenance(maker="augment", parents=("walk",))
    key = catalog.add(replace(generated(humanoid, "walk_v1"), provenance=made), "augment")
    assert catalog.parents(key) == [walk.key]
    assert key in catalog.children(walk.key)
    assert catalog.versions(key) == [key]
    assert key not in catalog.versions(walk.key)


def test_motion_files_are_listed_too(tmp_path, humanoid):
    files.mimickit(tmp_path / "walk.pkl", humanoid)
    catalog = open_catalog(str(tmp_path / "walk.pkl"), humanoid)
    assert len(catalog.entries) == 1
    assert catalog.clip(next(iter(catalog.entries))).num_frames > 1


def test_wrong_names_are_told(three, humanoid, waddler, tmp_path):
    catalog = open_catalog(three[0], humanoid)
    with pytest.raises(InputError, match=r"clip 'wal'.*near: walk, walk_tracked"):
        catalog.entry("wal")
    with pytest.raises(InputError, match="made for character"):
        open_catalog(three[0], waddler)
    with pytest.raises(InputError, match="nothing"):
        open_catalog(str(tmp_path / "nothing"), humanoid)


def test_a_lost_part_is_told_when_it_is_looked_at(three, humanoid, tmp_path):
    catalog = open_catalog(three[0], humanoid)
    (tmp_path / "set" / "part-00000.parquet").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        catalog.clip(next(iter(catalog.entries)))


def test_many_are_shown_as_a_square_without_overlap(humanoid, tmp_path):
    clips = [generated(humanoid, f"c{n}") for n in range(MOST_FIGURES + 1)]
    save_dataset(tmp_path / "s", "s", clips, humanoid.digest)
    session = Session(catalog=open_catalog(str(tmp_path / "s"), humanoid))
    keys = list(session.catalog.entries)
    with pytest.raises(InputError, match="up to 16"):
        session.show(keys)
    session.show(keys[:16], "side by side")
    figures = session.scene.figures
    assert all(f.terrain_shown for f in figures)
    assert session.clock.length_s == pytest.approx(clips[0].duration_s)
    for a in range(16):
        for b in range(a):
            gap = np.abs(figures[a].place - figures[b].place)[:2] - np.array([4.8, 4.0])
            assert gap.max() > 0.1
