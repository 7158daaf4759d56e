"""Bundles and clips that are damaged, too large or not what they should be: one line each."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from parc_ray.errors import InputError
from parc_ray.runner import bundle as bundles
from parc_ray.runner.__main__ import main
from parc_ray.runner.bundle import SHEET, Bundle, open_network, read_members
from parc_ray.runner.kinematics import Body
from parc_ray.runner.reference import read_clip

ROOT = Path(__file__).resolve().parent.parent.parent
BODY = Body(
    names=("root", "arm"),
    parents=np.array([-1, 0]),
    offsets=np.zeros((2, 3), np.float32),
    rest_rot=np.array([[0, 0, 0, 1]] * 2, np.float32),
    kinds=("root", "hinge"),
    dofs=np.array([[0, 0], [0, 1]]),
    hinge_axes=np.array([[0, 0, 1]] * 2, np.float32),
)


def clip_arrays(frames=6):
    return {
        "root_pos": np.zeros((frames, 3)),
        "root_rot": np.tile([0.0, 0.0, 0.0, 1.0], (frames, 1)),
        "dof": np.zeros((frames, 1)),
        "contacts": np.zeros((frames, 2)),
        "fps": np.float64(30.0),
        "terrain_heights": np.arange(20.0).reshape(4, 5),
        "terrain_origin": np.zeros(2),
        "terrain_cell_size": np.float64(0.4),
    }


def sheet_of(files, /, **changes):
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return {"format": "parc-ray-bundle", "version": 1, "files": hashes, **changes}


def zipped(path, files, /, **changes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(SHEET, json.dumps(sheet_of(files, **changes)))
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def flipped(content, step):
    """The content with one byte turned over, at every ``step``-th place."""
    for place in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        yield place, bytes(damaged)


def refusal(work):
    """What the InputError says, "" where there is none; anything else is raised."""
    try:
        work()
    except InputError as error:
        return str(error)
    return ""


def test_a_flipped_byte_in_a_clip_is_one_line(tmp_path):
    path, sink = tmp_path / "clip.npz", io.BytesIO()
    np.savez_compressed(sink, **clip_arrays())
    refused = 0
    for _, content in flipped(sink.getvalue(), 3):
        path.write_bytes(content)
        refused += path.name in refusal(lambda: read_clip(path, BODY))
    assert refused > 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as .npz"),
        (b"PK\x03\x04 and no more", "cannot be read as .npz"),
        (b"no archive", "cannot be read as .npz"),
    ],
)
def test_other_files_are_no_clips(tmp_path, content, message):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_clip(tmp_path / "x.npz", BODY)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match="one array, not several"):
        read_clip(tmp_path / "one.npy", BODY)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dof", np.zeros((5, 1)), "dof of shape"),
        ("root_pos", np.float64(1.0), "root_pos of shape"),
        ("terrain_heights", np.zeros((0, 0)), "terrain_heights of shape"),
        ("root_rot", np.full((6, 4), np.nan), "root_rot holds other than finite numbers"),
        ("contacts", np.full((6, 2), "a"), "contacts holds other"),
        ("fps", np.float64(0.0), "fps is 0; it must be above 0"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, name, value, message):
    np.savez(tmp_path / "clip.npz", **{**clip_arrays(), name: value})
    with pytest.raises(InputError, match=message):
        read_clip(tmp_path / "clip.npz", BODY)


def test_a_whole_clip_is_read(tmp_path):
    np.savez(tmp_path / "clip.npz", **clip_arrays())
    clip = read_clip(tmp_path / "clip.npz", BODY)
    assert (clip.fps, clip.ground.heights[3, 4]) == (30.0, 19.0)


def test_a_flipped_byte_in_a_bundle_is_one_line(tmp_path):
    files = {"a.bin": bytes(range(256)) * 3, "b.xml": b"<mujoco/>" * 40}
    content = zipped(tmp_path / "whole.zip", files).read_bytes()
    path, refused = tmp_path / "b.zip", 0
    for _, damaged in flipped(content, 3):
        path.write_bytes(damaged)
        found: dict = {}
        said = refusal(lambda found=found: found.update(read_members(path)))
        assert said or {name: found[name] for name in files} == files
        refused += path.name in said
    assert refused > 100


def test_only_what_the_sheet_lists_is_read(tmp_path):
    path = zipped(tmp_path / "b.zip", {"a.bin": b"a"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other.bin", b"other")
    assert set(read_members(path)) == {SHEET, "a.bin"}
    folder = tmp_path / "b"
    folder.mkdir()
    (tmp_path / "outside").write_bytes(b"outside")
    files = {"a.bin": b"a", "../outside": b"outside"}
    for name in ("a.bin", "other.bin"):
        (folder / name).write_bytes(name[:1].encode())
    (folder / SHEET).write_text(json.dumps(sheet_of(files)))
    with pytest.raises(InputError, match=r"\.\./outside is missing"):
        read_members(folder)
    (folder / SHEET).write_text(json.dumps(sheet_of({"a.bin": b"a"})))
    assert set(read_members(folder)) == {SHEET, "a.bin"}


def test_too_large_a_bundle_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MAX_BYTES", 2**20)
    path = zipped(tmp_path / "b.zip", {"zeros": bytes(3 * 2**20)})
    assert path.stat().st_size < 2**16
    with pytest.raises(InputError, match=r"its files take 0\.0 GiB"):
        read_members(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": ["tracker.onnx"]}, "missing or damaged"),
        ({"version": "new"}, "missing or damaged"),
        ({"format": "other"}, "other version 1"),
        ({}, "character.npz, simulation.xml missing"),
    ],
)
def test_sheets_that_lack_something_are_one_line(tmp_path, changes, message):
    path = zipped(tmp_path / "b.zip", {"tracker.onnx": b"x"}, **changes)
    with pytest.raises(InputError, match=message):
        Bundle.open(path)


def test_a_value_that_is_missing_is_named(tmp_path):
    files = {"tracker.onnx": b"x", "character.npz": b"x", "simulation.xml": b"x"}
    path = zipped(tmp_path / "b.zip", files, character={"bodies": []})
    with pytest.raises(InputError, match=r"bundle\.json: character\.kinds is missing"):
        Bundle.open(path)


def test_what_is_no_network_is_one_line():
    pytest.importorskip("onnxruntime", reason="networks need parc-ray[export]")
    with pytest.raises(InputError, match=r"onnxruntime .* cannot read it"):
        open_network(b"no network")


_WITHOUT = """
import sys
sys.modules["onnxruntime"] = None
from parc_ray.errors import InputError
from parc_ray.runner.__main__ import main
from parc_ray.runner.bundle import open_network, read_members
assert "a.bin" in read_members(sys.argv[1])
try:
    open_network(b"x")
