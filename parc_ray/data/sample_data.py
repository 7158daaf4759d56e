"""A small sample of real motion capture for a machine that has none.

The ``pybullet`` wheel carries the humanoid clips of DeepMimic (fifteen files, under Bullet's zlib
licence and DeepMimic's MIT licence). One pinned wheel is fetched with pip, checked against
its hash, kept in a cache and read as the zip it is; nothing of it is installed or run. The motion
files do not depend on the Python version that the wheel is for.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from parc_ray.character.character import Character
from parc_ray.data.importers import deepmimic
from parc_ray.data.importers.naming import class_of, take_of
from parc_ray.data.importers.pipeline import ImportOptions, finish_clip
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, Provenance

logger = logging.getLogger(__name__)

WHEEL_VERSION = "3.2.7"
WHEEL_NAME = "pybullet-3.2.7-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
WHEEL_SHA256 = "5d858abf7c12a21ef3ed351cf81dac1b5e486ec25c9ab59bfc84beb89034edff"
MOTION_PREFIX = "pybullet_data/data/motions/humanoid3d_"
LICENCE = "MIT (DeepMimic), zlib (pybullet)"
DEFAULT_CLIPS = ("walk", "run", "jump")
UNROLL_S = 3.0
"""s, loops are repeated to at least this length."""
_PIP_TIMEOUT_S = 900


def cache_dir() -> Path:
    """Directory for fetched files: ``$PARC_CACHE``, else ``parc-ray`` in the user's cache."""
    if own := os.environ.get("PARC_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "parc-ray"


def fetch_wheel(cache: Path | None = None) -> Path:
    """Path of the pinned wheel in the cache, fetched with pip if it is not there yet.

    Args:
        cache: directory to look in and fetch to; ``cache_dir()`` by default.

    Raises:
        InputError: it is not cached and cannot be fetched, or what was fetched has another hash.
    """
    cache = cache_dir() if cache is None else cache
    wheel = cache / WHEEL_NAME
    if wheel.is_file():
        if _sha256(wheel) == WHEEL_SHA256:
            return wheel
        logger.warning("%s is damaged; fetching it again", wheel)
        wheel.unlink()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{cache}: cache cannot be created ({error.strerror}); a writable directory is needed; "
            "set PARC_CACHE to one"
        ) from error
    logger.info("fetching %s (103 MB) to %s", WHEEL_NAME, cache)
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as directory:
        _pip_download(Path(directory))
        fetched = Path(directory) / WHEEL_NAME
        found = _sha256(fetched) if fetched.is_file() else "no file of that name"
        if found != WHEEL_SHA256:
            raise InputError(
                f"{WHEEL_NAME}: the fetched file has sha256 {found[:20]}; {WHEEL_SHA256[:20]} is "
                "the one that is known; check the package index, or give --data DIR"
            )
        os.replace(fetched, wheel)
    return wheel


def _pip_download(directory: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--python-version", "311"),
        *("--implementation", "cp", "--abi", "cp311", "--platform", "manylinux2014_x86_64"),
        *("--dest", str(directory), f"pybullet=={WHEEL_VERSION}"),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PIP_TIMEOUT_S, check=False
        )
        failure = done.stderr.strip().splitlines()[-1:] if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = [str(error)]
    if failure is not None:
        raise InputError(
            f"sample data: pybullet {WHEEL_VERSION} could not be fetched "
            f"({' '.join(failure) or 'pip failed'}); a package index or a cached copy is needed; "
            f"connect once, put {WHEEL_NAME} into {directory.parent}, or give --data DIR"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_motion_files(wheel: Path) -> dict[str, bytes]:
    """Content of the humanoid motion files in the wheel by short name ("walk"), sorted.

    Raises:
        InputError: not a wheel, or without those files.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(
                n for n in archive.namelist() if n.startswith(MOTION_PREFIX) and n.endswith(".txt")
            )
            files = {Path(n).stem.removeprefix("humanoid3d_"): archive.read(n) for n in names}
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{wheel}: not a readable wheel ({error}); the pinned pybullet wheel is needed; "
            "delete it to fetch it again"
        ) from error
    if not files:
        raise InputError(
            f"{wheel}: no DeepMimic motions in it; the pinned pybullet wheel is needed; "
            "delete it to fetch it again"
        )
    return files


def load_sample_clips(
    character: Character,
    names: Sequence[str] = DEFAULT_CLIPS,
    *,
    options: ImportOptions | None = None,
    cache: Path | None = None,
) -> list[MotionClip]:
    """Flat clips of the sample: loops unrolled to 3 s or more, on the ground, with contacts.

    Args:
        character: the character; it needs the humanoid's body names.
        names: short names of the clips ("walk", "run", "jump", "roll", "dance_a", ...).
        options: as for any import.
        cache: where the wheel is kept; ``cache_dir()`` by default.

    Raises:
        InputError: an unknown name, or the wheel cannot be had.
    """
    options = options or ImportOptions(unroll_s=UNROLL_S)
    files = read_motion_files(fetch_wheel(cache))
    clips = []
    for name in names:
        if name not in files:
            raise InputError(
                f"sample clip {name!r}: unknown; allowed are {', '.join(files)}; choose from these"
            )
        stem = f"humanoid3d_{name}"
        provenance = Provenance(
            source=f"DeepMimic via pybullet {WHEEL_VERSION}: {stem}.txt",
            licence=LICENCE,
            take=take_of(stem),
            class_name=class_of(stem),
            hashes={"file": hashlib.sha256(files[name]).hexdigest()},
        )
        raw = deepmimic.parse(files[name], f"{stem}.txt", character)
        clips.append(finish_clip(raw, stem, provenance, character, options))
    return clips
