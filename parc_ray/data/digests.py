"""Hashes beside files that change hands on disk: a checkpoint that was damaged is not continued."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from parc_ray.data.patience import write_whole

_SUFFIX = ".sha256"


def digest_name(name: str) -> str:
    """Name of the file with the hash of file ``name``."""
    return name + _SUFFIX


def write_digest(path: Path) -> None:
    """Write the hash of ``path`` beside it, whole or not at all."""
    write_whole(path.with_name(digest_name(path.name)), f"{_digest(path)}\n".encode())


def is_whole(path: Path, *, believe: bool = True) -> bool:
    """Whether ``path`` is there as it was when its hash was written.

    Args:
        path: the file.
        believe: what is said of a file without a hash.
    """
    if not path.is_file():
        return False
    written = path.with_name(digest_name(path.name))
    return written.read_text().strip() == _digest(path) if written.is_file() else believe


def newest_whole(places: Iterable[Path], file: str) -> Path | None:
    """The last by name of some directories whose ``file`` is whole, or None."""
    newest_first = sorted(places, key=lambda place: place.name, reverse=True)
    return next((place for place in newest_first if is_whole(place / file)), None)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
