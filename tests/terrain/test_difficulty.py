"""Measured difficulty against worked numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parc_ray.terrain.difficulty import WINDOW_CELLS, terrain_difficulty
from parc_ray.terrain.generators import TerrainSpec, make_terrain
from parc_ray.terrain.heightfield import Heightfield


def terrain(heights, cell_size=0.5):
    heights = torch.as_tensor(heights, dtype=torch.float32)
    return Heightfield(heights=heights, origin=torch.zeros(2), cell_size=cell_size)


def test_level_ground_of_any_size_is_0():
    for shape in ((1, 1), (1, 9), (2, 3), (33, 20), (130, 60)):
        assert terrain_difficulty(terrain(torch.full(shape, 3.0))) == 0.0


def test_a_wall_costs_its_height_twice_on_every_lane_across():
    heights = torch.zeros(21, 11)
    heights[10] = 0.6  # lanes along x climb up and down over 10 m; lanes along y see nothing
    assert terrain_difficulty(terrain(heights)) == pytest.approx((1.2 / 10) / 2, abs=1e-6)
    assert terrain_difficulty(terrain(heights.T)) == pytest.approx((1.2 / 10) / 2, abs=1e-6)


def test_a_trench_costs_the_cheaper_of_a_jump_and_of_climbing_through():
    heights = torch.zeros(21, 11)
    heights[9:12] = -3.0
    # A jump from 8 to 12 is 2 m long and takes 2 m more than walking; climbing takes 6 m. The
    # lanes along y end beside the trench and do not enter it.
    assert terrain_difficulty(terrain(heights)) == pytest.approx((2.0 / 10) / 2, abs=1e-6)
    heights[9:12] = -0.25
    assert terrain_difficulty(terrain(heights)) == pytest.approx((0.5 / 10) / 2, abs=1e-6)
    wide = torch.zeros(21, 11)
    wide[6:14] = -3.0  # 4.5 m from edge to edge are no jump
    assert terrain_difficulty(terrain(wide)) == pytest.approx((6.0 / 10) / 2, abs=1e-6)


def test_a_detour_counts_where_it_is_cheaper():
    heights = torch.zeros(41, 41)
    heights[20, :40] = 50.0
    around = terrain_difficulty(terrain(heights))
    assert 0.0 < around < 1.0
    heights[20, 40] = 50.0
    assert terrain_difficulty(terrain(heights)) > 2.0


def test_jumps_clear_no_walls():
    heights = torch.zeros(21, 3)
    heights[9:12] = -3.0
    free = terrain_difficulty(terrain(heights))
    heights[10] = 2.0  # a wall in the trench: up to it is a jump of 1 m and 2 m up, twice
    walled = terrain_difficulty(terrain(heights))
    assert walled - free == pytest.approx((2 * (1.0 + 2.0) - 2.0) / 10 / 2, abs=1e-6)


def test_higher_steps_are_never_easier():
    rng = np.random.default_rng(0)
    for kind in ("boxes", "paths", "ruins"):
        ground = make_terrain(TerrainSpec(kind=kind, cells=(24, 24)), rng)
        values = [
            terrain_difficulty(terrain(ground.heights * factor, 0.4))
            for factor in np.linspace(0.0, 3.0, 13)
        ]
        assert (np.diff(values) > 0.0).all()


def test_large_terrains_are_measured_on_windows():
    spec = TerrainSpec(kind="paths", cells=(3 * WINDOW_CELLS, 3 * WINDOW_CELLS), path_count=60)
    whole = make_terrain(spec, np.random.default_rng(0))
    w = WINDOW_CELLS
    parts = [
        terrain_difficulty(terrain(whole.heights[i : i + w, j : j + w], 0.4))
        for i in (0, w, 2 * w)
        for j in (0, w, 2 * w)
    ]
    assert terrain_difficulty(whole) == pytest.approx(np.mean(parts))
