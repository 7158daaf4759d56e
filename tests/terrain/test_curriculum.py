"""Difficulty by iteration and by success, against worked numbers."""

from __future__ import annotations

import pytest

from parc_ray.config import IterationConfig, ParcConfig
from parc_ray.errors import InputError
from parc_ray.terrain.curriculum import CurriculumConfig, scaled
from parc_ray.terrain.generators import TerrainSpec


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
    plan = CurriculumConfig(by="success", start=0.5, step=0.1, bounds=(0.3, 0.8))
    assert plan.factor_after([]) == 0.5
    # Up, the same, the same at the very limit, down.
    assert plan.factor_after([0.9, 0.5, 0.7, 0.1]) == pytest.approx(0.5)
    assert plan.factor_after([1.0] * 9) == 0.8
    assert plan.factor_after([0.0] * 9 + [0.8]) == pytest.approx(0.4)
    assert CurriculumConfig(by="success", start=9.0).factor_after([]) == 1.5
    with pytest.raises(InputError, match="success"):
        plan.factor_after([1.2])
    bad = (
        {"by": "luck"},
        {"step": -0.1},
        {"raise_above": 1.1},
        {"lower_below": 0.8},
        {"bounds": (0.5, 0.1)},
    )
    for values in bad:
        with pytest.raises(InputError, match=f"curriculum.{next(iter(values))}"):
            CurriculumConfig(**values)


def test_success_leaves_the_rows_to_the_stage():
    rows = (IterationConfig(), IterationConfig(terrain=TerrainSpec(difficulty=0.6)))
    config = ParcConfig(iterations=rows, curriculum=CurriculumConfig(by="success", start=0.2))
    assert [config.row(i) for i in (1, 2)] == list(rows)
    assert scaled(rows[1].terrain, 0.5).difficulty == pytest.approx(0.3)
    assert scaled(rows[1].terrain, 1.0) is rows[1].terrain
