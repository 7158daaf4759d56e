from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parc_ray.errors import InputError
from parc_ray.synthesis import graph
from parc_ray.synthesis.config import PlannerConfig
from parc_ray.synthesis.graph import (
    bresenham,
    build_edges,
    bumpiness,
    cliff_nodes,
    edge_costs,
)


def naive_edges(h, cell, cfg):
    """Edge set straight from the definitions of the specification."""
    nx, ny = h.shape
    cliff = set()
    for i in range(1, nx - 1):
        for j in range(1, ny - 1):
            around = [h[i - 1, j], h[i + 1, j], h[i, j - 1], h[i, j + 1]]
            if any(h[i, j] - a > 1e-3 for a in around):
                cliff.add((i, j))
    walk, jump = set(), set()
    for i in range(nx):
        for j in range(ny):
            for k in range(nx):
                for m in range(ny):
                    if (i, j) == (k, m):
                        continue
                    dz = h[k, m] - h[i, j]
                    if max(abs(i - k), abs(j - m)) == 1 and abs(dz) <= cfg.max_step_z_m:
                        walk.add((i * ny + j, k * ny + m))
                    if (i, j) not in cliff or (k, m) not in cliff:
                        continue
                    if math.hypot(i - k, j - m) * cell > cfg.max_jump_xy_m + 1e-9:
                        continue
                    if not cfg.min_jump_z_m <= dz <= cfg.max_jump_z_m:
                        continue
                    line = [(i + a, j + b) for a, b in bresenham(k - i, m - j)]
                    if max(h[c] for c in line) < h[i, j] + cfg.max_jump_z_m + 1e-3:
                        jump.add((i * ny + j, k * ny + m))
    return walk, jump - walk


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("step", [2.1, 0.4])
def test_edges_equal_naive_loops(seed, step):
    rng = np.random.default_rng(seed)
    h = rng.choice([-1.0, 0.0, 0.3, 1.0, 2.5], size=(9, 7))
    cfg = PlannerConfig(max_step_z_m=step, max_jump_xy_m=1.7)
    edges = build_edges(h, 0.4, cfg)
    walk, jump = naive_edges(h, 0.4, cfg)
    pairs = list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert pairs == sorted(pairs)
    assert {p for p, j in zip(pairs, edges.jump, strict=True) if not j} == walk
    assert {p for p, j in zip(pairs, edges.jump, strict=True) if j} == jump
    assert jump


def test_a_negative_jump_limit_allows_no_jump_as_the_take_off_bars_it():
    h = np.random.default_rng(5).choice([-1.0, 0.0, 0.3, 1.0], size=(8, 8))
    cfg = PlannerConfig(max_step_z_m=0.4, max_jump_z_m=-0.2)
    edges = build_edges(h, 0.4, cfg)
    assert naive_edges(h, 0.4, cfg)[1] == set()
    assert not edges.jump.any()


def test_take_offs_in_small_groups_give_the_same_edges(monkeypatch):
    h = np.random.default_rng(6).choice([-1.0, 0.0, 0.3, 1.0], size=(13, 11))
    together = build_edges(h, 0.4, PlannerConfig())
    monkeypatch.setattr(graph, "_CLIFFS", 7)
    apart = build_edges(h, 0.4, PlannerConfig())
    assert together.jump.sum() > 100
    for name in ("src", "dst", "jump"):
        assert (getattr(together, name) == getattr(apart, name)).all()


def test_cliffs_exclude_border_and_tiny_steps():
    h = np.zeros((5, 5))
    h[2, 2] = 1.0
    h[0, 0] = 1.0
    h[3, 1] = 5e-4
    expected = np.zeros((5, 5), dtype=bool)
    expected[2, 2] = True
    assert (cliff_nodes(h) == expected).all()


def test_bresenham_ends_and_is_connected():
    for dx in range(-8, 9):
        for dy in range(-8, 9):
            line = bresenham(dx, dy)
            assert line[0] == (0, 0)
            assert line[-1] == (dx, dy)
            assert len(line) == max(abs(dx), abs(dy)) + 1
            for a, b in itertools.pairwise(line):
                assert max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1


def test_bumpiness_equals_its_definition():
    rng = np.random.default_rng(3)
    h = rng.normal(size=(5, 6))

    def at(i, j):
        return h[min(max(i, 0), 4), min(max(j, 0), 5)]

    def clamp(i, n):
        return min(max(i, 0), n - 1)

    expected = np.zeros_like(h)
    for i in range(5):
        for j in range(6):
            for a in (-1, 0, 1):
                for b in (-1, 0, 1):
                    k, m = clamp(i + a, 5), clamp(j + b, 6)
                    for c in (-1, 0, 1):
                        for d in (-1, 0, 1):
                            expected[i, j] += abs(at(k, m) - at(k + c, m + d))
    assert np.allclose(bumpiness(h), expected / 81)


def test_cost_of_steps_worked_by_hand():
    h = np.zeros((1, 2))
    h[0, 1] = 2.0
    cfg = PlannerConfig(noise=(0.0, 0.0))
    edges = build_edges(h, 0.4, cfg)
    # 0.4^2 + 0.15 * 2^2 = 0.76, both ways.
    assert edge_costs(h, 0.4, edges, cfg, 0) == pytest.approx([0.76, 0.76])


def test_noise_is_fixed_by_the_seed_and_bounded():
    h = np.zeros((6, 6))
    cfg = PlannerConfig()
    edges = build_edges(h, 0.4, cfg)
    a, b, c = (edge_costs(h, 0.4, edges, cfg, s) for s in (1, 1, 2))
    assert (a == b).all()
    assert (a != c).any()
    quiet = edge_costs(h, 0.4, edges, PlannerConfig(noise=(0.0, 0.0)), 1)
    assert (a - quiet).min() >= 0
    assert (a - quiet).max() <= 0.5
    assert (a - quiet).std() > 0.1


def test_wrong_config_is_named():
    with pytest.raises(InputError, match=r"PlannerConfig\.noise"):
        PlannerConfig(noise=(0.5, 0.0))
    with pytest.raises(InputError, match=r"PlannerConfig\.w_xy"):
        PlannerConfig(w_xy=0.0)
