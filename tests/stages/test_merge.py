"""D_i = D_{i-1} + M_i by reference, and what joins the first data set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.errors import InputError
from parc_ray.recipes import get_recipe
from parc_ray.stages.merge import STAGE
from tests.motion.motions import make_clip
from tests.stages.helpers import put_clips, run_body

CONFIG = get_recipe("smoke")


def clip(character, clip_id, *parents):
    made = make_clip(character, clip_id=clip_id)
    return replace(made, provenance=replace(made.provenance, parents=parents))


def merge(root, inputs, iteration):
    return run_body(root, "merge", STAGE.body, inputs, CONFIG, iteration)


def dataset(root, iteration):
    return Manifest.load(Storage.from_uri(root), f"it_{iteration:02d}/merge/manifest.json")


def test_a_later_data_set_names_the_parts_of_the_earlier_one(tmp_path, humanoid):
    first = put_clips(tmp_path, "it_00/record", [clip(humanoid, "a")], humanoid)
    d0 = merge(tmp_path, {"motions": first}, 0)
    second = [clip(humanoid, "b"), clip(humanoid, "c")]
    motions = put_clips(tmp_path, "it_01/record", second, humanoid)
    d1 = merge(tmp_path, {"dataset": d0.outputs["dataset"], "motions": motions}, 1)
    old, new = dataset(tmp_path, 0), dataset(tmp_path, 1)
    assert [p.path for p in new.parts] == [
        "it_00/record/clips.parquet",
        "it_01/record/clips.parquet",
    ]
    assert new.parts[0] == old.parts[0]
    assert (new.name, new.iteration, new.parents) == ("D1", 1, ("D0",))
    assert not list((tmp_path / "it_01/merge").glob("*.parquet"))
    assert d1.metrics["clips"] == 3
    assert d1.metrics["new_clips"] == 2
    assert d1.metrics["seconds"] == pytest.approx(3 * 1.0)
    assert d1.outputs["dataset"].rows == 3
    assert [c.clip_id for c in read_clips(tmp_path, new)] == ["a", "b", "c"]


def test_an_iteration_that_made_nothing_keeps_the_old_data(tmp_path, humanoid):
    first = put_clips(tmp_path, "it_00/record", [clip(humanoid, "a")], humanoid)
    d0 = merge(tmp_path, {"motions": first}, 0)
    motions = put_clips(tmp_path, "it_01/record", [], humanoid)
    result = merge(tmp_path, {"dataset": d0.outputs["dataset"], "motions": motions}, 1)
    assert result.metrics["new_clips"] == 0
    assert dataset(tmp_path, 1).parts == dataset(tmp_path, 0).parts
    assert dataset(tmp_path, 1).name == "D1"


def test_kinematic_clips_of_which_there_is_no_recording_join_where_wanted(tmp_path, humanoid):
    kinematic = [clip(humanoid, name) for name in ("a", "b", "c")]
    initial = put_clips(tmp_path, "it_00/augment", kinematic, humanoid)
    recorded = [clip(humanoid, "b_mpc", "b")]
    motions = put_clips(tmp_path, "it_00/record", recorded, humanoid)
    result = merge(tmp_path, {"motions": motions, "uncorrected": initial}, 0)
    assert result.metrics["uncorrected_clips"] == 2
    clips = read_clips(tmp_path, dataset(tmp_path, 0))
    assert [c.clip_id for c in clips] == ["b_mpc", "a", "c"]
    own = [p.path for p in dataset(tmp_path, 0).parts]
    assert own == ["it_00/record/clips.parquet", "it_00/merge/uncorrected-0000.parquet"]


def test_nothing_uncorrected_writes_no_part(tmp_path, humanoid):
    initial = put_clips(tmp_path, "it_00/augment", [clip(humanoid, "a")], humanoid)
    motions = put_clips(tmp_path, "it_00/record", [clip(humanoid, "a_mpc", "a")], humanoid)
    result = merge(tmp_path, {"motions": motions, "uncorrected": initial}, 0)
    assert result.metrics["uncorrected_clips"] == 0
    assert len(dataset(tmp_path, 0).parts) == 1


def test_an_empty_first_data_set_ends_the_run_with_one_line(tmp_path, humanoid):
    motions = put_clips(tmp_path, "it_00/record", [], humanoid)
    with pytest.raises(InputError, match=r"data set D0: there are no clips.*records\.json"):
        merge(tmp_path, {"motions": motions}, 0)


def test_motions_of_another_character_are_refused(tmp_path, humanoid):
    other = replace(humanoid, digest="0" * 64)
    motions = put_clips(tmp_path, "it_00/record", [clip(humanoid, "a")], other)
    with pytest.raises(InputError, match="made for character 000000000000"):
        merge(tmp_path, {"motions": motions}, 0)


def test_ids_that_repeat_are_refused(tmp_path, humanoid):
    first = put_clips(tmp_path, "it_00/record", [clip(humanoid, "a")], humanoid)
    d0 = merge(tmp_path, {"motions": first}, 0)
    motions = put_clips(tmp_path, "it_01/record", [clip(humanoid, "a")], humanoid)
    with pytest.raises(InputError, match="'a'"):
        merge(tmp_path, {"dataset": d0.outputs["dataset"], "motions": motions}, 1)
