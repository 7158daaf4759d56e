"""``parc import``: what it writes, what it prints, and that it writes nothing by halves."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from parc_ray import cli
from parc_ray.data import sample_data
from parc_ray.data.importers import import_path
from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.motion.clip import validate_clip
from parc_ray.synthesis.levels import level_change
from parc_ray.tools import base, import_report
from parc_ray.tools.import_report import terrain_origin
from tests.data import files


def call(capsys, *argv: str) -> str:
    """Standard output of a command that must succeed."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(argv))
    output = capsys.readouterr()
    assert caught.value.code == 0, output.err
    return output.out


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Where ``--check`` alone puts its report."""
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(import_report, "cache_dir", lambda: path)
    return path


@pytest.fixture
def motions(tmp_path, humanoid):
    """One motion of each format, in a directory with a sub-directory."""
    folder = tmp_path / "motions"
    (folder / "walks").mkdir(parents=True)
    files.mimickit(folder / "walks" / "a.pkl", humanoid, frames=40)
    files.parc_ms(folder / "b.pkl", humanoid, frames=31)
    files.deepmimic(folder / "jump.txt", files.deepmimic_rows(frames=20))
    (folder / "notes.txt").write_text("not a motion")
    return folder


def test_a_directory_becomes_a_data_set(motions, tmp_path, humanoid, capsys):
    out = call(capsys, "import", str(motions), "--out", str(tmp_path / "set"), "--name", "mine")
    manifest, clips = load_dataset(tmp_path / "set")
    assert (manifest.name, manifest.rows) == ("mine", 3)
    assert manifest.character_digest == humanoid.digest
    assert [clip.clip_id for clip in clips] == ["b", "jump", "walks/a"]
    for clip, same in zip(clips, import_path(motions, humanoid), strict=True):
        validate_clip(clip, humanoid, 16)
        assert torch.equal(clip.frames.dof, same.frames.dof)
    assert [terrain_origin(clip) for clip in clips] == ["given", "inferred", "inferred"]
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert "given" in rows["b"]
    assert "1.00" in rows["b"]
    assert "12: 0.00 to 1.10" in rows["b"]  # heights 0, 0.1, ..., 1.1
    assert "DeepMimic motion text: jump.txt" in rows["jump"]
    seconds = (30 + 19 + 39) / 30
    assert f"3 clips, {seconds:.1f} s" in out
    names = sorted(p.name for p in (tmp_path / "set").iterdir())
    reports = ["import_report.csv", "import_report.json"]
    assert names == [*reports, "manifest.json", "part-00000.parquet"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["motions", "set"]


def test_check_prints_the_same_and_writes_nothing(motions, tmp_path, capsys):
    checked = call(capsys, "import", str(motions), "--check")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["motions"]
    both = call(capsys, "import", str(motions), "--check", "--out", str(tmp_path / "set"))
    assert both == checked
    assert not (tmp_path / "set").exists()
    (tmp_path / "set").mkdir()
    assert call(capsys, "import", str(motions), "--out", str(tmp_path / "set")).startswith(checked)


def test_options_reach_the_clips(motions, tmp_path, capsys):
    words = ["--min-frames", "25", "--cell-size", "0.2"]
    out = call(capsys, "import", str(motions), "--out", str(tmp_path / "set"), *words)
    _, clips = load_dataset(tmp_path / "set")
    assert [clip.clip_id for clip in clips] == ["b", "walks/a"]
    assert {clip.terrain.cell_size for clip in clips} == {0.2}
    assert re.search(r"left out: .*jump\.txt.*20 frames", out)


def test_loops_are_unrolled_as_the_loop_does(tmp_path, humanoid, capsys):
    files.mimickit(tmp_path / "cycle.pkl", humanoid, frames=31, loop=1)
    call(capsys, "import", str(tmp_path / "cycle.pkl"), "--out", str(tmp_path / "set"))
    _, clips = load_dataset(tmp_path / "set")
    assert clips[0].loop == "clamp"
    assert clips[0].duration_s >= 3.0


def test_a_data_set_is_a_source_too(motions, tmp_path, capsys):
    call(capsys, "import", str(motions), "--out", str(tmp_path / "one"))
    call(capsys, "import", str(tmp_path / "one"), "--out", str(tmp_path / "two"))
    for name in ("part-00000.parquet",):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_failure_in_the_middle_leaves_nothing(motions, tmp_path, humanoid, monkeypatch):
    clips = import_path(motions, humanoid)
    target = base.require_target(str(tmp_path / "set"))
    original = base.save_dataset

    def broken(location, *rest, **more):
        original(location, *rest, **more)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(base, "save_dataset", broken)
    with pytest.raises(InputError, match="No space left"):
        base.write_dataset(target, "D", clips, humanoid)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["motions"]


def test_two_clips_of_one_id_are_refused(tmp_path, humanoid):
    files.mimickit(tmp_path / "a.pkl", humanoid)
    clips = import_path(tmp_path / "a.pkl", humanoid) * 2
    with pytest.raises(InputError, match="appears twice"):
        base.write_dataset(base.require_target(str(tmp_path / "set")), "D", clips, humanoid)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pkl"]


def test_tables_line_up():
    text = base.format_table(("clip", "s"), [["long name", "1.5"], ["b", "10.25"]])
    assert text.splitlines() == [
        "clip           s",
        "---------  -----",
        "long name    1.5",
        "b          10.25",
    ]
    assert base.format_table(("clip",), []).splitlines() == ["clip", "----"]


@pytest.mark.slow
def test_the_sample_crosses_level_changes_in_half_its_seconds_or_more(tmp_path, humanoid, capsys):
    """The built-in sample is no flat data set."""
    try:
        sample_data.fetch_wheel()
    except InputError as error:
        pytest.skip(f"the sample cannot be had here: {error}")
    out = call(capsys, "import", "sample", "--out", str(tmp_path / "sample"))
    manifest, clips = load_dataset(tmp_path / "sample")
    kinds = {clip.provenance.class_name for clip in clips}
    assert {"walk", "run", "jump"} <= kinds
    total = sum(clip.duration_s for clip in clips)
    crossing = [clip for clip in clips if _ground_change(clip) >= 0.1 - 1e-4]
    assert sum(clip.duration_s for clip in crossing) / total >= 0.5
    for clip in crossing:  # the feet follow the ground, within the sole's and the box's size
        assert level_change(clip, humanoid) <= _ground_change(clip) + 0.3
    assert all(clip.num_frames >= 16 for clip in clips)
    shown = re.search(r"(\d+) clips, ([\d.]+) s; (\d+)% of the seconds", out)
    assert shown is not None
    assert int(shown[1]) == len(clips) == manifest.rows
    assert float(shown[2]) == pytest.approx(total, abs=0.06)
    assert int(shown[3]) >= 50
    assert len(json.loads((tmp_path / "sample/manifest.json").read_text())["parts"]) == 1


def _ground_change(clip) -> float:
    """Ground under the root's path, highest minus lowest, looked up without the library."""
    xy = clip.frames.root_pos[:, :2].numpy()
    terrain = clip.terrain
    index = np.rint((xy - terrain.origin.numpy()) / terrain.cell_size).astype(int)
    index = np.clip(index, 0, np.array(terrain.heights.shape) - 1)
    ground = terrain.heights.numpy()[index[:, 0], index[:, 1]]
    return float(ground.max() - ground.min())


