from __future__ import annotations

import heapq
import itertools
import math

import numpy as np
import pytest
import torch

from parc_ray.synthesis.config import PlannerConfig
from parc_ray.synthesis.edge_kinds import kinds_between
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


def test_steps_are_told_apart():
    heights = np.zeros((20, 7))
    heights[4:] = 0.25  # a stair
    heights[7:] = 1.5  # up by 1.25
    heights[10:] = 1.1  # down by 0.4
    heights[13:15] = -4.0  # a gap
    heights[15:] = 1.4
    result = plan_path(field(heights), (1, 3), (18, 3), PlannerConfig(), 0)
    assert result.nodes is not None
    told = [
        (kind, int(a), int(b))
        for kind, a, b in zip(result.kinds, result.nodes[:-1, 0], result.nodes[1:, 0], strict=True)
        if kind != "walk"
    ]
    assert told == [("climb", 6, 7), ("drop", 9, 10), ("jump", 12, 15)]
    assert [k == "jump" for k in result.kinds] == result.jumps.tolist()
    assert plan_path(field(heights), (1, 3), (99, 3), PlannerConfig(), 0).kinds == ()


def test_a_stretch_of_a_path_knows_its_steps():
    nodes = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 2, 1], [1, 3, 1]])
    kinds = ("walk", "climb", "jump")
    assert kinds_between(nodes, kinds, 0.0, 1.0) == ("walk",)
    assert kinds_between(nodes, kinds, 0.5, 1.5) == ("walk", "climb")
    assert kinds_between(nodes, kinds, 2.0, 2.0) == ("climb",)
    assert kinds_between(nodes, kinds, 1.0, 9.0) == ("climb", "jump")
    assert kinds_between(nodes, kinds, 4.0, 4.0) == ("jump",)


def test_attempts_are_capped_and_each_failure_is_kept():
    rng = np.random.default_rng(0)
    hf = field(rng.choice([0.0, 0.5], size=(20, 20)))
    planned = plan_on_terrain(hf, PlannerConfig(max_cost=1e-3, attempts=4), 0)
    assert not planned.path.found
    assert planned.path.points is None
    assert planned.attempts == 4
    assert len(planned.reasons) == 4
    assert all("more than 0.0" in reason for reason in planned.reasons)


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


def zigzag(seed: int) -> torch.Tensor:
    """A random walk over grid points."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(-1, 2, size=(40, 2))
    steps = steps[(steps != 0).any(1)]
    xy = np.concatenate([[[0, 0]], steps.cumsum(0)]) * 0.4
    return torch.from_numpy(np.column_stack([xy, rng.normal(size=len(xy))])).float()


@pytest.mark.parametrize("seed", range(5))
def test_rounded_corners_do_not_overshoot(seed):
    path = zigzag(seed)
    soft = smooth_waypoints(path, 0.2, smooth_m=1.2)
    s = torch.linspace(0.0, float(arc_lengths(path)[-1]), len(soft))
    batch = PathBatch.stack([path])
    for k, point in enumerate(soft):
        t = (s[k] + torch.linspace(-0.6, 0.6, 241)).clamp(0.0, float(s[-1]))
        around = batch.point_at(t[None])[0, :, :2]
        assert (point[:2] >= around.amin(0) - 1e-5).all()
        assert (point[:2] <= around.amax(0) + 1e-5).all()
    # Along the arc: way-points lie at even lengths of the path, and heights are those there.
    torch.testing.assert_close(soft[:, 2], batch.point_at(s[None])[0, :, 2])
    # Smoother: the path turns less from way-point to way-point, and never gets longer.
    sharp = smooth_waypoints(path, 0.2, smooth_m=0.0)

    def turn(points: torch.Tensor) -> float:
        return float(points[:, :2].diff(n=2, dim=0).norm(dim=-1).square().sum())

    assert turn(soft) < 0.5 * turn(sharp)
    assert float(arc_lengths(soft)[-1]) <= float(arc_lengths(path)[-1]) + 1e-4


def test_rounding_leads_neither_through_a_wall_nor_over_a_hole():
    for level in (3.0, -3.0):
        heights = torch.zeros(20, 20)
        heights[:9, 6:] = level  # what the corner goes round
        terrain = field(heights)
        path = torch.tensor([[0.4, 2.0, 0.0], [3.6, 2.0, 0.0], [3.6, 6.8, 0.0]])
        blind = smooth_waypoints(path, 0.1, smooth_m=2.4)
        assert (terrain.height_at(blind[:, :2]) == level).any()
        seeing = smooth_waypoints(path, 0.1, smooth_m=2.4, terrain=terrain)
        assert (terrain.height_at(seeing[:, :2]) == 0.0).all()
        # Where nothing is in the way, corners are rounded all the same.
        free = field(torch.zeros(20, 20))
        assert torch.equal(smooth_waypoints(path, 0.1, 2.4, free), blind)
