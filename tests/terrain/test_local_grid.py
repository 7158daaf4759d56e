"""The local grid: layout, rotation, and invariance to where in the world the character is."""

from __future__ import annotations

import math

import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch
from parc_ray.terrain.local_grid import (
    GridSpec,
    local_grid_xy,
    sample_local_heights,
    world_grid_xy,
)


def test_layout_is_parcs():
    spec = GridSpec()
    grid = local_grid_xy(spec)
    assert spec.shape == (31, 31)
    assert tuple(grid.shape) == (31, 31, 2)
    torch.testing.assert_close(grid[0, 0], torch.tensor([-2.0, -3.0]))
    torch.testing.assert_close(grid[30, 30], torch.tensor([4.0, 3.0]))
    assert grid[spec.root_cell].tolist() == [0.0, 0.0]


def test_other_layouts():
    spec = GridSpec(x_cells_back=1, x_cells_front=3, y_cells_side=2, spacing=0.5)
    assert spec.shape == (5, 5)
    assert local_grid_xy(spec)[0, 4].tolist() == [-0.5, 1.0]
    with pytest.raises(InputError, match="y_cells_side"):
        GridSpec(y_cells_side=-1)
    with pytest.raises(InputError, match="spacing"):
        GridSpec(spacing=0.0)


def test_heading_turns_the_grid():
    spec = GridSpec(x_cells_back=0, x_cells_front=2, y_cells_side=1, spacing=1.0)
    xy = world_grid_xy(spec, torch.tensor([[5.0, 6.0]]), torch.tensor([math.pi / 2]))[0]
    # Forward is +y of the world, left is -x.
    torch.testing.assert_close(xy[2, 1], torch.tensor([5.0, 8.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(xy[0, 2], torch.tensor([4.0, 6.0]), atol=1e-5, rtol=0)


def test_heights_are_those_of_the_nearest_cell_and_not_clamped():
    heights = torch.zeros(40, 40)
    heights[25, 20] = 8.0
    terrain = Heightfield(heights=heights, origin=torch.zeros(2), cell_size=0.4)
    batch = HeightfieldBatch.stack([terrain])
    root = torch.tensor([[8.0, 8.0, 0.9]])
    local = sample_local_heights(GridSpec(), batch, root, torch.zeros(1))[0]
    # The column covers x 9.8 to 10.2 and y 7.8 to 8.2: 1.8 to 2.2 m in front of the root. Points
    # at 1.8 and 2.2 lie on its border; the one at 2.0 is inside.
    assert local[20, 15] == pytest.approx(8.0 - 0.9)
    assert local[10, 15] == pytest.approx(-0.9)
    assert (local > 0).sum() <= 9


def test_world_position_and_heading_do_not_matter():
    spec = GridSpec()
    heights = torch.randn(60, 60)
    terrain = Heightfield(heights=heights, origin=torch.tensor([-12.0, -12.0]), cell_size=0.4)
    root, heading = torch.tensor([[0.03, 0.05, 0.9]]), torch.tensor([0.0])
    base = sample_local_heights(spec, HeightfieldBatch.stack([terrain]), root, heading)
    # A quarter turn of the world about z maps cell (i, j) to (-j, i), exactly.
    turned = Heightfield(
        heights=heights.flip(1).T.contiguous(),
        origin=torch.tensor([-(-12.0 + 59 * 0.4), -12.0]),
        cell_size=0.4,
    ).translated((3.0, -7.0, 10.0))
    moved = torch.tensor([[-0.05 + 3.0, 0.03 - 7.0, 10.9]])
    again = sample_local_heights(
        spec, HeightfieldBatch.stack([turned]), moved, heading + math.pi / 2
    )
    torch.testing.assert_close(again, base, atol=1e-5, rtol=0)
