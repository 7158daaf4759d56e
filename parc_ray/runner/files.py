"""Reading files that may be damaged: whatever is wrong with them is one line."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parc_ray.errors import InputError

DAMAGED = (
    OSError,
    EOFError,
    MemoryError,  # a header that tells of an array larger than the machine
    RuntimeError,  # an encrypted member, an unknown compression
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""What zipfile and numpy raise for content that cannot be read."""


def read_npz(source: str | Path | bytes, where: str, remedy: str) -> dict[str, NDArray]:
    """All arrays of an .npz file by name.

    Args:
        source: its path or content.
        where: how messages call it.
        remedy: how they end.

    Raises:
        InputError: no such file, one that is damaged, or none of that kind.
    """
    try:
        file = np.load(io.BytesIO(source) if isinstance(source, bytes) else source)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("one array, not several by name")
        with file:
            return {key: file[key] for key in file.files}
    except DAMAGED as error:
        said = str(error) or type(error).__name__
        raise InputError(f"{where}: cannot be read as .npz ({said}); {remedy}") from error
