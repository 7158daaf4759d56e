"""Crops of a map that was imported from an elevation map or a scan."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parc_ray.errors import InputError
from parc_ray.terrain.files import TerrainMap, content_hash, load_map
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.slicing import crop_at
from parc_ray.terrain.spec import TerrainSpec


def file_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """A random crop of ``spec.cells`` of which enough can be reached; see ``FileSpec``.

    Heights are as in the map. A map of other cells is resampled to ``spec.cell_size`` (the greatest
    height counts where cells become larger).

    Raises:
        InputError: no map, another one than asked for, too few cells, or no crop with enough of
            them reachable.
    """
    cfg = spec.file
    if not cfg.path:
        raise InputError("terrain.file.path: is empty; name an .npz that 'parc terrain' wrote")
    path = Path(cfg.path).expanduser()
    if not path.is_file():
        raise InputError(
            f"terrain.file.path: {path} is not a file; name an .npz that 'parc terrain' wrote"
        )
    state = path.stat()
    whole = _opened(str(path), state.st_mtime_ns, state.st_size, spec.cell_size, cfg.sha256)
    if any(n > have for n, have in zip(spec.cells, whole.terrain.shape, strict=True)):
        raise InputError(
            f"terrain.cells: {spec.cells} does not fit into the {whole.terrain.shape} cells of "
            f"{path} at {spec.cell_size:g} m; ask for fewer or import a larger map"
        )
    share = _window_means(whole.reachable, spec.cells)
    corners = np.argwhere(share >= cfg.min_reachable - 1e-9)
    if len(corners) == 0:
        raise InputError(
            f"terrain.file.min_reachable: of {path} no crop of {spec.cells} cells reaches "
            f"{cfg.min_reachable:g}, the best has {share.max():.2f}; lower it or import more"
        )
    i, j = corners[int(rng.integers(len(corners)))]
    return crop_at(whole.terrain, (int(i), int(j)), spec.cells)


@lru_cache(maxsize=4)
def _opened(path: str, mtime_ns: int, size: int, cell_size: float, sha256: str) -> TerrainMap:
    """The map at the asked cell size; read again when the file changed."""
    if sha256 and content_hash(path) != sha256:
        raise InputError(
            f"terrain.file.sha256: {path} has {content_hash(path)}; restore the file or correct it"
        )
    return load_map(path).resampled(cell_size)


def _window_means(mask: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.float64]:
    """Share of True in every window of ``size`` cells, by the index of its first cell."""
    sums = np.pad(mask.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    x, y = size
    total = sums[x:, y:] - sums[:-x, y:] - sums[x:, :-y] + sums[:-x, :-y]
    return total / (x * y)