except InputError as error:
    assert "parc-ray[export]" in str(error), error
sys.exit(main([sys.argv[1], "clip.npz"]))
"""


def test_bundles_can_be_read_where_onnxruntime_is_not_installed(tmp_path):
    """Nothing but the network itself asks for it, and it asks in one line."""
    path = zipped(tmp_path / "b.zip", {"a.bin": b"a"})
    words = [sys.executable, "-c", _WITHOUT, str(path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 2, done.stderr
    assert "holds no tracker" in done.stderr
    assert len(done.stderr.splitlines()) == 1


class Quiet:
    """Stands for the tracker: what happens around it is under test."""

    def __init__(self, bundle):
        self.bundle = bundle

    def read(self, path):
        return path

    def track(self, clip):
        return self

    completed, steps, of, reason, body_error_m = True, 1, 1, "", 0.0

    def save(self, path):
        Path(path).write_bytes(b"simulated")


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    monkeypatch.setattr("parc_ray.runner.__main__.Tracker", Quiet)
    monkeypatch.setattr("parc_ray.runner.__main__.Bundle.open", lambda path: None)
    (tmp_path / "clips").mkdir()
    for name in ("walk", "run"):
        (tmp_path / "clips" / f"{name}.npz").write_bytes(b"clip")
    return tmp_path / "clips"


def test_the_input_is_never_written_over(quiet, capsys):
    clips = [str(quiet / "walk.npz"), str(quiet / "run.npz")]
    assert main(["b", *clips, "--out", str(quiet)]) == 0
    assert [Path(c).read_bytes() for c in clips] == [b"clip", b"clip"]
    names = sorted(p.name for p in quiet.iterdir())
    assert names == ["run.npz", "run.simulated.npz", "walk.npz", "walk.simulated.npz"]
    words = ["b", clips[0], str(quiet / "walk.simulated.npz"), "--out", str(quiet)]
    assert main(words) == 2
    assert "is an input" in capsys.readouterr().err


def test_equal_names_and_places_that_cannot_be_written_are_refused(quiet, capsys):
    (quiet / "other").mkdir()
    (quiet / "other" / "walk.npz").write_bytes(b"clip")
    both = [str(quiet / "walk.npz"), str(quiet / "other" / "walk.npz")]
    assert main(["b", *both, "--out", str(quiet / "out")]) == 2
    assert not (quiet / "out").exists()
    assert main(["b", *both]) == 0
    assert main(["b", both[0], "--out", str(quiet / "run.npz" / "x")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "walk.simulated.npz" in lines[0]
    assert "--out" in lines[1]
