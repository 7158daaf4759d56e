from __future__ import annotations

import heapq
import itertools
import math

import numpy as np
import pytest
import torch

from parc_ray.synthesis.config import PlannerConfig
from parc_ray.synthesis.graph import build_edges, edge_costs
from parc_ray.synthesis.planning import choose_ends, plan_on_terrain, plan_path
from parc_ray.synthesis.waypoints import (
    PathBatch,
    arc_lengths,
    resample_long_edges,
    smooth_waypoints,
)
from parc_ray.terrain.heightfield import Heightfield


def oracle(heights, cell, cfg, seed, start, goal):
    """Plain Dijkstra over a dictionary."""
    edges = build_edges(heights, cell, cfg)
    cost = edge_costs(heights, cell, edges, cfg, seed)
    out: dict[int, list[tuple[int, float]]] = {}
    for a, b, c in zip(edges.src.tolist(), edges.dst.tolist(), cost.tolist(), strict=True):
        out.setdefault(a, []).append((b, c))
    dist, heap = {start: 0.0}, [(0.0, start)]
    while heap:
        d, a = heapq.heappop(heap)
        if d > dist[a]:
            continue
        for b, c in out.get(a, []):
            if d + c < dist.get(b, math.inf):
                dist[b] = d + c
                heapq.heappush(heap, (d + c, b))
    return dist.get(goal, math.inf), {(a, b): c for a in out for b, c in out[a]}


def field(heights) -> Heightfield:
    heights = torch.as_tensor(np.asarray(heights), dtype=torch.float32)
    return Heightfield(heights=heights, origin=torch.zeros(2), cell_size=0.4)


@pytest.mark.parametrize("seed", range(4))
def test_path_is_optimal_and_made_of_edges(seed):
    rng = np.random.default_rng(seed)
    hf = field(rng.choice([0.0, 0.5, 1.5, 3.0], size=(11, 9)))
    cfg = PlannerConfig()
    result = plan_path(hf, (1, 1), (9, 7), cfg, seed)
    best, costs = oracle(hf.heights.double().numpy(), 0.4, cfg, seed, 10, 9 * 9 + 7)
    assert result.found
    assert result.nodes is not None
    assert result.cost == pytest.approx(best)
    ids = (result.nodes[:, 0] * 9 + result.nodes[:, 1]).tolist()
    steps = list(itertools.pairwise(ids))
    assert sum(costs[s] for s in steps) == pytest.approx(best)
    assert ids[0] == 10
    assert ids[-1] == 9 * 9 + 7


def test_points_carry_the_ground_height():
    rng = np.random.default_rng(0)
    hf = field(rng.choice([0.0, 0.5], size=(8, 8)))
    result = plan_path(hf, (1, 1), (6, 6), PlannerConfig(max_jump_xy_m=0.0), 0)
    assert result.points is not None
    assert torch.equal(result.points[:, 2], hf.height_at(result.points[:, :2]))
    assert not result.jumps.any()


def test_unreachable_goal_is_said_and_never_truncated():
    heights = np.zeros((10, 10))
    heights[5] = 9.0
    result = plan_path(field(heights), (1, 1), (8, 8), PlannerConfig(), 0)
    assert not result.found
    assert result.points is None
    assert "no way" in result.reason
    assert math.isinf(result.cost)
    outside = plan_path(field(heights), (1, 1), (10, 8), PlannerConfig(), 0)
    assert "outside" in outside.reason
    dear = plan_path(field(np.zeros((10, 10))), (1, 1), (8, 8), PlannerConfig(max_cost=0.5), 0)
    assert "more than 0.5" in dear.reason


def test_gap_is_jumped_where_walking_is_impossible():
    heights = np.zeros((12, 9))
    heights[5:8] = -5.0
    result = plan_path(field(heights), (2, 4), (10, 4), PlannerConfig(), 0)
    assert result.found
    assert result.jumps.sum() == 1
    no_jump = plan_path(field(heights), (2, 4), (10, 4), PlannerConfig(max_jump_xy_m=1.0), 0)
    assert not no_jump.found


