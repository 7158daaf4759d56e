"""Height map augmentation: bounds, probabilities, shift invariance, stored bounds."""

from __future__ import annotations

import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.terrain.augment import (
    AugmentConfig,
    augment_local_heights,
    compute_bounds,
    local_bounds,
    ood_heights,
    touched_cells,
)
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from parc_ray.terrain.local_grid import GridSpec, sample_local_heights

OFF = AugmentConfig(fill_probability=0.0, pool_probability=0.0, max_boxes=0)


def free_bounds(heights, room=6.0):
    return torch.full_like(heights, -room), torch.full_like(heights, room)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_results_stay_within_the_bounds_and_the_clamp():
    heights = torch.randn(300, 31, 31)
    lower, upper = heights - torch.rand_like(heights), heights + torch.rand_like(heights)
    result = augment_local_heights(rng(), heights, lower, upper)
    inner = heights.clamp(-3, 3)
    assert (result <= torch.maximum(upper.clamp(-3, 3), inner) + 1e-6).all()
    assert (result >= torch.minimum(lower.clamp(-3, 3), inner) - 1e-6).all()
    assert result.abs().max() <= 3.0
    frozen = augment_local_heights(rng(), heights, heights, heights)
    torch.testing.assert_close(frozen, inner)


def test_without_changes_only_the_clamp_is_left():
    heights = torch.randn(20, 31, 31) * 3
    result = augment_local_heights(rng(), heights, *free_bounds(heights, 99.0), OFF)
    torch.testing.assert_close(result, heights.clamp(-3, 3))


def test_each_change_is_as_frequent_as_asked():
    heights = torch.zeros(4000, 9, 9)
    bounds = free_bounds(heights)
    fill = AugmentConfig(fill_probability=0.1, pool_probability=0.0, max_boxes=0)
    result = augment_local_heights(rng(), heights, *bounds, fill)
    changed = (result != 0).flatten(1).any(1)
    assert float(changed.float().mean()) == pytest.approx(0.1, abs=0.02)
    assert (result == result[:, :1, :1]).all()
    filled = result[changed, 0, 0]
    assert float(filled.mean()) == pytest.approx(0.0, abs=0.3)
    assert float(filled.abs().mean()) == pytest.approx(1.5, abs=0.2)
    # One spike in the middle tells which pools ran and how wide they were.
    heights[:, 4, 4] = 1.0
    pool = AugmentConfig(fill_probability=0.0, pool_probability=0.15, max_pool_cells=3, max_boxes=0)
    raised = augment_local_heights(rng(), heights, *bounds, pool) > 0.5
    along_x, along_y = raised[:, :, 4].sum(1) > 1, raised[:, 4, :].sum(1) > 1
    # A pool changes the map when it runs (0.15) with a width of 1 to 3 of 0 to 3.
    p = 0.15 * 0.75
    expected = 1 - (1 - p) ** 2
    assert float(along_x.float().mean()) == pytest.approx(expected, abs=0.03)
    assert float(along_y.float().mean()) == pytest.approx(expected, abs=0.03)
    assert raised.sum(1).amax() <= 2 * (3 + 3) + 1


