"""Random terrain by name, seeds, and the fixed test set.

A new family is one module in ``parc_ray.terrain.families`` and one line in ``TERRAINS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from parc_ray.errors import InputError
from parc_ray.terrain.families.beams import beams_terrain
from parc_ray.terrain.families.boxes import boxes_terrain
from parc_ray.terrain.families.file import file_terrain
from parc_ray.terrain.families.flat import flat_terrain
from parc_ray.terrain.families.gaps import gaps_terrain
from parc_ray.terrain.families.paths import paths_terrain
from parc_ray.terrain.families.rubble import rubble_terrain
from parc_ray.terrain.families.ruins import ruins_terrain
from parc_ray.terrain.families.slices import slice_terrain
from parc_ray.terrain.families.slopes import slopes_terrain
from parc_ray.terrain.families.stairs import stairs_terrain
from parc_ray.terrain.families.stones import stones_terrain
from parc_ray.terrain.families.walls import walls_terrain
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec

__all__ = [
    "TERRAINS",
    "TEST_SET_VERSION",
    "TerrainSpec",
    "TestTerrain",
    "drawn_spec",
    "fixed_test_terrains",
    "make_terrain",
    "make_terrains",
    "random_endpoints",
]

TerrainFamily = Callable[[np.random.Generator, TerrainSpec], Heightfield]


def _mixed_terrain(rng: np.random.Generator, spec: TerrainSpec) -> Heightfield:
    """A terrain of one of the families of ``spec.mix``."""
    one = _one_of_the_mix(spec, rng)
    return TERRAINS[one.kind](rng, one)


def _one_of_the_mix(spec: TerrainSpec, rng: np.random.Generator) -> TerrainSpec:
    """``spec`` for one of the families of ``spec.mix``, drawn by ``spec.mix_weights``."""
    for name in spec.mix:
        if name not in TERRAINS or name == "mixed":
            raise InputError(
                f"terrain.mix: {name!r} cannot be mixed; choose of "
                f"{', '.join(sorted(set(TERRAINS) - {'mixed'}))}"
            )
    weights = np.asarray(spec.mix_weights or [1.0] * len(spec.mix))
    return replace(spec, kind=spec.mix[int(rng.choice(len(spec.mix), p=weights / weights.sum()))])


TERRAINS: dict[str, TerrainFamily] = {
    "boxes": boxes_terrain,
    "paths": paths_terrain,
    "stairs": stairs_terrain,
    "slice": slice_terrain,
    "flat": flat_terrain,
    "slopes": slopes_terrain,
    "rubble": rubble_terrain,
    "stones": stones_terrain,
    "gaps": gaps_terrain,
    "beams": beams_terrain,
    "walls": walls_terrain,
    "ruins": ruins_terrain,
    "file": file_terrain,
    "mixed": _mixed_terrain,
}
"""All families by name."""

TEST_SET_VERSION = 1
"""Raised whenever ``fixed_test_terrains`` would return other terrains for the same arguments."""


def drawn_spec(spec: TerrainSpec, rng: np.random.Generator) -> TerrainSpec:
    """What the next terrain of ``rng`` will be: its own difficulty, and its family if mixed.

    Raises:
        InputError: unknown family.
    """
    if spec.kind not in TERRAINS:
        raise InputError(
            f"terrain.kind: {spec.kind!r} is unknown; choose one of {', '.join(sorted(TERRAINS))}"
        )
    if spec.difficulty_spread > 0.0:
        easier = spec.difficulty_spread * rng.random()
        spec = replace(spec, difficulty=spec.difficulty * (1.0 - easier))
    return _one_of_the_mix(spec, rng) if spec.kind == "mixed" else spec


def make_terrain(spec: TerrainSpec, rng: np.random.Generator) -> Heightfield:
    """One random terrain, centred on the world origin; a function of ``spec`` and ``rng`` only.

    Raises:
        InputError: unknown family, or one that made heights that are not finite.
    """
    own = drawn_spec(spec, rng)
    terrain = TERRAINS[own.kind](rng, own)
    scaled = replace(terrain, heights=terrain.heights * own.difficulty)
    return scaled.validate(f"terrain of kind {own.kind!r}")


def make_terrains(spec: TerrainSpec, n: int, seed: int) -> list[Heightfield]:
    """Terrains 0 to ``n`` - 1 of a seed; terrain i does not depend on ``n``."""
    streams = np.random.SeedSequence(seed).spawn(n)
    return [make_terrain(spec, np.random.default_rng(s)) for s in streams]


def random_endpoints(
    rng: np.random.Generator,
    terrain: Heightfield,
    *,
    pairs: int = 10,
    min_distance_m: float = 5.0,
) -> np.ndarray:
    """Start and goal cells near the border, at least ``min_distance_m`` apart.

    Both lie on the second or third row or column from a border (PARC); the distance is lowered to
    the longest possible one on terrains that are too small for it.

    Returns:
        (pairs, 2, 2) int64: start and goal as (i, j).
    """
    shape = np.asarray(terrain.shape)
    rims = [{min(k, n - 1) for k in (1, 2)} | {max(n - k, 0) for k in (3, 2)} for n in shape]
    near_i, near_j = (np.isin(np.arange(n), list(r)) for n, r in zip(shape, rims, strict=True))
    cells = np.argwhere(near_i[:, None] | near_j[None, :])
    outer = cells[((cells == cells.min(0)) | (cells == cells.max(0))).any(axis=1)]
    longest = np.linalg.norm(outer[:, None] - outer[None], axis=-1).max() * terrain.cell_size
    needed = min(min_distance_m, longest - 1e-6)
    chosen: list[np.ndarray] = []
    while len(chosen) < pairs:
        start, goal = cells[rng.integers(0, len(cells), (2, 4 * pairs))]
        far = np.hypot(*(goal - start).T) * terrain.cell_size >= needed
        chosen.extend(np.stack([start[far], goal[far]], axis=1))
    return np.stack(chosen[:pairs])


@dataclass(frozen=True, kw_only=True, eq=False)
class TestTerrain:
    """A terrain of the fixed test set with the endpoints that a planner tries in order."""

    __test__ = False

    name: str
    """PATH_TERRAIN_0, PATH_TERRAIN_1, ... as in PARC."""
    terrain: Heightfield
    """The ground, before simplification."""
    endpoints: np.ndarray
    """(10, 2, 2) start and goal cells; the first pair with a path counts."""


def fixed_test_terrains(
    n: int = 100, seed: int = 0, *, cells: tuple[int, int] = (32, 32)
) -> list[TestTerrain]:
    """The versioned test set: random-walk terrains with ten walks each (PARC, tables 1 to 3).

    Args:
        n: how many; the first ones are the same for any ``n``. PARC: 100.
        seed: seed of the set; published figures use 0.
        cells: size of each terrain; PARC uses 32 x 32, (16, 16) is the small set.
    """
    spec = TerrainSpec(kind="paths", cells=cells, path_count=10)
    streams = np.random.SeedSequence([seed, TEST_SET_VERSION, *cells]).spawn(n)
    result = []
    for i, stream in enumerate(streams):
        rng = np.random.default_rng(stream)
        terrain = make_terrain(spec, rng)
        endpoints = random_endpoints(rng, terrain)
        result.append(TestTerrain(name=f"PATH_TERRAIN_{i}", terrain=terrain, endpoints=endpoints))
    return result
