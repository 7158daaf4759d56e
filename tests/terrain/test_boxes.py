"""Box decomposition: exact cover, few boxes, world coordinates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parc_ray.errors import InputError
from parc_ray.terrain.boxes import boxes_to_world, merge_boxes
from parc_ray.terrain.generators import TerrainSpec, make_terrain, make_terrains
from parc_ray.terrain.heightfield import Heightfield


@settings(max_examples=40, deadline=None)
@given(x=st.integers(1, 9), y=st.integers(1, 9), levels=st.integers(1, 4), seed=st.integers(0, 999))
def test_rectangles_cover_every_cell_once_at_its_height(x, y, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    heights = torch.randint(0, levels, (x, y), generator=generator) * 0.25
    covered = torch.zeros(x, y)
    for i0, i1, j0, j1, height in merge_boxes(heights):
        assert i1 > i0
        assert j1 > j0
        covered[i0:i1, j0:j1] += 1
        assert (heights[i0:i1, j0:j1] == height).all()
    assert (covered == 1).all()


def test_boxes_are_as_few_as_expected():
    assert merge_boxes(torch.ones(20, 30)) == [(0, 20, 0, 30, 1.0)]
    step = torch.zeros(6, 6)
    step[3:] = 1.0
    assert len(merge_boxes(step)) == 2
    island = torch.zeros(7, 7)
    island[2:4, 2:5] = 1.0
    assert len(merge_boxes(island)) <= 5
    assert len(merge_boxes(torch.zeros(4, 4) + torch.rand(4, 4) * 1e-6)) == 1
    for terrain in make_terrains(TerrainSpec(), 20, 0):
        assert len(merge_boxes(terrain.heights)) < 64


@pytest.mark.parametrize("apron", [0.0, 3.0])
def test_world_boxes_reproduce_the_heights(apron):
    spec = TerrainSpec(kind="paths", cells=(12, 9), cell_size=0.3)
    terrain = make_terrain(spec, np.random.default_rng(3)).translated((1.0, -2.0, 0.5))
    boxes = boxes_to_world(terrain, base_z=-9.0, apron_m=apron)
    low, high = boxes[:, :3] - boxes[:, 3:], boxes[:, :3] + boxes[:, 3:]
    torch.testing.assert_close(low[:, 2], torch.full((len(boxes),), -9.0))
    corner, far = terrain.extent
    xy = corner - apron + 0.01 + torch.rand(2000, 2) * (far - corner + 2 * apron - 0.02)
    inside = ((xy[:, None] >= low[:, :2]) & (xy[:, None] <= high[:, :2])).all(-1)
    assert (inside.sum(1) == 1).float().mean() > 0.99  # all but points on shared faces
    assert (inside.sum(1) >= 1).all()
    top = torch.where(inside, high[:, 2], -torch.inf).amax(1)
    away = ((xy - corner) / 0.3 % 1 - 0.5).abs().amax(1) < 0.49
    torch.testing.assert_close(top[away], terrain.height_at(xy)[away])
    torch.testing.assert_close(low[:, :2].amin(0), corner - apron)
    torch.testing.assert_close(high[:, :2].amax(0), far + apron)


def test_bottoms_lie_below_every_top():
    terrain = Heightfield.flat((3, 3), height=-12.0)
    assert boxes_to_world(terrain)[0].tolist() == pytest.approx(
        [0, 0, -12.5, 0.6, 0.6, 0.5], abs=1e-6
    )
    with pytest.raises(InputError, match="base_z"):
        boxes_to_world(terrain, base_z=-10.0)