def test_pools_equal_torchs():
    from parc_ray.terrain.augment import _shifted_max

    heights = torch.randn(11, 12, 17)
    width = torch.arange(11)
    for dim in (1, 2):
        got = _shifted_max(heights, width, dim, 10)
        for n in range(11):
            kernel = [1, 1]
            kernel[dim - 1] = 2 * n + 1
            want = (
                torch.nn.functional.max_pool2d(
                    heights[n][None, None], kernel, 1, [k // 2 for k in kernel]
                )
                if 2 * n + 1 <= 2 * heights.shape[dim]
                else None
            )
            if want is not None:
                torch.testing.assert_close(got[n], want[0, 0])


def test_boxes_are_as_many_as_asked():
    heights = torch.zeros(2000, 31, 31)
    cfg = AugmentConfig(fill_probability=0.0, pool_probability=0.0, max_boxes=1)
    result = augment_local_heights(rng(), heights, *free_bounds(heights), cfg)
    built = (result != 0).flatten(1)
    assert float(built.any(1).float().mean()) == pytest.approx(0.5, abs=0.05)
    # Mean box: 7 x 7 cells, less what hangs over the border.
    area = built.sum(1)[built.any(1)].float()
    assert 20 < float(area.mean()) < 49
    assert float(area.max()) <= 12 * 12 + 30


def test_augmentation_repeats_with_the_seed():
    heights = torch.randn(50, 31, 31)
    bounds = free_bounds(heights)
    a, b, c = (augment_local_heights(rng(s), heights, *bounds) for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_clips_high_up_are_augmented_as_those_at_the_ground():
    """The published code's absolute bounds change more than half of the cells here."""
    terrain = Heightfield(heights=torch.randn(40, 40) * 0.5, origin=torch.tensor([-8.0, -8.0]))
    points = torch.rand(1, 15, 304, 3) * 0.8
    root = torch.tensor([[0.0, 0.0, 0.9]])
    heading = torch.tensor([0.3])
    results = []
    for dz in (0.0, 10.0, -10.0):
        shift = torch.tensor([0.0, 0.0, dz])
        batch = HeightfieldBatch.stack([terrain.translated(shift)])
        touched = touched_cells(batch, points + shift)
        local = sample_local_heights(GridSpec(), batch, root + shift, heading)
        bounds = local_bounds(GridSpec(), batch, touched, root + shift, heading)
        results.append(augment_local_heights(rng(3), local, *bounds))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(results[2], results[0], atol=1e-5, rtol=0)


def test_ood_maps_are_level_with_boxes_away_from_the_root():
    spec = GridSpec()
    heights = torch.randn(400, 31, 31)
    result = ood_heights(rng(), heights, spec)
    ground = heights[:, 10, 15, None, None].clamp(-3, 3)
    assert (result[:, 8:13, 13:18] == ground).all()
    other = (result != ground).flatten(1)
    assert float(other.any(1).float().mean()) == pytest.approx(0.8, abs=0.08)
    assert result.abs().max() <= 3.0
    bare = ood_heights(rng(), heights, spec, AugmentConfig(max_boxes=0))
    assert (bare == ground).all()


def test_touched_cells_are_those_with_points():
    terrain = Heightfield.flat((5, 6), origin=(0.0, 0.0))
    batch = HeightfieldBatch.stack([terrain, terrain])
    points = torch.tensor(
        [[[0.0, 0.0, 1.0], [0.41, 0.79, 5.0]], [[99.0, 0.0, 0.0], [1.6, 2.0, 0.0]]]
    )
    touched = touched_cells(batch, points)
    assert touched[0].nonzero().tolist() == [[0, 0], [1, 2]]
    assert touched[1].nonzero().tolist() == [[4, 5]]


def test_points_outside_do_not_unmark_the_first_points_cell():
    batch = HeightfieldBatch.stack([Heightfield.flat((5, 6), origin=(0.0, 0.0))])
    points = torch.tensor([[[0.4, 0.8, 0.0]] + [[50.0, 50.0, 0.0]] * 7])
    assert touched_cells(batch, points)[0].nonzero().tolist() == [[1, 2]]


def test_stored_bounds_freeze_touched_cells_and_free_jumped_ones():
    heights = torch.zeros(4, 4)
    heights[1, 1], heights[2, 2], heights[3, 3] = 0.5, -1.0, -2.0
    terrain = Heightfield(heights=heights, origin=torch.zeros(2))
    points = torch.tensor(
        [
            [[0.4, 0.4, 0.6], [0.8, 0.8, 0.1]],  # just over (1, 1), 1.1 m over (2, 2)
            [[0.4, 0.4, 3.0], [0.8, 0.8, -0.1]],  # high over (1, 1), 0.9 m over (2, 2)
        ]
    )
    bounded = compute_bounds(terrain, points, torch.tensor([1.0, 1.4]))
    assert bounded.upper is not None
    assert bounded.lower is not None
    assert float(bounded.upper[1, 1]) == float(bounded.lower[1, 1]) == 0.5
    assert float(bounded.upper[2, 2]) == pytest.approx(-0.9)
    assert float(bounded.lower[2, 2]) == pytest.approx(-5.0)
    assert float(bounded.upper[0, 3]) == pytest.approx(4.4)
    assert float(bounded.lower[0, 3]) == pytest.approx(-5.0)


def test_local_bounds_use_stored_ones_only_where_the_window_touches():
    heights = torch.zeros(16, 16)
    terrain = Heightfield(
        heights=heights, origin=torch.tensor([-3.0, -3.0]), upper=heights + 0.2, lower=heights - 0.3
    )
    batch = HeightfieldBatch.stack([terrain])
    touched = torch.zeros(1, 16, 16, dtype=torch.bool)
    touched[0, 7:9, 7:9] = True
    root, heading = torch.tensor([[0.0, 0.0, 0.9]]), torch.zeros(1)
    lower, upper = local_bounds(GridSpec(), batch, touched, root, heading)
    assert float(upper[0, 10, 15]) == pytest.approx(0.2 - 0.9)
    assert float(lower[0, 10, 15]) == pytest.approx(-0.3 - 0.9)
    assert float(upper[0, 30, 0]) == 6.0
    assert float(lower[0, 30, 0]) == -6.0


def test_bad_settings_are_refused_by_name():
    for bad in (
        {"fill_probability": 1.5},
        {"pool_probability": -0.1},
        {"max_boxes": -1},
        {"box_side_cells": (0.0, 2.0)},
        {"max_height_m": 0.0},
    ):
        with pytest.raises(InputError, match=next(iter(bad))):
            AugmentConfig(**bad)
