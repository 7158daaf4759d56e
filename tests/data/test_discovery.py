"""Which files of a directory are imported: links, letters, names, and what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from parc_ray.data.importers import ImportOptions, import_path
from parc_ray.data.importers.discovery import clip_ids, motion_files
from parc_ray.data.importers.pipeline import holds_motions
from parc_ray.data.repair import RepairConfig
from parc_ray.errors import InputError

from . import files


def without_frames(data):
    data["frames"] = np.array(data["frames"])[:0]


def ids(path, character):
    return [clip.clip_id for clip in import_path(path, character)]


def test_links_to_directories_are_followed_once(tmp_path, humanoid):
    (tmp_path / "real").mkdir()
    (tmp_path / "set" / "inner").mkdir(parents=True)
    files.mimickit(tmp_path / "real" / "a.pkl", humanoid)
    files.mimickit(tmp_path / "set" / "inner" / "b.pkl", humanoid)
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "set" / "inner" / "up").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "self").symlink_to(tmp_path / "set")
    assert ids(tmp_path / "set", humanoid) == ["inner/b", "linked/a"]


def test_a_link_to_nothing_is_refused_by_name(tmp_path, humanoid):
    files.mimickit(tmp_path / "a.pkl", humanoid)
    (tmp_path / "gone.pkl").symlink_to("nowhere.pkl")
    (tmp_path / "gone.npz").symlink_to("nowhere.npz")
    refused: list[str] = []
    clips = import_path(tmp_path, humanoid, refused=refused)
    assert [clip.clip_id for clip in clips] == ["a"]
    assert sorted(Path(line.split(": ")[0]).name for line in refused) == ["gone.npz", "gone.pkl"]


def test_suffixes_in_capitals_count(tmp_path, humanoid):
    files.mimickit(tmp_path / "A.PKL", humanoid)
    assert ids(tmp_path, humanoid) == ["A"]
    (tmp_path / "B.BVH").write_text("<html>not found</html>")
    with pytest.raises(InputError, match=r"B\.BVH: file of an unknown format"):
        import_path(tmp_path, humanoid)


def test_texts_and_arrays_of_unknown_content_are_passed_over(tmp_path, humanoid):
    files.mimickit(tmp_path / "a.pkl", humanoid)
    for name in ("notes.txt", "x.npy", "skeleton.asf", ".hidden.json"):
        (tmp_path / name).write_text("hello")
    passed: list[Path] = []
    import_path(tmp_path, humanoid, passed_over=passed)
    assert [file.name for file in passed] == ["notes.txt", "x.npy"]


@pytest.mark.parametrize("name", [b"a\nb.pkl", b"\xff\xfe.pkl", b"a\x1b[2J.pkl"])
def test_names_that_cannot_be_printed_are_refused(tmp_path, humanoid, name):
    files.mimickit(tmp_path / "a.pkl", humanoid)
    os.rename(tmp_path / "a.pkl", os.fsencode(tmp_path) + b"/" + name)
    with pytest.raises(InputError, match="rename the file") as caught:
        import_path(tmp_path, humanoid)
    assert str(caught.value).isprintable()


def test_other_letters_are_fine(tmp_path, humanoid):
    name = "l\u00e4uft \u65e5\u672c\u00a0(1)"
    files.mimickit(tmp_path / f"{name}.pkl", humanoid)
    assert ids(tmp_path, humanoid) == [name]


def test_pipes_are_no_files(tmp_path, humanoid):
    os.mkfifo(tmp_path / "pipe.pkl")
    assert motion_files(tmp_path, lambda _: True) == []
    with pytest.raises(InputError, match="no regular file"):
        import_path(tmp_path / "pipe.pkl", humanoid)


def test_a_directory_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def closed(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InputError, match=r"closed: cannot be read \(Permission denied\)"):
        motion_files(tmp_path, lambda _: True)


def test_two_files_of_one_stem_keep_their_suffixes():
    base = Path("set")
    found = [base / "a.pkl", base / "a.txt", base / "b" / "a.pkl"]
    assert clip_ids(found, base) == ["a.pkl", "a.txt", "b/a"]


def test_a_file_without_frames_is_too_short_with_repair_too(tmp_path, humanoid):
    files.mimickit(tmp_path / "a.pkl", humanoid)
    files.mimickit(tmp_path / "b.pkl", humanoid, change=without_frames)
    short: list[str] = []
    import_path(tmp_path, humanoid, ImportOptions(repair=RepairConfig()), too_short=short)
    assert len(short) == 1
    assert "too short: 0 frames" in short[0]


def test_a_look_passes_over_what_an_import_passes_over(tmp_path):
    for place in (".hidden", "ignore"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.pkl").write_bytes(b"")
    assert holds_motions(tmp_path) is False
    (tmp_path / "b.PKL").write_bytes(b"")
    assert holds_motions(tmp_path) is True
    assert holds_motions(tmp_path / "b.PKL") is True
