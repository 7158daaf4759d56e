"""Terrains as ``.npz`` files: heights, what is guessed, and what can be reached."""

from __future__ import annotations

import hashlib
import os
import uuid
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

FORMAT = 1
"""Raised when files of before can no longer be read as they are."""
_LAYERS = ("heights", "upper", "lower", "confidence")


@dataclass(frozen=True, kw_only=True, eq=False)
class TerrainMap:
    """A terrain and where it can be walked."""

    terrain: Heightfield
    """The ground; cells whose height is a guess have confidence below 1."""
    reachable: NDArray[np.bool_]
    """(X, Y) cells of the largest part that steps connect."""

    def resampled(self, cell_size: float) -> TerrainMap:
        """The same map with another cell size, metres; see ``Heightfield.resampled``.

        A larger cell can be reached where all of the cells that it covers can.
        """
        if abs(cell_size - self.terrain.cell_size) < 1e-9:
            return self
        mask = torch.from_numpy(self.reachable.astype(np.float32))
        marked = replace(self.terrain, confidence=mask, upper=None, lower=None)
        reachable = marked.resampled(cell_size).confidence
        assert reachable is not None  # it was given one
        return TerrainMap(
            terrain=self.terrain.resampled(cell_size), reachable=reachable.numpy() > 0.5
        )


def save_map(path: str | Path, made: TerrainMap) -> str:
    """Write a map, whole or not at all.

    Returns:
        SHA-256 (hex) of the file; equal maps give equal files.

    Raises:
        InputError: the place cannot be written.
    """
    path = Path(path).expanduser()
    arrays = {
        **made.terrain.to_dict(),
        "cell_size": np.float64(made.terrain.cell_size),
        "reachable": made.reachable,
        "format": np.int64(FORMAT),
    }
    half = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with half.open("wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(half, path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); choose another place"
        ) from error
    finally:
        half.unlink(missing_ok=True)
    return content_hash(path)


def load_map(path: str | Path) -> TerrainMap:
    """Read what ``save_map`` wrote.

    Raises:
        InputError: no such file, or one that is no terrain map of this format.
    """
    remedy = "give an .npz that 'parc terrain' wrote"
    try:
        held = np.load(path)
        if isinstance(held, np.ndarray):
            raise InputError(f"{path}: holds one array and no terrain map; {remedy}")
        with held:
            arrays = {name: held[name] for name in held.files}
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; {remedy}") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: is no terrain map ({error}); {remedy}") from error
    if int(arrays.get("format", np.int64(0))) != FORMAT or "heights" not in arrays:
        raise InputError(f"{path}: is no terrain map of format {FORMAT}; {remedy}")
    missing = {"origin", "cell_size", "reachable"} - set(arrays)
    if missing:
        raise InputError(f"{path}: {', '.join(sorted(missing))} missing; {remedy}")
    reachable = arrays["reachable"]
    if reachable.shape != arrays["heights"].shape or reachable.dtype != np.bool_:
        raise InputError(f"{path}: reachable is no mask of the heights; {remedy}")
    return TerrainMap(terrain=Heightfield.from_dict(arrays), reachable=reachable)


def content_hash(path: str | Path) -> str:
    """SHA-256 (hex) of a file."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
