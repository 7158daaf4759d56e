"""Scalars: what is logged is what is read, also across kills and on storage that is not local."""

from __future__ import annotations

import os
import socket

import pytest
from pyarrow import fs

from parc_ray.data.storage import Storage
from parc_ray.driver_record import LOCK_FILE
from parc_ray.scalars import ScalarWriter, read_scalars


def values(storage):
    return [(r.group, r.tag, r.step, r.value) for r in read_scalars(storage)]


def test_what_is_logged_is_read_back_exactly(tmp_path):
    storage = Storage.from_uri(tmp_path)
    with ScalarWriter(storage, "logs/it_01/generate") as writer:
        writer.add("loss", 0.1, 1)
        writer.add_all({"loss": 1 / 3, "a, b": -2.0}, 2)
    group = "it_01/generate"
    assert values(storage) == [
        (group, "a, b", 2, -2.0),
        (group, "loss", 1, 0.1),
        (group, "loss", 2, 1 / 3),
    ]
    assert len(list((tmp_path / "logs/it_01/generate").glob("events.*"))) == 1


def test_what_is_not_finite_is_left_out_without_a_word(tmp_path, caplog, capsys):
    storage = Storage.from_uri(tmp_path)
    with ScalarWriter(storage, "logs/a") as writer:
        writer.add_all({"x": float("nan"), "y": 2.0, "z": float("inf")}, 1)
    assert values(storage) == [("a", "y", 1, 2.0)]
    captured = capsys.readouterr()
    assert not caplog.records
    assert not captured.out + captured.err


def test_nothing_but_undefined_values_leaves_no_files(tmp_path):
    with ScalarWriter(Storage.from_uri(tmp_path), "logs/a") as writer:
        writer.add_all({"x": float("nan")}, 1)
    assert list((tmp_path / "logs/a").iterdir()) == []


def test_a_step_logged_twice_counts_once_with_the_later_value(tmp_path):
    storage = Storage.from_uri(tmp_path)
    for value in (1.0, 2.0):
        with ScalarWriter(storage, "logs/a") as writer:
            writer.add("x", value, 7)
    assert values(storage) == [("a", "x", 7, 2.0)]


def test_a_line_cut_by_a_kill_spoils_nothing_else(tmp_path):
    storage = Storage.from_uri(tmp_path)
    with ScalarWriter(storage, "logs/a") as writer:
        writer.add("x", 1.0, 1)
    with (tmp_path / "logs/a/scalars.csv").open("a") as file:
        file.write("2,x,0.")
    with ScalarWriter(storage, "logs/a") as writer:
        writer.add("x", 3.0, 3)
    assert values(storage) == [("a", "x", 1, 1.0), ("a", "x", 3, 3.0)]


def test_nothing_logged_leaves_no_files(tmp_path):
    with ScalarWriter(Storage.from_uri(tmp_path), "logs/a"):
        pass
    assert list((tmp_path / "logs/a").iterdir()) == []


def test_many_rows_are_written_before_the_end(tmp_path):
    storage = Storage.from_uri(tmp_path)
    writer = ScalarWriter(storage, "logs/a")
    for step in range(300):
        writer.add("x", float(step), step)
    assert len(read_scalars(storage)) >= 256
    writer.close()
    writer.close()
    assert len(read_scalars(storage)) == 300


def test_writers_of_one_directory_do_not_mix_their_parts(tmp_path):
    storage = Storage.from_uri(tmp_path)
    with ScalarWriter(storage, "logs/a", part="w0") as w0, ScalarWriter(storage, "logs/a") as w1:
        w0.add("x", 1.0, 0)
        w1.add("y", 2.0, 0)
    assert values(storage) == [("a", "x", 0, 1.0), ("a", "y", 0, 2.0)]


@pytest.fixture
def remote(tmp_path):
    """A storage that is not local: pyarrow's local file system behind a sub-tree adapter."""
    inner = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Storage(filesystem=inner, root="bucket")


def test_remote_storage_is_written_by_upload_and_continued(remote):
    assert not remote.is_local
    for step in (1, 2):
        with ScalarWriter(remote, "logs/a") as writer:
            writer.add("x", float(step), step)
    assert values(remote) == [("a", "x", 1, 1.0), ("a", "x", 2, 2.0)]
    assert any("events" in name for name in remote.list("logs/a"))


@pytest.mark.parametrize(("other", "sent"), [(0, 2), (1, 1)])
def test_a_driver_that_lost_its_lock_leaves_the_others_scalars(remote, other, sent):
    def work(steps: int) -> None:
        with ScalarWriter(remote, "logs/a") as writer:
            writer.add("x", float(steps), steps)
            raise KeyboardInterrupt

    record = {"host": socket.gethostname(), "pid": os.getpid()}
    remote.write_json_atomic(LOCK_FILE, record)
    with pytest.raises(KeyboardInterrupt):
        work(1)
    remote.write_json_atomic(LOCK_FILE, {**record, "pid": os.getpid() + other})
    with pytest.raises(KeyboardInterrupt):
        work(2)
    assert len(values(remote)) == sent
