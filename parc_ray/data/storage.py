"""Files on any storage that ``pyarrow.fs`` reaches: local disk, NFS, ``s3://``, ``gs://``.

Data sets, manifests and runs may lie on any of them. What can only be opened as a local file (a
model, a checkpoint) is fetched first (``Storage.fetched``); a training that needs a directory works
in a local one and keeps a copy here (``parc_ray.data.mirror``).

A ``Storage`` is a directory (a file system and a root path in it). Every path handed to its
methods is relative to that root, with ``/`` as separator, and may not leave it. Files are written
whole, so that a reader never meets half a file and a writer killed half-way leaves the old content
in place: to a temporary name beside the target, then renamed; object stores have no renaming, but
an object appears when all of it was sent. Calls that fail in a way that may pass are repeated
(``parc_ray.data.patience``).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import ArrowInvalid, fs

from parc_ray.data.patience import may_pass, patiently
from parc_ray.errors import InputError

_CHUNK = 1 << 22
_SCHEMES = {"s3": "s3", "gcs": "gs"}
"""Object stores, by pyarrow's name of their file system, and how their addresses begin."""
_GS_RETRY_S = 60
"""How long pyarrow itself repeats a call to Google's store; its own default is a quarter hour."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A directory on some file system. Cheap to copy and to send to a worker (it pickles)."""

    filesystem: fs.FileSystem
    """Where the files are."""
    root: str
    """Path of the directory inside ``filesystem``, without a trailing slash."""

    @classmethod
    def from_uri(cls, uri: str | Path | Storage) -> Storage:
        """Open a directory by path or URI. It need not exist yet.

        Args:
            uri: local path (``~`` is expanded, relative paths are made absolute), a URI such as
                ``s3://bucket/dir``, or a ``Storage``, which is returned as it is.

        Raises:
            InputError: the URI names a scheme that pyarrow does not know.
        """
        if isinstance(uri, Storage):
            return uri
        text = str(uri)
        if "://" not in text:
            path = Path(text).expanduser().absolute()
            return cls(filesystem=fs.LocalFileSystem(), root=os.path.normpath(path))
        if text.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in text:
            text += f"{'&' if '?' in text else '?'}retry_limit_seconds={_GS_RETRY_S}"
        try:
            filesystem, root = fs.FileSystem.from_uri(text)
        except (ArrowInvalid, OSError) as error:
            raise InputError(
                f"{uri}: storage cannot be opened ({error}); "
                "allowed are local paths, file://, s3:// and gs:// URIs; correct the path"
            ) from error
        return cls(filesystem=filesystem, root=root.rstrip("/") or "/")

    @property
    def is_local(self) -> bool:
        """Whether the files are on a file system that this machine mounts."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def is_object_store(self) -> bool:
        """Whether files are objects, and directories only the beginnings of their names."""
        return self.filesystem.type_name in _SCHEMES

    def __str__(self) -> str:
        """Root for messages: the local path, or scheme and path for remote storage."""
        kind = self.filesystem.type_name
        return self.root if self.is_local else f"{_SCHEMES.get(kind, kind)}://{self.root}"

    def require_reachable(self) -> None:
        """Refuse an object store that does not answer, lets us not in, or lacks the bucket.

        Rights may be limited to names that begin with the root: then the bucket itself tells
        nothing, and a file below the root is asked for.

        Raises:
            InputError: one of these; other kinds of storage are not looked at.
        """
        if not self.is_object_store:
            return
        bucket = self.root.partition("/")[0]
        try:
            try:
                there = self.filesystem.get_file_info(bucket).type != fs.FileType.NotFound
            except OSError as error:
                if may_pass(error):
                    raise
                self.filesystem.get_file_info(self.full_path("driver.json"))
                there = True
        except OSError as error:
            if may_pass(error):
                raise InputError(
                    f"{self}: the object store does not answer ({error}); see to the network and "
                    "the address, then give the same command again"
                ) from error
            raise InputError(
                f"{self}: the object store refuses access ({error}); credentials that may read and "
                "write the bucket are needed, on every node; set them (AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, or the machine's role)"
            ) from error
        if not there:
            raise InputError(
                f"{self}: there is no bucket {bucket!r}; buckets are never made here; make it, or "
                "correct the address"
            )

    def full_path(self, path: str = "") -> str:
        """Path inside ``filesystem`` of a path relative to the root.

        Raises:
            InputError: ``path`` is absolute or climbs out of the root.
        """
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts:
            raise InputError(
                f"{path}: path leaves its storage {self}; "
                "allowed are relative paths without '..'; use a path below the root"
            )
        return "/".join([self.root.rstrip("/"), *parts]) if parts else self.root

    def join(self, *parts: str) -> Storage:
        """Sub-directory ``parts`` as a storage of its own."""
        return Storage(filesystem=self.filesystem, root=self.full_path("/".join(parts)))

    def local_path(self, path: str = "") -> Path:
        """Path on this machine.

        Raises:
            InputError: the storage is remote.
        """
        if not self.is_local:
            raise InputError(
                f"{self}: a local directory is needed here; "
                "allowed are paths on a mounted file system; copy it to one and use that path"
            )
        return Path(self.full_path(path))

    def exists(self, path: str = "") -> bool:
        """Whether a file or directory of that name exists."""
        return self._info(path).type != fs.FileType.NotFound

    def is_dir(self, path: str = "") -> bool:
        """Whether the name is a directory (object stores: a common prefix)."""
        return self._info(path).type == fs.FileType.Directory

    def makedirs(self, path: str = "") -> None:
        """Create a directory and its parents; no error where it exists (object stores: nothing)."""
        full = self.full_path(path)
        if self.is_object_store:
            return
        patiently(full, lambda: self.filesystem.create_dir(full, recursive=True))

    def list(self, path: str = "", *, recursive: bool = False, suffix: str = "") -> list[str]:
        """Names of files below a directory, relative to the root, sorted; temporary files left out.

        Args:
            path: directory; a missing one gives an empty list.
            recursive: descend into sub-directories.
            suffix: keep only names with this ending.
        """
        infos = self._infos(path, recursive=recursive)
        names = [self._relative(info.path) for info in infos if info.type == fs.FileType.File]
        return sorted(n for n in names if n.endswith(suffix) and not n.endswith(".tmp"))

    def list_dirs(self, path: str = "") -> list[str]:
        """Names of the directories directly below a directory, relative to the root, sorted."""
        infos = self._infos(path)
        return sorted(self._relative(i.path) for i in infos if i.type == fs.FileType.Directory)

    def read_bytes(self, path: str) -> bytes:
        """Content of a file.

        Raises:
            InputError: the file does not exist or is a directory.
        """
        self._require_file(path)
        return patiently(self.full_path(path), lambda: self._read(path))

    def read_json(self, path: str) -> Any:
        """Content of a JSON file.

        Raises:
            InputError: missing file or text that is not JSON.
        """
        try:
            return json.loads(self.read_bytes(path))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{self.full_path(path)}: not JSON ({error}); "
                "allowed is a JSON text; restore or remove the file"
            ) from error

    def write_bytes_atomic(self, path: str, data: bytes) -> None:
        """Write a whole file or nothing; an existing file is replaced; parents are created."""
        patiently(self.full_path(path), lambda: self._write(path, data))

    def _write(self, path: str, data: bytes) -> None:
        target = self.full_path(path)
        parent = target.rsplit("/", 1)[0]
        if parent and not self.is_object_store:
            self.filesystem.create_dir(parent, recursive=True)
        if not self.is_local:  # object stores publish an object when its stream is closed
            with self.filesystem.open_output_stream(target) as stream:
                stream.write(data)
            return
        temporary = f"{target}.{uuid.uuid4().hex}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def write_json_atomic(self, path: str, value: Any) -> None:
        """Write ``value`` as indented JSON with sorted keys: equal values give equal bytes."""
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
        self.write_bytes_atomic(path, (text + "\n").encode())

    def delete(self, path: str) -> None:
        """Remove a file or a directory with everything in it; no error where it is missing."""
        patiently(self.full_path(path), lambda: self._delete(path))

    def _delete(self, path: str) -> None:
        full = self.full_path(path)
        kind = self.filesystem.get_file_info(full).type
        if kind == fs.FileType.Directory:
            self.filesystem.delete_dir(full)
        elif kind != fs.FileType.NotFound:
            self.filesystem.delete_file(full)

    @contextmanager
    def fetched(self, path: str) -> Iterator[Path]:
        """A local file with the content of ``path``: itself, or a copy while the context lasts.

        Raises:
            InputError: remote storage has no such file.
        """
        if self.is_local:
            yield self.local_path(path)
            return
        with tempfile.TemporaryDirectory(prefix="parc-fetched-") as directory:
            copy = Path(directory) / path.rpartition("/")[2]
            copy.write_bytes(self.read_bytes(path))
            yield copy

    def sha256(self, path: str) -> str:
        """Hex digest of a file's content, read in pieces.

        Raises:
            InputError: the file does not exist or is a directory.
        """
        self._require_file(path)
        return patiently(self.full_path(path), lambda: self._digest(path))

    def _digest(self, path: str) -> str:
        digest = hashlib.sha256()
        for chunk in self._chunks(path):
            digest.update(chunk)
        return digest.hexdigest()

    def _read(self, path: str) -> bytes:
        with self.filesystem.open_input_stream(self.full_path(path)) as stream:
            return stream.read()

    def _chunks(self, path: str) -> Iterator[bytes]:
        with self.filesystem.open_input_stream(self.full_path(path)) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    def _info(self, path: str) -> fs.FileInfo:
        full = self.full_path(path)
        return patiently(full, lambda: self.filesystem.get_file_info(full))

    def _infos(self, path: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        full = self.full_path(path)
        selector = fs.FileSelector(full, recursive=recursive, allow_not_found=True)
        return patiently(full, lambda: self.filesystem.get_file_info(selector))

    def _relative(self, full: str) -> str:
        return full[len(self.root.rstrip("/")) + 1 :]

    def _require_file(self, path: str) -> None:
        kind = self._info(path).type
        if kind != fs.FileType.File:
            problem = "is a directory" if kind == fs.FileType.Directory else "does not exist"
            raise InputError(
                f"{self.full_path(path)}: file {problem}; "
                "an existing file is needed; check the path or restore the file"
            )


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file, for a process on another machine."""

    storage: Storage
    path: str
    """Relative to the root of ``storage``."""