def test_planned_terrain_reports_attempts_and_reasons():
    heights = np.zeros((32, 32))
    heights[14:18] = 9.0
    cfg = PlannerConfig(min_distance_m=11.0)
    planned = plan_on_terrain(field(heights), cfg, 0)
    assert planned.attempts == len(planned.reasons) + planned.path.found
    small = plan_on_terrain(field(np.zeros((6, 6))), PlannerConfig(), 0)
    assert not small.path.found
    assert "5.0 m apart" in small.reasons[0]


def test_same_seed_same_plan():
    rng = np.random.default_rng(1)
    hf = field(rng.choice([0.0, 0.5, 1.5], size=(20, 20)))
    a, b, c = (plan_on_terrain(hf, PlannerConfig(), s).path for s in (3, 3, 4))
    assert a.points is not None
    assert b.points is not None
    assert torch.equal(a.points, b.points)
    assert c.points is not None
    assert a.points.shape != c.points.shape or not torch.equal(a.points, c.points)


def test_ends_lie_near_the_border_and_apart():
    rng = np.random.default_rng(0)
    for _ in range(50):
        ends = choose_ends((16, 16), 0.4, 5.0, rng)
        assert ends is not None
        for i, j in ends:
            assert i in (1, 2, 13, 14) or j in (1, 2, 13, 14)
        assert math.dist(*ends) * 0.4 >= 5.0


def test_long_edges_are_resampled_as_published():
    points = torch.tensor([[0.0, 0, 0], [0.4, 0.4, 1.0], [0.4, 3.4, 0.0]])
    out = resample_long_edges(points, 0.4)
    # A 3 m edge: linspace of ceil(7.5) = 8 points without the first, 3/7 m apart.
    assert len(out) == 2 + 7
    assert out[2].tolist() == pytest.approx([0.4, 0.4 + 3 / 7, 1 - 1 / 7])
    assert torch.equal(out[-1], points[-1])
    short = resample_long_edges(torch.tensor([[0.0, 0, 0], [0.8, 0, 0]]), 0.4)
    assert len(short) == 2  # ceil(0.8 / 0.4) = 2 points: a 0.8 m edge is not subdivided


def test_progress_is_monotone_and_local_on_a_crossing_path():
    loop = torch.tensor([[0.0, 0, 0], [4, 0, 0], [4, 2, 0], [2, 2, 0], [2, -2, 0]])
    path = PathBatch.stack([loop])
    progress = torch.zeros(1)
    seen = []
    for s in torch.linspace(0, float(path.length[0]), 60):
        at = path.point_at(s[None, None])[:, 0, :2]
        progress = path.advance(at, progress, 1.0)
        seen.append(float(progress))
        assert float(progress) == pytest.approx(float(s), abs=1e-4)
    assert seen == sorted(seen)
    back = path.advance(torch.tensor([[0.0, 0.0]]), progress, 1.0)
    assert torch.equal(back, progress)


def test_padding_of_paths_changes_nothing():
    a = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 1]])
    b = torch.rand(7, 3)
    both, alone = PathBatch.stack([a, b]), PathBatch.stack([a])
    s = torch.linspace(-1, 4, 23)[None]
    assert torch.allclose(both.point_at(s.expand(2, -1))[:1], alone.point_at(s))
    xy = torch.tensor([[0.9, 0.4]])
    one = alone.advance(xy, torch.tensor([0.2]), 2.0)
    two = both.advance(xy.expand(2, 2), torch.tensor([0.2, 0.0]), 2.0)
    assert torch.allclose(two[:1], one)
    assert float(one) == pytest.approx(1.4)


def test_waypoints_are_even_and_keep_the_ends():
    path = torch.tensor([[0.0, 0, 0], [2, 0, 0], [2, 2, 1]])
    sharp = smooth_waypoints(path, 0.5, smooth_m=0.0)
    gaps = arc_lengths(sharp).diff()
    assert torch.allclose(gaps, torch.full_like(gaps, 0.5), atol=1e-5)
    soft = smooth_waypoints(path, 0.5)
    assert torch.allclose(soft[[0, -1]], path[[0, -1]])
    corner = (soft[:, :2] - torch.tensor([2.0, 0.0])).norm(dim=-1).min()
    assert 0.05 < float(corner) < 0.5
