"""Reading numpy files of strangers: plain arrays only, never more memory than the file is worth.

``numpy.load`` believes the shapes that a file declares and unzips whatever is in it. Here headers
are compared with the bytes that are there, and the whole content is bounded before it is read.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parc_ray.errors import InputError

MAX_BYTES = 256 << 20
"""Most bytes of all arrays that are read of one file; ten hours of a humanoid are half of it."""
_MAX_HEADER = 10_000
_KINDS = "biufU"


def _said(error: Exception) -> str:
    """Kind and text of an error, short: some quote half the file."""
    return f"{type(error).__name__}: {str(error)[:80]}"


def read_header(stream: io.BytesIO, where: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and element type of an array file; moves behind it.

    Args:
        stream: at the beginning of the array file.
        where: file and array, for messages.

    Raises:
        InputError: no header of a numpy array file.
    """
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
        return np.lib.format.read_array_header_2_0(stream, max_header_size=_MAX_HEADER)
    except Exception as error:  # it is a Python literal; a damaged one may fail in any way
        raise InputError(
            f"{where}: damaged header of a numpy array ({_said(error)}); a complete file is "
            "needed; fetch or write the file again"
        ) from error


def array_from_bytes(data: bytes, where: str) -> np.ndarray:
    """The array of one array file (.npy) of plain numbers or text.

    Raises:
        InputError: damaged, objects inside, or a shape that the bytes do not fill.
    """
    stream = io.BytesIO(data)
    shape, columns_first, kind = read_header(stream, where)
    if kind.kind not in _KINDS or kind.subdtype is not None:
        raise InputError(
            f"{where}: elements of type {kind.str}; plain numbers or text are needed; save the "
            "array without objects"
        )
    body = data[stream.tell() :]
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != len(body):
        raise InputError(
            f"{where}: shape {' x '.join(map(str, shape))[:60]} of {kind.str} does not fit its "
            f"{len(body)} bytes; a complete file is needed; fetch or write the file again"
        )
    try:
        flat = np.frombuffer(body, kind) if kind.itemsize else np.zeros(0, kind)
        return flat.reshape(shape, order="F" if columns_first else "C").copy()
    except ValueError as error:
        raise InputError(
            f"{where}: damaged array ({error}); a complete file is needed; fetch the file again"
        ) from error


def array_names(path: Path) -> list[str]:
    """Names of the arrays in an archive (.npz); none where it is no readable archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError):
        return []


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an archive (.npz) by name.

    Args:
        path: the archive.
        names: which to read where they are there; all by default. Others are not looked at.

    Raises:
        InputError: damaged, encrypted, larger than ``MAX_BYTES`` unpacked, or arrays of objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wanted = {}
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if names is None or name in names:
                    wanted[name] = info
            size = sum(info.file_size for info in wanted.values())
            if size > MAX_BYTES:
                raise InputError(
                    f"{path}: {size / 2**20:.0f} MiB when unpacked; up to {MAX_BYTES / 2**20:.0f} "
                    "MiB are read; split the motion"
                )
            content = {name: archive.read(info) for name, info in wanted.items()}
    except InputError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        RuntimeError,  # encrypted, or compressed in a way that is not known
    ) as error:
        raise InputError(
            f"{path}: not a readable archive of arrays ({_said(error)}); a complete file is "
            "needed; fetch or write the file again"
        ) from error
    return {name: array_from_bytes(data, f"{path}: {name}") for name, data in content.items()}
