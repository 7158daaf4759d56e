"""``parc export``: what it writes, what it prints, and that it writes nothing by halves."""

from __future__ import annotations

import os

import pytest
import torch

from parc_ray import cli
from parc_ray.data.importers import import_path
from parc_ray.data.store import load_dataset, save_dataset
from parc_ray.errors import InputError
from parc_ray.tools import export
from tests.data import test_export as made

NAMES = {"parc": ".pkl", "csv": ".csv", "npz": ".npz"}


@pytest.fixture
def data_set(tmp_path, humanoid):
    """Three clips in two parts."""
    clips = [made.made_clip(humanoid, seed) for seed in range(3)]
    save_dataset(tmp_path / "set", "D0", clips, humanoid.digest, clips_per_part=2)
    return tmp_path / "set"


def test_every_clip_becomes_a_file(data_set, tmp_path, humanoid, capsys):
    _, clips = load_dataset(data_set)
    for kind, suffix in NAMES.items():
        out = tmp_path / "out" / kind
        with pytest.raises(SystemExit) as caught:
            cli.main(["export", str(data_set), "--format", kind, "--out", str(out)])
        output = capsys.readouterr()
        assert caught.value.code == 0, output.err
        assert "3 clips, 1.9 s, as " + kind in output.out
        assert "provenance" in output.out.splitlines()[1]
        files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
        assert files == [f"made/clip_{k}{suffix}" for k in range(3)]
        found = import_path(out, humanoid)
        assert [clip.clip_id for clip in found] == [clip.clip_id for clip in clips]
        assert {clip.provenance.class_name for clip in found} == {"made"}
        if kind != "csv":
            for clip, same in zip(found, clips, strict=True):
                made.assert_same(clip, same, humanoid)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(NAMES)


def test_parquet_is_a_data_set_of_the_chosen_clips(data_set, tmp_path, humanoid, capsys):
    out = tmp_path / "some"
    words = ["--format", "parquet", "--out", str(out), "--clip", "made/clip_2", "made/clip_0"]
    export.run([str(data_set / "manifest.json"), *words])
    assert "2 clips" in capsys.readouterr().out
    manifest, clips = load_dataset(out)
    assert (manifest.name, manifest.parents) == ("some", ("D0",))
    assert [clip.clip_id for clip in clips] == ["made/clip_0", "made/clip_2"]
    for clip, seed in zip(clips, (0, 2), strict=True):
        same = made.made_clip(humanoid, seed)
        assert torch.equal(clip.frames.dof, same.frames.dof)
        assert torch.equal(clip.path_nodes, same.path_nodes)
        assert clip.provenance == same.provenance


def test_a_full_target_and_an_unknown_clip_are_refused(data_set, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    words = [str(data_set), "--format", "parc"]
    with pytest.raises(InputError, match="not empty"):
        export.run([*words, "--out", str(tmp_path / "full")])
    with pytest.raises(InputError, match=r"--clip: made/clip_7 not in .*3 clips"):
        export.run([*words, "--out", str(tmp_path / "new"), "--clip", "made/clip_7", "made/clip_0"])
    with pytest.raises(InputError, match="--format"):
        export.run([str(data_set), "--out", str(tmp_path / "new"), "--format", "fbx"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "set"]
    assert os.listdir(tmp_path / "full") == ["x"]


def test_another_character_is_refused(data_set, tmp_path):
    waddler = str(made.__file__).replace("data/test_export.py", "assets/waddler.xml")
    with pytest.raises(InputError, match="made for character"):
        export.run(
            [
                str(data_set),
                "--format",
                "parc",
                "--out",
                str(tmp_path / "o"),
                "--character",
                waddler,
            ]
        )
    assert not (tmp_path / "o").exists()


def test_nothing_is_left_of_a_failed_export(data_set, tmp_path, monkeypatch):
    real = export.Storage.write_bytes_atomic

    def full(self, path, data):
        if "clip_1" in path:
            raise OSError(28, "No space left on device")
        real(self, path, data)

    monkeypatch.setattr(export.Storage, "write_bytes_atomic", full)
    with pytest.raises(InputError, match="No space left"):
        export.run([str(data_set), "--format", "npz", "--out", str(tmp_path / "deep" / "out")])
    left = sorted(p.relative_to(tmp_path).as_posix() for p in (tmp_path / "deep").rglob("*"))
    assert left == []


def test_ids_that_lead_elsewhere_leave_nothing(tmp_path, humanoid):
    clip = made.made_clip(humanoid)
    clip.clip_id = "../../escaped"
    save_dataset(tmp_path / "set", "D0", [clip], humanoid.digest)
    with pytest.raises(InputError, match="escaped"):
        export.run([str(tmp_path / "set"), "--format", "csv", "--out", str(tmp_path / "a" / "b")])
    assert sorted(p.name for p in tmp_path.rglob("*escaped*")) == []
    assert list((tmp_path / "a").iterdir()) == []
