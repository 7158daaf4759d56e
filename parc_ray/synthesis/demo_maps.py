"""Maps and way-points of long demonstrations: two chained skills, and a tour of a large map.

The chained skills are those that the paper shows: a jump whose landing is followed at once by an
edge to catch and climb, and a fall onto a lower edge that has to be caught before the next one.
Both are corridors along x whose gaps reach from side to side, so that there is no way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.errors import InputError
from parc_ray.synthesis.config import PlannerConfig
from parc_ray.terrain.families.slices import city_map
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.mending import reachable_cells

_PIT_M = -4.0
_CELL_M = 0.4
_TOUR_CELLS = (100, 100)
_TOUR_STOPS = 8
_TOUR_RADIUS = 0.36

Waypoints = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class DemoMap:
    """A map and where to go on it.

    Attributes:
        terrain: the ground.
        waypoints: (x, y) in metres, from the start to the goal; empty where none belong to it.
    """

    terrain: Heightfield
    waypoints: Waypoints = ()


def corridor(stretches: Sequence[tuple[float, float]], width_m: float = 4.8) -> DemoMap:
    """Levels one after the other along x, from wall to wall.

    Args:
        stretches: (length, level) of each, metres; lengths are rounded to cells.
        width_m: along y, metres.

    Returns:
        The map, with a way-point 1.2 m after its beginning and one as far before its end.
    """
    rows = [level for length, level in stretches for _ in range(round(length / _CELL_M))]
    shape = len(rows), round(width_m / _CELL_M)
    heights = torch.tensor(rows)[:, None].repeat(1, shape[1])
    terrain = replace(Heightfield.flat(shape, cell_size=_CELL_M), heights=heights)
    low, high = (float(v[0]) for v in terrain.extent)
    return DemoMap(terrain=terrain, waypoints=((low + 1.2, 0.2), (high - 1.2, 0.2)))


def jump_catch(seed: int = 0) -> DemoMap:
    """A run-up, a gap of 1.2 m, a landing 0.4 m higher, and 1.6 m further a wall of 1.6 m."""
    del seed
    return corridor([(4.8, 0.0), (1.2, _PIT_M), (1.6, 0.4), (2.8, 2.0), (4.0, 0.4)])


def fall_catch(seed: int = 0) -> DemoMap:
    """A fall of 0.9 m over a gap onto a ledge of 1.2 m, one of 1.8 m off it, a wall of 1.9 m."""
    del seed
    return corridor([(4.0, 2.0), (0.8, _PIT_M), (1.2, 1.1), (2.4, -0.7), (4.0, 1.2)])


def snapped(
    terrain: Heightfield, waypoints: Waypoints, reachable: NDArray[np.bool_]
) -> tuple[Waypoints, float]:
    """Way-points moved to the nearest cells that can be reached, and how far at most, metres.

    Args:
        terrain: the map.
        waypoints: (x, y), metres.
        reachable: (X, Y) cells to choose from, at least one of them True.
    """
    cells = torch.from_numpy(np.argwhere(reachable))
    centres = terrain.origin + cells * terrain.cell_size
    moved, farthest = [], 0.0
    for point in waypoints:
        away = (centres - torch.tensor(point)).norm(dim=-1)
        nearest = int(away.argmin())
        farthest = max(farthest, float(away[nearest]))
        moved.append((float(centres[nearest, 0]), float(centres[nearest, 1])))
    return tuple(moved), farthest


def tour(seed: int = 0) -> DemoMap:
    """A ring of way-points on the 100 x 100 cells of the map that family ``slice`` cuts from.

    They stand on the largest part of the map that can be reached without jumps.
    """
    terrain = city_map(_TOUR_CELLS, _CELL_M, seed)
    low, high = terrain.extent
    centre, radius = ((low + high) / 2).tolist(), _TOUR_RADIUS * (high - low).tolist()[0]
    turns = [2 * math.pi * k / _TOUR_STOPS for k in range(_TOUR_STOPS)]
    ring = tuple(
        (centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in turns
    )
    reachable = reachable_cells(terrain.heights.double().numpy(), PlannerConfig().max_step_z_m)
    return DemoMap(terrain=terrain, waypoints=snapped(terrain, ring, reachable)[0])


PRESETS: dict[str, Callable[[int], DemoMap]] = {
    "jump_catch": jump_catch,
    "fall_catch": fall_catch,
    "tour": tour,
}
"""Maps by name; each takes the seed of the map."""


def random_waypoints(
    terrain: Heightfield,
    count: int,
    min_distance_m: float,
    reachable: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Waypoints:
    """Centres of cells that can be reached, two rows or more from the border, one after the other.

    Args:
        terrain: the map.
        count: how many, 2 or more.
        min_distance_m: least horizontal distance of one from the next, metres.
        reachable: (X, Y) cells to choose from.
        rng: source of randomness.

    Raises:
        InputError: none lies as far away as demanded.
    """
    inner = np.zeros_like(reachable)
    inner[2:-2, 2:-2] = reachable[2:-2, 2:-2]
    cells = np.argwhere(inner)
    chosen: list[NDArray] = []
    while len(chosen) < count:
        free = cells
        if chosen:
            away = np.linalg.norm(cells - chosen[-1], axis=1) * terrain.cell_size
            free = cells[away >= min_distance_m]
        if len(free) == 0:
            raise InputError(
                f"--random: no cell is {min_distance_m:g} m from the one before on "
                f"{terrain.shape} cells of {terrain.cell_size:g} m; take a larger map or fewer"
            )
        chosen.append(free[rng.integers(len(free))])
    centres = terrain.origin.numpy() + np.stack(chosen) * terrain.cell_size
    return tuple((float(x), float(y)) for x, y in centres)
