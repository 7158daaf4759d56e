"""Cheapest paths over a heightfield and the choice of their ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from parc_ray.synthesis.config import PlannerConfig
from parc_ray.synthesis.edge_kinds import edge_kinds
from parc_ray.synthesis.graph import BoolArray, EdgeSet, FloatArray, build_edges, edge_costs
from parc_ray.synthesis.waypoints import resample_long_edges
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.simplify import flat_maxpool_2x2, flatten_around

_START_TRIES = 1000
Cell = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class PathResult:
    """Outcome of one search.

    Attributes:
        nodes: (K, 2) cells from start to goal; None where there is no path.
        points: (M, 3) world positions, long edges resampled; None where there is no path.
        jumps: (K-1,) whether each step between nodes is a jump; empty where there is no path.
        cost: sum of the step costs, inf where there is no path.
        reason: empty where there is a path, else why not.
        kinds: (K-1,) walk, climb, drop or jump, for each step between nodes.
    """

    nodes: Tensor | None
    points: Tensor | None
    jumps: BoolArray
    cost: float
    reason: str = ""
    kinds: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is a path."""
        return self.nodes is not None


@dataclass(frozen=True, kw_only=True)
class PlannedTerrain:
    """A terrain with a path over it, or the reasons why there is none.

    Attributes:
        terrain: as the path sees it (simplified where the config says so).
        path: the successful search, or the last failed one.
        attempts: start/end pairs tried.
        reasons: one entry per failed attempt.
    """

    terrain: Heightfield
    path: PathResult
    attempts: int
    reasons: tuple[str, ...]


def _no_path(reason: str) -> PathResult:
    return PathResult(
        nodes=None, points=None, jumps=np.zeros(0, dtype=bool), cost=float("inf"), reason=reason
    )


def shortest_path(
    num_nodes: int, edges: EdgeSet, cost: FloatArray, start: int, goal: int
) -> tuple[list[int], float]:
    """Cheapest path between two numbered cells by Dijkstra's algorithm (exact).

    Args:
        num_nodes: cells of the grid.
        edges: directed edges, sorted by source.
        cost: (E,) positive step costs.
        start: first cell.
        goal: last cell.

    Returns:
        The cells from start to goal and the cost; an empty list and inf if there is no way.
    """
    begin = np.searchsorted(edges.src, np.arange(num_nodes + 1)).astype(np.int32)
    graph = csr_matrix((cost, edges.dst.astype(np.int32), begin), shape=(num_nodes, num_nodes))
    found = dijkstra(graph, indices=np.array([start]), return_predecessors=True)
    dist, before = found[0][0], found[1][0]
    if not np.isfinite(dist[goal]):
        return [], float("inf")
    path = [goal]
    while path[-1] != start:
        path.append(int(before[path[-1]]))
    return path[::-1], float(dist[goal])


def plan_path(
    terrain: Heightfield, start: Cell, goal: Cell, cfg: PlannerConfig, seed: int
) -> PathResult:
    """Cheapest path from cell ``start`` to cell ``goal``; never a truncated one.

    Args:
        terrain: the ground, taken as it is (simplify before).
        start: (i, j) first cell.
        goal: (i, j) last cell.
        cfg: edges and costs.
        seed: of the fixed edge noise.

    Returns:
        The path, or a result without one that says the reason.
    """
    heights = terrain.heights.double().cpu().numpy()
    edges = build_edges(heights, terrain.cell_size, cfg)
    cost = edge_costs(heights, terrain.cell_size, edges, cfg, seed)
    nx, ny = heights.shape
    for name, (i, j) in (("start", start), ("goal", goal)):
        if not (0 <= i < nx and 0 <= j < ny):
            return _no_path(f"{name} {(i, j)} lies outside the {nx} x {ny} grid")
    cells, total = shortest_path(
        heights.size, edges, cost, start[0] * ny + start[1], goal[0] * ny + goal[1]
    )
    if not cells:
        return _no_path(f"no way from {start} to {goal}: steps and jumps are too high or too long")
    if total > cfg.max_cost:
        return _no_path(f"the cheapest way costs {total:.1f}, more than {cfg.max_cost:.1f}")
    ids = np.asarray(cells)
    keys = edges.src * heights.size + edges.dst
    jumps = edges.jump[np.searchsorted(keys, ids[:-1] * heights.size + ids[1:])]
    nodes = torch.from_numpy(np.stack([ids // ny, ids % ny], axis=-1))
    xy = terrain.origin.cpu() + nodes * terrain.cell_size
    z = terrain.heights.cpu()[nodes[:, 0], nodes[:, 1]]
    points = resample_long_edges(torch.cat([xy, z[:, None]], dim=-1), terrain.cell_size)
    kinds = edge_kinds(np.diff(heights.ravel()[ids]), jumps)
    return PathResult(nodes=nodes, points=points, jumps=jumps, cost=total, kinds=kinds)


def choose_ends(
    shape: tuple[int, int], cell_size: float, min_distance_m: float, rng: np.random.Generator
) -> tuple[Cell, Cell] | None:
    """Start and goal uniformly among cells in the second or third row from an edge.

    Args:
        shape: cells of the grid.
        cell_size: metres.
        min_distance_m: least horizontal distance, metres.
        rng: source of randomness.

    Returns:
        Two cells, or None if no two border cells are that far apart.
    """
    nx, ny = shape
    rows = {k for k in (1, 2, nx - 3, nx - 2) if 0 <= k < nx}
    cols = {k for k in (1, 2, ny - 3, ny - 2) if 0 <= k < ny}
    border = np.array(
        [(i, j) for i in range(nx) for j in range(ny) if i in rows or j in cols], dtype=np.int64
    ).reshape(-1, 2)
    if len(border) < 2:
        return None
    for _ in range(_START_TRIES):
        a, b = border[rng.integers(len(border), size=2)]
        if np.hypot(*(a - b)) * cell_size >= min_distance_m:
            return (int(a[0]), int(a[1])), (int(b[0]), int(b[1]))
    return None


def plan_on_terrain(terrain: Heightfield, cfg: PlannerConfig, seed: int) -> PlannedTerrain:
    """Draw start and goal, simplify the terrain around them and plan; several attempts.

    Args:
        terrain: raw terrain; every attempt starts from it again.
        cfg: planner settings.
        seed: of start, goal and edge noise.

    Returns:
        The simplified terrain with its path, or the last attempt with all reasons.
    """
    rng = np.random.default_rng(seed)
    reasons: list[str] = []
    ground, path = terrain, _no_path("no attempt")
    for attempt in range(cfg.attempts):
        ends = choose_ends(terrain.shape, terrain.cell_size, cfg.min_distance_m, rng)
        noise_seed = int(rng.integers(2**31))
        if ends is None:
            path = _no_path(
                f"no two border cells are {cfg.min_distance_m} m apart on {terrain.shape} cells"
            )
            reasons.append(path.reason)
            return PlannedTerrain(
                terrain=terrain, path=path, attempts=attempt + 1, reasons=tuple(reasons)
            )
        ground = terrain
        if cfg.simplify:
            heights = flat_maxpool_2x2(terrain.heights)
            for node in ends:
                heights = flatten_around(heights, node)
            ground = replace(terrain, heights=heights, upper=None, lower=None)
        path = plan_path(ground, *ends, cfg, noise_seed)
        if path.found:
            return PlannedTerrain(
                terrain=ground, path=path, attempts=attempt + 1, reasons=tuple(reasons)
            )
        reasons.append(path.reason)
    return PlannedTerrain(terrain=ground, path=path, attempts=cfg.attempts, reasons=tuple(reasons))
