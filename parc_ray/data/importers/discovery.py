"""Which files below a directory are motions, and what their clips are called."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from parc_ray.errors import InputError

MOTION_SUFFIXES = (".pkl", ".pickle", ".bvh", ".amc")
"""Files that are motions, or wrong; in any case of letters."""
OTHER_SUFFIXES = (".txt", ".json", ".npy", ".npz", ".csv")
"""Files that may be motions."""

_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")


def candidates(directory: Path) -> Iterator[Path]:
    """Files below a directory that are motions by their suffix or may be.

    Links to directories are followed; hidden files and paths with "ignore" are left out.
    """
    for file in files_below(directory):
        inside = file.relative_to(directory).as_posix()
        hidden = any(part.startswith(".") for part in inside.split("/"))
        known = file.suffix.lower() in (*MOTION_SUFFIXES, *OTHER_SUFFIXES)
        if known and not hidden and "ignore" not in inside:
            yield file


def motion_files(
    directory: Path, is_motion: Callable[[Path], bool], passed_over: list[Path] | None = None
) -> list[Path]:
    """Files to import below a directory, sorted.

    Args:
        directory: where they are (`candidates`).
        is_motion: tells by the content of a file whether it is one.
        passed_over: if given, files that might have been motions are collected here.
    """
    found: list[Path] = []
    for file in sorted(candidates(directory)):
        if is_motion_file(file, is_motion):
            found.append(file)
        elif passed_over is not None:
            passed_over.append(file)
    return found


def is_motion_file(file: Path, is_motion: Callable[[Path], bool]) -> bool:
    """Whether a file is a motion by its suffix, or might be one and is by its content."""
    suffix = file.suffix.lower()
    return suffix in MOTION_SUFFIXES or (suffix in OTHER_SUFFIXES and is_motion(file))


def files_below(directory: Path) -> Iterator[Path]:
    """Files of a directory and those below it, through links too, each directory once.

    Raises:
        InputError: a directory that cannot be read.
    """
    seen: set[tuple[int, int]] = set()
    for here, folders, names in os.walk(directory, onerror=_unreadable, followlinks=True):
        stat = os.stat(here)
        if (stat.st_dev, stat.st_ino) in seen:
            folders.clear()  # a link back to where we were
            continue
        seen.add((stat.st_dev, stat.st_ino))
        folders.sort()
        for name in names:
            file = Path(here, name)
            if file.is_file() or file.is_symlink():  # not sockets; links to nothing are refused
                yield file


def _unreadable(error: OSError) -> None:
    raise InputError(
        f"{error.filename}: cannot be read ({error.strerror}); readable directories are needed; "
        "change its permissions or move it away"
    ) from error


def require_name(path: Path) -> None:
    """Refuse names that cannot be printed in one line or stored as text.

    Raises:
        InputError: line breaks, other control characters, bytes that are not UTF-8.
    """
    if any(unicodedata.category(letter) in _UNPRINTABLE for letter in str(path)):
        raise InputError(
            f"{str(path)!a}: control characters or bytes that are not UTF-8 in the name; "
            "printable ones are needed; rename the file"
        )


def clip_ids(files: Sequence[Path], base: Path) -> list[str]:
    """Paths below ``base`` without suffix; with it where two files would share one."""
    names = [file.relative_to(base).with_suffix("").as_posix() for file in files]
    count = Counter(names)
    return [
        file.relative_to(base).as_posix() if count[name] > 1 else name
        for file, name in zip(files, names, strict=True)
    ]
