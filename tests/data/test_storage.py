"""Storage: whole files or nothing, on any pyarrow file system."""

from __future__ import annotations

import hashlib
import os
import pickle

import pytest
from pyarrow import fs

from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from tests.object_store import object_store


@pytest.fixture(scope="module")
def store():
    with object_store("bucket") as store:
        yield store


@pytest.fixture(params=["local", "subtree", "memory", "s3"])
def storage(request, tmp_path):
    if request.param == "s3":
        store = request.getfixturevalue("store")
        return Storage.from_uri(store.uri(f"bucket/{tmp_path.name}"))
    if request.param == "memory":
        return Storage(filesystem=fs._MockFileSystem(), root="bucket/run")
    if request.param == "local":
        return Storage.from_uri(tmp_path / "run")
    (tmp_path / "base").mkdir()
    return Storage(
        filesystem=fs.SubTreeFileSystem(str(tmp_path / "base"), fs.LocalFileSystem()), root="run"
    )


def test_round_trip_listing_and_hash(storage):
    storage.write_bytes_atomic("a/b.bin", b"one")
    storage.write_bytes_atomic("a/c/d.bin", b"two")
    storage.write_bytes_atomic("e.json", b"{}")
    assert storage.read_bytes("a/b.bin") == b"one"
    assert storage.list(recursive=True) == ["a/b.bin", "a/c/d.bin", "e.json"]
    assert storage.list("a") == ["a/b.bin"]
    assert storage.list(recursive=True, suffix=".json") == ["e.json"]
    assert storage.list_dirs() == ["a"]
    assert storage.list("missing") == []
    assert storage.join("a").read_bytes("c/d.bin") == b"two"
    assert storage.sha256("e.json") == hashlib.sha256(b"{}").hexdigest()
    assert storage.is_dir("a")
    assert storage.exists("a/b.bin")
    assert not storage.exists("a/x")


def test_storage_travels_to_workers(tmp_path):
    storage = Storage.from_uri(tmp_path)
    storage.write_bytes_atomic("f", b"new")
    assert pickle.loads(pickle.dumps(storage)).read_bytes("f") == b"new"


def test_replace_and_delete(storage):
    storage.write_bytes_atomic("f", b"old")
    storage.write_bytes_atomic("f", b"new")
    assert storage.read_bytes("f") == b"new"
    storage.delete("f")
    storage.delete("f")
    storage.write_bytes_atomic("d/f", b"x")
    storage.delete("d")
    assert storage.list(recursive=True) == []
    assert not storage.exists("f")


def test_equal_json_gives_equal_bytes(storage):
    storage.write_json_atomic("x.json", {"b": 1, "a": [1.5, "ü"]})
    storage.write_json_atomic("y.json", {"a": [1.5, "ü"], "b": 1})
    assert storage.read_bytes("x.json") == storage.read_bytes("y.json")
    assert storage.read_json("x.json") == {"a": [1.5, "ü"], "b": 1}


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    storage = Storage.from_uri(tmp_path)
    storage.write_bytes_atomic("f", b"old")

    def broken(fd):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        storage.write_bytes_atomic("f", b"new")
    assert os.listdir(tmp_path) == ["f"]
    assert storage.read_bytes("f") == b"old"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd"])
def test_paths_stay_inside(storage, path):
    with pytest.raises(InputError, match="leaves its storage"):
        storage.read_bytes(path)


def test_clear_errors(storage, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        storage.read_bytes("nope")
    storage.makedirs("dir")
    if storage.is_object_store:  # there a directory is what its files' names begin with
        storage.write_bytes_atomic("dir/f", b"x")
    with pytest.raises(InputError, match="is a directory"):
        storage.sha256("dir")
    storage.write_bytes_atomic("bad.json", b"{")
    with pytest.raises(InputError, match="not JSON"):
        storage.read_json("bad.json")
    with pytest.raises(InputError, match="cannot be opened"):
        Storage.from_uri("carrier-pigeon://x")
    assert Storage.from_uri(f"file://{tmp_path}/u").local_path("v") == tmp_path / "u" / "v"


def test_a_file_is_fetched_for_those_who_open_it(storage):
    storage.write_bytes_atomic("a/model.pt", b"weights")
    with storage.fetched("a/model.pt") as path:
        assert path.name == "model.pt"
        assert path.read_bytes() == b"weights"
    assert path.exists() == storage.is_local
    if not storage.is_local:
        with pytest.raises(InputError, match=r"lacking\.pt"), storage.fetched("a/lacking.pt"):
            pass


def test_addresses_name_scheme_and_place(store):
    storage = Storage.from_uri(store.uri("bucket/runs")).join("first")
    assert str(storage) == "s3://bucket/runs/first"
    again = pickle.loads(pickle.dumps(storage))
    again.write_bytes_atomic("f", b"x")
    assert storage.read_bytes("f") == b"x"
    with pytest.raises(InputError, match="copy it to one"):
        storage.local_path("f")
