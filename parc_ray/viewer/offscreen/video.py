"""Writes pictures as MP4 (H.264 by the ffmpeg that comes with imageio-ffmpeg), GIF or PNG."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from parc_ray.errors import InputError

SUFFIXES = (".mp4", ".gif", ".png")
GIF_FPS = 15.0
"""Pictures per second of a GIF unless another rate is asked for."""
GIF_MAX_FPS = 50.0
"""Shorter than 20 ms most programs show no picture."""
_GIF_COLOURS = 128

Pictures = Iterator[NDArray[np.uint8]]


def write_mp4(path: Path, pictures: Pictures, fps: float) -> int:
    """Encode pictures (H, W, 3) with even sides; returns how many there were.

    Raises:
        InputError: the encoder is not installed.
    """
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise InputError(
            "--out: .mp4 needs imageio-ffmpeg, which is not installed; run pip install "
            "'parc-ray[video]', or write a .gif"
        ) from error
    first = next(pictures)
    height, width = first.shape[:2]
    count = 0
    with _whole(path) as target:
        sink = imageio_ffmpeg.write_frames(
            str(target),
            (width, height),
            fps=fps,  # pyright: ignore[reportArgumentType]  (any number is taken)
            codec="libx264",
            quality=None,  # pyright: ignore[reportArgumentType]  (-crf decides)
            macro_block_size=2,
            output_params=["-crf", "21", "-preset", "veryfast", "-movflags", "+faststart"],
            ffmpeg_log_level="error",
        )
        sink.send(None)
        try:
            for picture in chain([first], pictures):
                sink.send(np.ascontiguousarray(picture))
                count += 1
        finally:
            sink.close()
    return count


def write_gif(path: Path, pictures: Pictures, fps: float) -> int:
    """A looping GIF with one palette per picture; returns how many there were.

    Durations are whole hundredths of a second, rounded so that no picture begins more than 5 ms
    off its time.

    Args:
        path: of the file.
        pictures: (H, W, 3) each.
        fps: up to ``GIF_MAX_FPS``.

    Raises:
        InputError: the directory cannot be written to.
    """
    images = [Image.fromarray(p).quantize(_GIF_COLOURS, dither=Image.Dither.NONE) for p in pictures]
    begins = [round(100 * k / fps) for k in range(len(images) + 1)]
    with _whole(path) as target:
        images[0].save(
            target,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=[10 * (b - a) for a, b in pairwise(begins)],
            loop=0,
        )
    return len(images)


def write_png(path: Path, picture: NDArray[np.uint8]) -> None:
    """One picture."""
    with _whole(path) as target:
        target.write_bytes(png_bytes(picture))


def png_bytes(picture: NDArray[np.uint8]) -> bytes:
    """Content of a PNG file of a picture (H, W, 3)."""
    sink = io.BytesIO()
    Image.fromarray(picture).save(sink, format="PNG", optimize=True)
    return sink.getvalue()


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that becomes it when all is written.

    Raises:
        InputError: the directory cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise InputError(
            f"--out: {path} cannot be written ({error.strerror or error}); choose another place"
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
