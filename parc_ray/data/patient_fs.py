"""A file system of pyarrow that waits for storage which fails for a while: for use by Ray Train.

Ray writes its own files (checkpoints, its state) and gives up at the first error. Handed this file
system it waits as the rest of a run does (``parc_ray.data.patience``). A file is sent when it is
closed, so that it can be sent again.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from parc_ray.data.patience import patiently


def patient(filesystem: fs.FileSystem) -> fs.FileSystem:
    """``filesystem``, patiently; it pickles where the other does."""
    return fs.PyFileSystem(_Patient(filesystem))


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
        patiently(path, lambda: self.inner.create_dir(path, recursive=recursive))

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


class _Upload(io.BytesIO):
    """Bytes that are sent when they are complete."""

    def __init__(self, filesystem: fs.FileSystem, path: str) -> None:
        super().__init__()
        self._filesystem, self._path = filesystem, path

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        patiently(self._path, lambda: self._send(data))

    def _send(self, data: bytes) -> None:
        with self._filesystem.open_output_stream(self._path) as stream:
            stream.write(data)
