"""A local directory in which a training works, and its copy on storage that cannot be mounted.

Trainings append to logs and open checkpoints as files, which object stores do not offer. So they
work in a scratch directory of their machine, and what has to outlive it is pushed: single files
whole, folders file by file and then ``_WHOLE.json``, the hashes of all of them. A folder without
it, or with a file that has another hash, was cut off or damaged and is passed over.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from pathlib import Path

from parc_ray.data.patience import write_whole
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError

WHOLE = "_WHOLE.json"

logger = logging.getLogger(__name__)


class Mirror:
    """Copies between a local directory and one on storage."""

    def __init__(self, remote: Storage, local: Path) -> None:
        """Nothing is copied yet."""
        self.remote, self.local = remote, local

    def push(self, *names: str) -> None:
        """Copy files, or all files of folders, to storage; what is not there is left out."""
        for name in names:
            place = self.local / name
            for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if file.is_file():
                    relative = file.relative_to(self.local).as_posix()
                    self.remote.write_bytes_atomic(relative, file.read_bytes())

    def push_folder(self, name: str) -> None:
        """Copy a folder; it counts as whole once all of it is there."""
        self.remote.delete(f"{name}/{WHOLE}")
        hashes = {}
        for file in sorted((self.local / name).iterdir()):
            data = file.read_bytes()
            self.remote.write_bytes_atomic(f"{name}/{file.name}", data)
            hashes[file.name] = hashlib.sha256(data).hexdigest()
        self.remote.write_json_atomic(f"{name}/{WHOLE}", hashes)

    def pull(self, *names: str) -> None:
        """Copy files from storage; what is not there is left out."""
        for name in names:
            if self.remote.exists(name):
                write_whole(self.local / name, self.remote.read_bytes(name))

    def pull_newest(self, prefix: str) -> str | None:
        """Copy the last by name of the whole folders that begin with ``prefix``; its name."""
        names = [n for n in self.remote.list_dirs() if n.startswith(prefix)]
        for name in sorted(names, reverse=True):
            files = self._whole(name)
            if files is None:
                logger.warning("%s/%s: is not whole, passed over", self.remote, name)
                continue
            (self.local / name).mkdir(exist_ok=True)
            for file, data in files.items():
                write_whole(self.local / name / file, data)
            return name
        return None

    def _whole(self, name: str) -> dict[str, bytes] | None:
        """Files of a folder on storage, or None where one is missing or has another hash."""
        if not self.remote.exists(f"{name}/{WHOLE}"):
            return None
        files = {}
        try:
            for file, digest in dict(self.remote.read_json(f"{name}/{WHOLE}")).items():
                if "/" in file or file.startswith("."):  # not ours; it would leave the directory
                    return None
                files[file] = self.remote.read_bytes(f"{name}/{file}")
                if hashlib.sha256(files[file]).hexdigest() != digest:
                    return None
        except (InputError, TypeError, ValueError):
            return None
        return files

    def keep_only(self, prefix: str, names: Collection[str]) -> None:
        """Remove folders from storage that begin with ``prefix`` and are not among ``names``."""
        for name in self.remote.list_dirs():
            if name.startswith(prefix) and name not in names:
                self.remote.delete(f"{name}/{WHOLE}")  # first, so that half of it counts as none
                self.remote.delete(name)
