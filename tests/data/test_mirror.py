"""A training's local directory and its copy on storage: whole folders, or none."""

from __future__ import annotations

import hashlib

import pytest
from pyarrow import fs

from parc_ray.data.mirror import WHOLE, Mirror
from parc_ray.data.storage import Storage


@pytest.fixture
def remote():
    return Storage(filesystem=fs._MockFileSystem(), root="bucket/run")


def folder(mirror: Mirror, name: str, **files: bytes) -> None:
    (mirror.local / name).mkdir()
    for file, data in files.items():
        (mirror.local / name / file).write_bytes(data)
    mirror.push_folder(name)


@pytest.fixture
def mirror(remote, tmp_path):
    (tmp_path / "a").mkdir()
    made = Mirror(remote, tmp_path / "a")
    folder(made, "ckpt_1", state=b"one", policy=b"1")
    folder(made, "ckpt_2", state=b"two", policy=b"2")
    return made


def fresh(remote, tmp_path) -> Mirror:
    (tmp_path / "b").mkdir()
    return Mirror(remote, tmp_path / "b")


def test_the_newest_whole_folder_comes_back(mirror, remote, tmp_path):
    again = fresh(remote, tmp_path)
    assert again.pull_newest("ckpt_") == "ckpt_2"
    assert {p.name: p.read_bytes() for p in (again.local / "ckpt_2").iterdir()} == {
        "state": b"two",
        "policy": b"2",
    }


@pytest.mark.parametrize("how", ["no marker", "damaged", "a file lacks", "marker is no JSON"])
def test_what_is_not_whole_is_passed_over(mirror, remote, tmp_path, how, caplog):
    if how == "no marker":
        remote.delete(f"ckpt_2/{WHOLE}")
    elif how == "damaged":
        remote.write_bytes_atomic("ckpt_2/state", b"twO")
    elif how == "a file lacks":
        remote.delete("ckpt_2/policy")
    else:
        remote.write_bytes_atomic(f"ckpt_2/{WHOLE}", b"{")
    again = fresh(remote, tmp_path)
    assert again.pull_newest("ckpt_") == "ckpt_1"
    assert (again.local / "ckpt_1" / "state").read_bytes() == b"one"
    assert not (again.local / "ckpt_2").exists()
    assert "ckpt_2: is not whole" in caplog.text


@pytest.mark.parametrize("where", ["absolute", "above"])
def test_names_that_lead_elsewhere_are_not_followed(mirror, remote, tmp_path, where):
    """Whoever wrote the store could have files written anywhere on the machine that resumes."""
    target = tmp_path / "elsewhere"
    file = str(target) if where == "absolute" else "../../elsewhere"
    digest = hashlib.sha256(b"bad").hexdigest()
    remote.write_json_atomic(f"ckpt_2/{WHOLE}", {file: digest})
    again = fresh(remote, tmp_path)
    read = Storage.read_bytes
    with pytest.MonkeyPatch.context() as patch:  # as a store that has an object of that name
        patch.setattr(
            Storage,
            "read_bytes",
            lambda self, path: b"bad" if path.endswith(file) else read(self, path),
        )
        assert again.pull_newest("ckpt_") == "ckpt_1"
    assert not target.exists()


def test_a_push_that_is_cut_off_leaves_no_whole_folder(mirror, remote, tmp_path, monkeypatch):
    """Also where the name was whole before: the marker goes first and comes last."""
    send = Storage.write_bytes_atomic
    monkeypatch.setattr(
        Storage,
        "write_bytes_atomic",
        lambda self, path, data: send(self, path, data) if "policy" in path else 1 / 0,
    )
    with pytest.raises(ZeroDivisionError):
        mirror.push_folder("ckpt_2")
    monkeypatch.undo()
    assert fresh(remote, tmp_path).pull_newest("ckpt_") == "ckpt_1"


def test_files_and_trees(mirror, remote, tmp_path):
    (mirror.local / "tb" / "x").mkdir(parents=True)
    (mirror.local / "tb" / "x" / "events").write_bytes(b"e")
    (mirror.local / "log").write_bytes(b"l")
    mirror.push("tb", "log", "not there")
    assert remote.read_bytes("tb/x/events") == b"e"
    again = fresh(remote, tmp_path)
    again.pull("log", "not there")
    assert [p.name for p in again.local.iterdir()] == ["log"]


def test_old_folders_go(mirror, remote):
    mirror.keep_only("ckpt_", ["ckpt_2"])
    assert remote.list_dirs() == ["ckpt_2"]
    assert remote.exists(f"ckpt_2/{WHOLE}")
