"""What the tools share: an argument parser, tables, and where a data set may be written."""

from __future__ import annotations

import argparse
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from parc_ray.character.character import Character
from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import save_dataset
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One command."""

    help: str
    """One line for the overview."""
    run: Callable[[list[str]], None]
    """Called with the arguments after the command's name."""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports mistakes as ``InputError``."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage.

        Raises:
            InputError: always.
        """
        raise InputError(f"{self.prog}: {message}; see {self.prog} --help")


def format_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text; the first column is set left, the others right where they are numbers."""
    widths = [max(len(cell) for cell in cells) for cells in zip(columns, *rows, strict=True)]
    right = [bool(rows) and all(_is_number(row[k]) for row in rows) for k in range(len(columns))]
    lines = []
    for cells in (columns, ["-" * width for width in widths], *rows):
        padded = [
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(cells, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return bool(text) and (text[0].isdigit() or text[0] in "-+–")


def require_target(out: str) -> Storage:
    """The directory that a data set shall be written to: missing or empty.

    Raises:
        InputError: something is there already.
    """
    storage = Storage.from_uri(out)
    if not storage.exists():
        if storage.is_local:
            _require_writable(storage.local_path())
        return storage
    if not storage.is_dir():
        raise InputError(f"--out: {out} is a file; a new or empty directory is needed; name one")
    if storage.list() or storage.list_dirs():
        raise InputError(
            f"--out: {out} is not empty; a data set is never written over; choose another "
            "directory or remove this one"
        )
    return storage


def _require_writable(path: Path) -> None:
    """Refuse a directory that could not be made, before the work that would fill it.

    Raises:
        InputError: the nearest existing parent is a file or may not be written.
    """
    parent = next(p for p in path.parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(
            f"--out: {path} cannot be written ({parent} is "
            f"{'not writable' if parent.is_dir() else 'a file'}); choose another directory"
        )


def write_dataset(
    target: Storage, name: str, clips: Sequence[MotionClip], character: Character
) -> Manifest:
    """Write a stand-alone data set, whole or not at all.

    On mounted file systems it is written beside the target and renamed; on object stores the
    manifest comes last, and parts without one are no data set.

    Args:
        target: what ``require_target`` returned.
        name: name of the data set.
        clips: its clips; ids must differ.
        character: the character of all clips.

    Raises:
        InputError: two clips of one id, or a directory that cannot be written.
    """
    if not target.is_local:
        return save_dataset(target, name, clips, character.digest)
    final = target.local_path()
    half = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        manifest = save_dataset(half, name, clips, character.digest)
        os.replace(half, final)
    except OSError as error:
        raise InputError(
            f"--out: {final} cannot be written ({error.strerror or error}); "
            "a writable place is needed; choose another directory"
        ) from error
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return manifest


def name_of(out: str, given: str | None) -> str:
    """Name of a data set: the given one, else that of its directory."""
    return given or Path(Storage.from_uri(out).root).name
