"""Fast look-ups of training batches against the plain functions that do the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.rotations import quat_from_exp, quat_mul, rotate_xy, yaw_quat
from parc_ray.character.surface import place_points, surface_points
from parc_ray.terrain.augment import (
    AugmentConfig,
    augment_local_heights,
    cell_bounds,
    local_bounds,
    ood_heights,
    touched_cells,
)
from parc_ray.terrain.footprint import passed_cells
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from parc_ray.terrain.local_cells import local_cells
from parc_ray.terrain.local_grid import GridSpec, sample_local_heights

N, T = 40, 6


def terrains(bounds=False):
    """Five terrains of different sizes and places."""
    made = []
    for k in range(5):
        heights = torch.randn(7 + 3 * k, 19 - 2 * k)
        terrain = Heightfield(heights=heights, origin=torch.randn(2) * 2)
        if bounds:
            terrain = replace(terrain, upper=heights + 1, lower=heights - 1)
        made.append(terrain)
    return HeightfieldBatch.stack(made)


@pytest.fixture
def roots():
    """Terrain, position and heading of windows, some near or over the edge of their terrain."""
    return (
        torch.randint(0, 5, (N,)),
        torch.randn(N, 3) * torch.tensor([4.0, 4.0, 0.5]),
        torch.rand(N) * 6.3 - 3.1,
    )


def test_cells_are_those_of_the_plain_look_up(roots):
    ids, pos, heading = roots
    batch = terrains()
    cells = local_cells(GridSpec(), batch, ids, pos, heading)
    want = sample_local_heights(GridSpec(), batch.index_select(ids), pos, heading)
    assert torch.equal(cells.heights(batch.heights), want)


@pytest.mark.parametrize("bounds", [False, True])
def test_bounds_are_those_of_the_plain_look_up(roots, bounds):
    ids, pos, heading = roots
    batch = terrains(bounds)
    chosen = batch.index_select(ids)
    touched = torch.rand(chosen.heights.shape) < 0.3
    cells = local_cells(GridSpec(), batch, ids, pos, heading)
    found = cell_bounds(cells, cells.heights(batch.heights), touched, 4.0)
    want = local_bounds(GridSpec(), chosen, touched, pos, heading, 4.0)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_passed_cells_are_the_touched_ones(character, roots):
    """One matrix product in cells marks what placing every point in the world marks."""
    ids, pos, heading = roots
    batch, skeleton = terrains(), character.skeleton
    root_pos = torch.randn(N, T, 3) * 0.5
    root_rot = quat_from_exp(torch.randn(N, T, 3))
    body_pos, body_rot = fk_from_dof(
        skeleton, root_pos, root_rot, torch.randn(N, T, skeleton.num_dofs)
    )
    points = surface_points(character)
    found = passed_cells(points, body_pos, body_rot, batch, ids, pos, heading)
    turn = yaw_quat(heading)[:, None, None]
    placed = rotate_xy(body_pos[..., :2], heading[:, None, None]) + pos[:, None, None, :2]
    world = torch.cat([placed, body_pos[..., 2:]], dim=-1)
    chosen = batch.index_select(ids)
    want = touched_cells(
        chosen, place_points(points, world, quat_mul(turn, body_rot)).flatten(1, 2)
    )
    x, y = chosen.size[:, 0, None, None], chosen.size[:, 1, None, None]
    inside = torch.arange(found.shape[1])[:, None] < x
    inside = inside & (torch.arange(found.shape[2]) < y)
    assert want.any()
    assert (want & inside).sum() == want.sum()
    # A point within rounding of a border may fall to either side.
    assert int((found ^ want)[inside].sum()) <= 3e-5 * N * T * len(points)


def test_guessed_cells_may_sink_but_not_rise(roots):
    ids, pos, heading = roots
    batch = terrains()
    cells = local_cells(GridSpec(), batch, ids, pos, heading)
    heights = cells.heights(batch.heights)
    unseen = torch.rand_like(heights) < 0.5
    all_touched = torch.ones(N, *batch.heights.shape[1:], dtype=torch.bool)
    lower, upper = cell_bounds(cells, heights, all_touched, 6.0, unseen)
    assert torch.equal(upper, heights)
    assert torch.equal(lower[~unseen], heights[~unseen])
    assert (lower[unseen] == -6.0).all()


def test_confidence_goes_with_the_terrains():
    sure = Heightfield(heights=torch.zeros(3, 4), origin=torch.zeros(2))
    guess = Heightfield(
        heights=torch.zeros(2, 2), origin=torch.zeros(2), confidence=torch.full((2, 2), 0.25)
    )
    batch = HeightfieldBatch.stack([sure, guess])
    second = batch.index_select(torch.tensor([1])).confidence
    back = batch.get(1).confidence
    assert batch.confidence is not None
    assert second is not None
    assert back is not None
    assert (batch.confidence[0] == 1.0).all()
    assert torch.equal(back, torch.full((2, 2), 0.25))
    assert torch.equal(second[0, :2, :2], back)
    assert HeightfieldBatch.stack([sure]).confidence is None


def test_a_box_is_where_geometry_says():
    """One box on flat ground: every cell is inside the turned rectangle or untouched."""
    cfg = AugmentConfig(fill_probability=0.0, pool_probability=0.0, max_boxes=1)
    heights = torch.zeros(64, 21, 17)
    free = torch.full_like(heights, 9.0)
    found = augment_local_heights(torch.Generator().manual_seed(5), heights, -free, free, cfg)
    rng = torch.Generator().manual_seed(5)
    for shape in ((64, 1, 1), (64, 1, 1), (64, 3), (64, 3)):
        torch.rand(shape, generator=rng)
    torch.randint(0, cfg.max_pool_cells + 1, (64, 3), generator=rng)
    count = torch.randint(0, 2, (64,), generator=rng)
    place, side = (torch.rand(2, 64, 1, generator=rng)[..., 0] for _ in range(2))
    side = 2.0 + 10.0 * side
    angle = 2 * torch.pi * torch.rand(64, 1, generator=rng)[:, 0]
    level = -3.0 + 6.0 * torch.rand(64, 1, generator=rng)[:, 0]
    for n in range(64):
        for i in range(0, 21, 2):
            for j in range(0, 17, 2):
                offset = torch.stack([i - place[0, n] * 20, j - place[1, n] * 16])
                local = rotate_xy(offset, -angle[n]).abs()
                inside = bool(count[n]) and bool((local < side[:, n] / 2).all())
                if ((local - side[:, n] / 2).abs() > 1e-3).all():
                    assert float(found[n, i, j]) == pytest.approx(float(level[n]) * inside)


def test_only_chosen_maps_are_replaced():
    heights = torch.randn(30, 31, 31)
    chosen = torch.arange(30) % 3 == 0
    some = ood_heights(torch.Generator().manual_seed(1), heights, GridSpec(), chosen=chosen)
    every = ood_heights(torch.Generator().manual_seed(1), heights, GridSpec())
    assert torch.equal(some[chosen], every[chosen])
    assert torch.equal(some[~chosen], heights[~chosen])
