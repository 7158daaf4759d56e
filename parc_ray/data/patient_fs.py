"""A file system of pyarrow that waits for storage which fails for a while: for use by Ray Train.

Ray writes its own files (checkpoints, its state) and gives up at the first error. Handed this file
system it waits as the rest of a run does (``parc_ray.data.patience``). A file is sent when it is
closed, so that it can be sent again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from parc_ray.data.patience import patiently


def patient(filesystem: fs.FileSystem) -> fs.FileSystem:
    """``filesystem``, patiently; it pickles where the other does.

    S3 sends from the calling thread: with sending in the background, copies by many threads may
    wait for each other for ever (https://github.com/apache/arrow/issues/32372). Ray copies to a
    plain ``S3FileSystem`` by one thread for that, which it cannot tell behind this one.
    """
    return fs.PyFileSystem(_Patient(_in_the_foreground(filesystem)))


def _in_the_foreground(filesystem: fs.FileSystem) -> fs.FileSystem:
    if filesystem.type_name != "s3" or isinstance(filesystem, fs.PyFileSystem):
        return filesystem
    rebuild, (options,) = filesystem.__reduce__()  # pyarrow tells its options nowhere else
    return rebuild({**options, "background_writes": False})


class _Patient(fs.FileSystemHandler):
    """Every call as a whole, in as many tries as ``patiently`` gives."""

    def __init__(self, inner: fs.FileSystem) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Patient) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash(self.inner.type_name)

    def get_type_name(self) -> str:
        return f"patient+{self.inner.type_name}"

    def normalize_path(self, path: str) -> str:
        return self.inner.normalize_path(path)

    def get_file_info(self, paths: Sequence[str]) -> Any:
        return patiently(str(paths[0]), lambda: self.inner.get_file_info(list(paths)))

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return patiently(selector.base_dir, lambda: self.inner.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        try:
            patiently(path, lambda: self.inner.create_dir(path, recursive=recursive))
        except OSError as error:
            # Objects need no directories; rights to a prefix do not let pyarrow look at the bucket.
            if self.inner.type_name != "s3" or "ACCESS_DENIED" not in str(error):
                raise

    def delete_dir(self, path: str) -> None:
        patiently(path, lambda: self.inner.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        patiently(path, lambda: self.inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok))

    def delete_root_dir_contents(self) -> None:
        raise PermissionError("the whole storage is never emptied")

    def delete_file(self, path: str) -> None:
        patiently(path, lambda: self.inner.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        patiently(src, lambda: self.inner.move(src, dest))

    def copy_file(self, src: str, dest: str) -> None:
        patiently(src, lambda: self.inner.copy_file(src, dest))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return patiently(path, lambda: self._read(path))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return patiently(path, lambda: self._read(path))

    def _read(self, path: str) -> pa.NativeFile:
        with self.inner.open_input_stream(path) as stream:
            return pa.BufferReader(stream.read())

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self.inner, path), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        raise OSError(f"{path}: objects cannot be appended to")


class _Upload:
    """Bytes that are sent when they are complete: only at a clean, explicit close.

    No ``io`` class, since those close themselves when they are forgotten: what an interrupted copy
    has left would appear as a whole object under its final name.
    """

    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        self._pieces: list[bytes] = []
        self._opened_in = sys.exception()
        self.closed = False

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is sent before all of it."""

    def tell(self) -> int:
        return sum(map(len, self._pieces))

    def close(self) -> None:
        """Send; not where an error leaves the context that wrote, since bytes may be missing."""
        if self.closed:
            return
        self.closed = True
        data = b"".join(self._pieces)
        self._pieces.clear()
        if sys.exception() is self._opened_in:
            patiently(self._path, lambda: self._send(data))

    def _send(self, data: bytes) -> None:
        with self._filesystem.open_output_stream(self._path) as stream:
            stream.write(data)
