"""Measured difficulty against worked numbers; schedules by iteration and by success."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parc_ray.config import IterationConfig, ParcConfig
from parc_ray.errors import InputError
from parc_ray.terrain.difficulty import (
    WINDOW_CELLS,
    CurriculumConfig,
    difficulty_by_success,
    terrain_difficulty,
)
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


def test_the_curriculum_rises_in_equal_steps_and_stays():
    plan = CurriculumConfig(start=0.4, end=1.0, iterations=4)
    assert [plan.factor(i) for i in (1, 2, 3, 4, 9)] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])
    assert CurriculumConfig(start=0.5, end=0.7, iterations=1).factor(1) == 0.7
    spec = TerrainSpec(difficulty=0.5)
    assert plan.scheduled(spec, 2).difficulty == pytest.approx(0.3)
    assert CurriculumConfig().scheduled(spec, 1) is spec
    for bad in ({"start": -0.1}, {"end": float("inf")}, {"iterations": 0}):
        with pytest.raises(InputError, match=f"curriculum.{next(iter(bad))}"):
            CurriculumConfig(**bad)


def test_a_runs_rows_follow_its_curriculum():
    rows = tuple(IterationConfig(terrain=TerrainSpec(difficulty=d)) for d in (1.0, 1.0, 2.0))
    plain = ParcConfig(iterations=rows)
    assert plain.row(2) is rows[1]
    config = ParcConfig(iterations=rows, curriculum=CurriculumConfig(start=0.2, iterations=3))
    assert [config.row(i).terrain.difficulty for i in (1, 2, 3)] == pytest.approx([0.2, 0.6, 2.0])
    longer = config.with_iterations(5)
    assert longer.row(5).terrain.difficulty == 2.0
    assert config.identity() != plain.identity()


def test_success_moves_difficulty_and_bounds_hold_it():
    kw = {"start": 0.5, "step": 0.1, "lower_below": 0.3, "raise_above": 0.7, "bounds": (0.3, 0.8)}
    assert difficulty_by_success([], **kw) == 0.5
    assert difficulty_by_success([0.9, 0.5, 0.7, 0.1], **kw) == pytest.approx(0.5)
    assert difficulty_by_success([1.0] * 9, **kw) == 0.8
    assert difficulty_by_success([0.0] * 9 + [0.8], **kw) == pytest.approx(0.4)
    with pytest.raises(InputError, match="success"):
        difficulty_by_success([1.2], **kw)
    with pytest.raises(InputError, match="lower_below"):
        difficulty_by_success([], lower_below=0.8, raise_above=0.7)
