"""Ray's own files: whole objects or none, and no thread that waits for another."""

from __future__ import annotations

import gc
import pickle

import pytest
from pyarrow import fs

from parc_ray.data.patient_fs import patient
from parc_ray.data.storage import Storage


@pytest.fixture
def place():
    return Storage(filesystem=fs._MockFileSystem(), root="bucket")


def test_what_an_error_leaves_unfinished_does_not_appear(place):
    filesystem = patient(place.filesystem)
    place.filesystem.create_dir("bucket")
    place.write_bytes_atomic("old", b"old")

    def cut_off(name: str) -> None:
        with filesystem.open_output_stream(f"bucket/{name}") as stream:
            stream.write(b"half of ")
            raise KeyboardInterrupt

    for name in ("new", "old"):
        with pytest.raises(KeyboardInterrupt):
            cut_off(name)
    forgotten = filesystem.open_output_stream("bucket/forgotten")
    forgotten.write(b"half of ")
    del forgotten
    gc.collect()
    assert place.list() == ["old"]
    assert place.read_bytes("old") == b"old"


def test_a_file_written_while_an_error_is_handled_is_sent(place):
    filesystem = patient(place.filesystem)
    place.filesystem.create_dir("bucket")
    try:
        raise ValueError
    except ValueError:
        with filesystem.open_output_stream("bucket/state") as stream:
            stream.write(b"who")
            stream.write(b"le")
            assert stream.tell() == 5
    assert place.read_bytes("state") == b"whole"


def test_s3_sends_from_the_thread_that_writes():
    """Beside copies by many threads (apache/arrow#32372); also in the process of a worker."""
    options = {"region": "eu-west-1", "endpoint_override": "127.0.0.1:1", "scheme": "http"}
    plain = fs.S3FileSystem(**options)
    here = patient(plain)
    for filesystem in (here, pickle.loads(pickle.dumps(here))):
        assert filesystem.handler.inner == fs.S3FileSystem(**options, background_writes=False)
        assert filesystem.handler.inner != plain
    assert patient(fs.LocalFileSystem()).handler.inner == fs.LocalFileSystem()
