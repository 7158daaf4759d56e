"""The rule of the markers: no-op when equal, refused when different, continued when killed."""

from __future__ import annotations

import hashlib
import json
import math

import pytest

from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.stages.base import (
    Artifact,
    StageContext,
    StageOutputs,
    hash_path,
    read_result,
    run_stage,
)


class Config:
    seed = 3


@pytest.fixture
def ctx(tmp_path):
    return StageContext(run=Storage.from_uri(tmp_path / "run"), iteration=2, config=Config())


def source(text="a"):
    return {"dataset": Artifact(path="it_01/merge/d.json", sha256=text, rows=4)}


def writes(text="hello", calls=None):
    def body(run):
        if calls is not None:
            calls.append(run)
        run.dir.write_bytes_atomic("x.txt", text.encode())
        return StageOutputs(
            paths={"x": "x.txt"}, rows={"x": 2}, metrics={"loss": 0.5, "fwd": math.nan}
        )

    return body


def test_marker_tells_the_whole_story(ctx):
    result = run_stage(ctx, "generate", {"a": 1}, source(), writes())
    marker = json.loads((ctx.run.local_path() / "it_02/generate/_DONE.json").read_text())
    assert marker["inputs"] == {"dataset": {"path": "it_01/merge/d.json", "sha256": "a", "rows": 4}}
    assert marker["outputs"]["x"] == {
        "path": "it_02/generate/x.txt",
        "sha256": hashlib.sha256(b"hello").hexdigest(),
        "rows": 2,
    }
    assert marker["metrics"] == {"loss": 0.5, "fwd": None}
    assert marker["config"] == {"a": 1}
    assert {"torch", "ray", "parc-ray", "python"} <= marker["versions"].keys()
    assert marker["seconds"] >= 0
    assert marker["cpu_seconds"] >= 0
    assert read_result(ctx, "generate") == type(result)(**{**vars(result), "skipped": True})


def test_equal_config_and_inputs_make_it_a_no_op(ctx):
    calls = []
    run_stage(ctx, "generate", {"a": 1}, source(), writes(calls=calls))
    before = (ctx.run.local_path() / "it_02/generate/_DONE.json").read_bytes()
    again = run_stage(ctx, "generate", {"a": 1}, source(), writes(calls=calls))
    assert again.skipped
    assert len(calls) == 1
    assert (ctx.run.local_path() / "it_02/generate/_DONE.json").read_bytes() == before


@pytest.mark.parametrize(
    ("section", "inputs", "message"),
    [
        ({"a": 2}, source(), r"a: 1 -> 2"),
        ({"a": 1}, source("b"), r"input dataset has other content"),
        ({"a": 1}, {}, r"input dataset is no longer given"),
        ({"a": 1}, {**source(), "t": Artifact(path="t", sha256="t")}, r"input t is new"),
    ],
)
def test_changes_are_refused_by_name_unless_forced(ctx, section, inputs, message):
    run_stage(ctx, "generate", {"a": 1}, source(), writes())
    calls = []
    with pytest.raises(InputError, match=message) as caught:
        run_stage(ctx, "generate", section, inputs, writes(calls=calls))
    assert "--force" in str(caught.value)
    assert not calls
    forced = StageContext(run=ctx.run, iteration=2, config=Config(), force=True)
    result = run_stage(forced, "generate", section, inputs, writes("new", calls))
    assert not result.skipped
    assert not calls[0].resumed
    assert run_stage(forced, "generate", section, inputs, writes()).skipped


def test_another_seed_is_a_change(ctx):
    run_stage(ctx, "generate", {}, {}, writes())
    other = type("Config", (), {"seed": 4})()
    reseeded = StageContext(run=ctx.run, iteration=2, config=other)
    with pytest.raises(InputError, match="seed"):
        run_stage(reseeded, "generate", {}, {}, writes())


def test_failed_attempt_is_continued_in_its_directory(ctx):
    def breaks(run):
        assert not run.resumed
        run.dir.write_bytes_atomic("part-0", b"0")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        run_stage(ctx, "generate", {"a": 1}, {}, breaks)
    assert read_result(ctx, "generate") is None
    seen = []

    def continues(run):
        seen.append((run.resumed, run.dir.exists("part-0")))
        return StageOutputs(paths={})

    run_stage(ctx, "generate", {"a": 1}, {}, continues)
    assert seen == [(True, True)]


def test_parts_of_an_attempt_with_other_settings_are_not_mixed_in(ctx):
    def breaks(run):
        run.dir.write_bytes_atomic("part-0", b"0")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run_stage(ctx, "generate", {"a": 1}, {}, breaks)
    with pytest.raises(InputError, match="a: 1 -> 2"):
        run_stage(ctx, "generate", {"a": 2}, {}, writes())
    forced = StageContext(run=ctx.run, iteration=2, config=Config(), force=True)
    run_stage(forced, "generate", {"a": 2}, {}, writes())
    assert not ctx.run.exists("it_02/generate/part-0")


def test_vanished_output_is_reported(ctx):
    run_stage(ctx, "generate", {}, {}, writes())
    (ctx.run.local_path() / "it_02/generate/x.txt").unlink()
    with pytest.raises(InputError, match="output 'x' of a finished stage is missing"):
        run_stage(ctx, "generate", {}, {}, writes())


def test_missing_output_leaves_no_marker(ctx):
    def lies(run):
        return StageOutputs(paths={"x": "never-written"})

    with pytest.raises(InputError, match="does not exist"):
        run_stage(ctx, "generate", {}, {}, lies)
    assert read_result(ctx, "generate") is None


def test_seeds_differ_by_stage_iteration_and_run(ctx):
    other = StageContext(run=ctx.run, iteration=3, config=Config())
    seeds = {ctx.seed("generate"), ctx.seed("record"), other.seed("generate")}
    assert len(seeds) == 3
    assert all(0 <= s < 2**31 for s in seeds)
    assert ctx.seed("generate") == StageContext(
        run=ctx.run.join("elsewhere"), iteration=2, config=Config(), force=True
    ).seed("generate")


def test_directory_digest_sees_names_and_contents(tmp_path):
    storage = Storage.from_uri(tmp_path)
    storage.write_bytes_atomic("a/1", b"x")
    storage.write_bytes_atomic("a/b/2", b"y")
    storage.write_bytes_atomic("c/1", b"x")
    storage.write_bytes_atomic("c/b/2", b"y")
    first = hash_path(storage, "a")
    assert first == hash_path(storage, "c")
    storage.write_bytes_atomic("c/b/2", b"z")
    assert hash_path(storage, "c") != first
    storage.write_bytes_atomic("c/b/2", b"y")
    storage.write_bytes_atomic("c/3", b"")
    assert hash_path(storage, "c") != first


def test_inputs_open_inside_and_outside_the_run(ctx, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "m.txt").write_text("m")
    ctx.run.write_bytes_atomic("it_01/merge/d.json", b"d")
    found = {}

    def body(run):
        for name in run.inputs:
            storage, path = run.open_input(name)
            found[name] = storage.exists(path)
        return StageOutputs(paths={})

    inputs = {
        "data": Artifact(path=str(tmp_path / "data"), sha256="1"),
        "file": Artifact(path=str(tmp_path / "data" / "m.txt"), sha256="2"),
        **source(),
    }
    run_stage(ctx, "augment", {}, inputs, body)
    assert found == {"data": True, "file": True, "dataset": True}
