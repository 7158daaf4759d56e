"""One path through many way-points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.synthesis.config import PlannerConfig
from parc_ray.synthesis.planning import plan_path
from parc_ray.terrain.heightfield import Heightfield


@dataclass(frozen=True, kw_only=True, eq=False)
class LongPath:
    """Cheapest paths from each way-point to the next, joined.

    Attributes:
        points: (M, 3) m, long edges resampled, for a generator to follow.
        nodes: (K, 3) m, centres of the cells.
        kinds: (K - 1,) walk, climb, drop or jump, for each step between nodes.
        legs: number of nodes where each leg ends.
        cost: sum of the legs' costs.
    """

    points: Tensor
    nodes: Tensor
    kinds: tuple[str, ...]
    legs: tuple[int, ...]
    cost: float


def plan_legs(
    terrain: Heightfield, waypoints: Sequence[tuple[float, float]], cfg: PlannerConfig, seed: int
) -> LongPath:
    """Plan from way-point to way-point on one graph with one fixed noise.

    Args:
        terrain: the ground, taken as it is.
        waypoints: (x, y) in metres, two or more; each stands for the cell that it lies on.
        cfg: edges and costs; ``max_cost`` holds for each leg.
        seed: of the noise of the edges.

    Raises:
        InputError: a way-point off the map, or two that no path connects; the leg is named.
    """
    if len(waypoints) < 2:
        raise InputError(f"waypoints: {len(waypoints)} given; at least two are needed")
    xy = torch.tensor(waypoints)
    for number, inside in enumerate(terrain.contains(xy).tolist()):
        if not inside:
            low, high = ([round(v, 2) for v in c.tolist()] for c in terrain.extent)
            raise InputError(
                f"way-point {number}: {waypoints[number]} is off the map, which reaches from "
                f"{tuple(low)} to {tuple(high)} m; move it"
            )
    cells = [(int(i), int(j)) for i, j in terrain.index_of(xy)]
    points: list[Tensor] = []
    nodes: list[Tensor] = []
    kinds: list[str] = []
    legs: list[int] = []
    cost = 0.0
    for number, (start, goal) in enumerate(itertools.pairwise(cells)):
        if start == goal:
            raise InputError(
                f"way-points {number} and {number + 1}: lie on one cell, {start}; drop one"
            )
        leg = plan_path(terrain, start, goal, cfg, seed)
        if leg.points is None or leg.nodes is None:
            raise InputError(
                f"way-points {number} and {number + 1}: {leg.reason}; move one of them"
            )
        skip = 1 if points else 0
        here = leg.nodes[skip:]
        height = terrain.heights[here[:, 0], here[:, 1]]
        nodes.append(
            torch.cat([terrain.origin + here * terrain.cell_size, height[:, None]], dim=-1)
        )
        points.append(leg.points[skip:])
        kinds.extend(leg.kinds)
        legs.append(len(kinds) + 1)
        cost += leg.cost
    return LongPath(
        points=torch.cat(points),
        nodes=torch.cat(nodes),
        kinds=tuple(kinds),
        legs=tuple(legs),
        cost=cost,
    )