def refused(capsys, *argv: str) -> str:
    """Error output of a command that must be refused in one line."""
    with pytest.raises(SystemExit) as caught:
        cli.main(list(argv))
    output = capsys.readouterr()
    assert (caught.value.code, output.out) == (2, "")
    assert len(output.err.splitlines()) == 1
    return output.err


def test_several_sources_become_one_data_set(tmp_path, humanoid, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    files.mimickit(tmp_path / "one" / "a.pkl", humanoid)
    files.mimickit(tmp_path / "two" / "b.pkl", humanoid, frames=31)
    files.mimickit(tmp_path / "two" / "a.pkl", humanoid)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    words = ("--out", str(tmp_path / "first"), "--licence", "CC0-1.0")
    call(capsys, "import", f"{two}/b.pkl", *words)
    # a file and a data set that keeps the licence it was given
    words = ("--out", str(tmp_path / "both"), "--licence", "MIT", "--name", "mine")
    out = call(capsys, "import", one, str(tmp_path / "first"), *words)
    manifest, clips = load_dataset(tmp_path / "both")
    assert (manifest.name, [clip.clip_id for clip in clips]) == ("mine", ["a", "b"])
    assert [clip.provenance.licence for clip in clips] == ["MIT", "CC0-1.0"]
    assert "overlap: " in out  # compared across the sources
    err = refused(capsys, "import", one, two, "--out", str(tmp_path / "no"))
    assert f"clip 'a': in {one} and in {two}; ids must differ" in err
    assert not (tmp_path / "no").exists()
    err = refused(capsys, "import", one, str(tmp_path / "three"), "--out", str(tmp_path / "no"))
    assert "three: does not exist" in err


def test_a_source_of_nothing_but_bad_files_is_named_with_the_others(tmp_path, humanoid, capsys):
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    files.mimickit(tmp_path / "good" / "a.pkl", humanoid)
    (tmp_path / "bad" / "cut.pkl").write_bytes((tmp_path / "good" / "a.pkl").read_bytes()[:99])
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    for order in ((good, bad), (bad, good)):
        assert "cut.pkl: " in refused(capsys, "import", *order, "--out", str(tmp_path / "no"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad", "good"]
    out = call(capsys, "import", bad, good, "--skip-bad", "--out", str(tmp_path / "set"))
    assert out.count("refused: ") == 1
    assert [clip.clip_id for clip in load_dataset(tmp_path / "set")[1]] == ["a"]
    err = refused(capsys, "import", bad, bad, "--skip-bad", "--out", str(tmp_path / "no"))
    assert "2 of 2 motions cannot be used" in err


def test_info_of_motion_files_says_how_they_become_a_data_set(motions, tmp_path, capsys):
    for path in (motions, motions / "walks" / "a.pkl", motions / "jump.txt"):
        err = refused(capsys, "info", str(path))
        assert f"'parc import {path} --out DIR' makes a data set of them" in err
    (tmp_path / "empty").mkdir()
    assert "no run directory" in refused(capsys, "info", str(tmp_path / "empty"))
