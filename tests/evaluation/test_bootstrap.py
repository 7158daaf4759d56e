"""Intervals over terrains."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parc_ray.evaluation.bootstrap import bootstrap_difference, bootstrap_mean


def test_two_terrains_by_hand():
    """Means of two draws of two terrains: 1, 2 (twice) or 3, with motions 1, 1 | 3, 3."""
    found = bootstrap_mean([1, 1, 3, 3], [0, 0, 1, 1], resamples=4000)
    assert (found.mean, found.values, found.groups) == (2.0, 4, 2)
    assert (found.low, found.high) == (1.0, 3.0)
    half = bootstrap_mean([1, 1, 3, 3], [0, 0, 1, 1], resamples=4000, level=0.2)
    assert (half.low, half.high) == (2.0, 2.0)


def test_the_mean_is_over_motions_not_over_terrains():
    assert bootstrap_mean([1, 1, 1, 5], [0, 0, 0, 1]).mean == 2.0


def test_motions_of_one_terrain_are_not_independent():
    rng = np.random.default_rng(0)
    level = rng.normal(size=20)
    values = np.repeat(level, 50) + 0.01 * rng.normal(size=1000)
    by_terrain = bootstrap_mean(values, list(np.repeat(np.arange(20), 50)))
    apart = bootstrap_mean(values, list(range(1000)))
    expected = 2 * 1.96 * level.std() / math.sqrt(20)
    assert by_terrain.high - by_terrain.low == pytest.approx(expected, rel=0.2)
    assert apart.high - apart.low < 0.3 * expected


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        found = bootstrap_mean(rng.normal(size=40), list(range(40)), resamples=400, seed=seed)
        hits += found.low <= 0.0 <= found.high
    assert 176 <= hits <= 199


def test_same_seed_same_interval():
    values = np.random.default_rng(3).normal(size=12)
    groups = [k // 2 for k in range(12)]
    assert bootstrap_mean(values, groups) == bootstrap_mean(values, groups)
    assert bootstrap_mean(values, groups) != bootstrap_mean(values, groups, seed=1)


def test_what_is_not_a_number_is_left_out_and_one_terrain_has_no_interval():
    found = bootstrap_mean([1.0, math.nan, 3.0], ["a", "b", "a"])
    assert (found.mean, found.values, found.groups) == (2.0, 2, 1)
    assert math.isnan(found.low)
    nothing = bootstrap_mean([], [])
    assert math.isnan(nothing.mean)
    with pytest.raises(ValueError, match="2 values in 1 groups"):
        bootstrap_mean([1, 2], [0])


def test_what_a_terrain_does_to_both_cancels():
    rng = np.random.default_rng(2)
    hard = 10 * rng.normal(size=15)
    groups = list(range(15))
    first, second = hard, hard - 1.0 + 0.1 * rng.normal(size=15)
    found = bootstrap_difference((first, groups), (second, groups))
    assert found.mean == pytest.approx((second - first).mean())
    assert found.high < -0.8
    assert found.low > -1.2
    assert bootstrap_mean(second, groups).high > 0.0  # alone nothing could be said


def test_differences_need_common_terrains():
    found = bootstrap_difference(([1.0, 9.0], [0, 1]), ([2.0, 5.0], [0, 2]))
    assert (found.mean, found.groups) == (1.0, 1)
    assert math.isnan(bootstrap_difference(([1.0], [0]), ([2.0], [1])).mean)
