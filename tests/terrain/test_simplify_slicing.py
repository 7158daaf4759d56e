"""Simplification and cutting of terrains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.simplify import flat_maxpool_2x2, flatten_around, simplified
from parc_ray.terrain.slicing import local_offset, padded, random_crop, slice_around_motion


def test_pooling_raises_blocks_to_their_highest_cell():
    heights = torch.tensor(
        [
            [0.0, 1.0, 5.0, 0.0, 7.0],
            [2.0, 0.0, 0.0, 0.0, 7.0],
            [0.0, 0.0, 0.0, 3.0, 8.0],
        ]
    )
    expected = [[2.0, 2.0, 5.0, 5.0, 7.0], [2.0, 2.0, 5.0, 5.0, 7.0], [0.0, 0.0, 0.0, 3.0, 8.0]]
    before = heights.clone()
    assert flat_maxpool_2x2(heights).tolist() == expected
    assert torch.equal(heights, before)


def test_pooling_twice_is_pooling_once():
    heights = torch.randn(9, 12)
    once = flat_maxpool_2x2(heights)
    assert torch.equal(flat_maxpool_2x2(once), once)
    assert (once >= heights).all()


@pytest.mark.parametrize("node", [(4, 5), (5, 4), (0, 0), (1, 7), (9, 9)])
def test_flattening_holds_the_node_in_the_middle(node):
    heights = torch.arange(100.0).view(10, 10)
    flat = flatten_around(heights, node)
    changed = flat != heights
    same = flat == heights[node]
    rows = [r for r in range(10) if same[r, node[1]]]
    cols = [c for c in range(10) if same[node[0], c]]
    for axis, cells in ((0, rows), (1, cols)):
        first = node[axis] - 2 if node[axis] % 2 == 0 else node[axis] - 1
        assert first % 2 == 0
        assert cells == [c for c in range(first, first + 4) if 0 <= c < 10]
        assert first + 1 <= node[axis] <= first + 2
    assert int(changed.sum()) == len(rows) * len(cols) - 1


def test_flattening_refuses_nodes_outside():
    with pytest.raises(InputError, match=r"node\[1\]"):
        flatten_around(torch.zeros(4, 4), (0, 4))


def test_simplified_drops_bounds():
    flat = Heightfield.flat((4, 4))
    bounded = Heightfield(
        heights=torch.rand(4, 4), origin=flat.origin, upper=flat.heights, lower=flat.heights
    )
    assert simplified(bounded).upper is None
    assert len(simplified(bounded).heights.unique()) == 4


def test_slices_hold_the_motion_with_its_margin():
    terrain = Heightfield(heights=torch.randn(50, 50), origin=torch.zeros(2))
    root = torch.rand(20, 2) * 5 + 6
    cut = slice_around_motion(terrain, root)
    low, high = cut.extent
    assert (low <= root.amin(0) - 1.2 + 0.2).all()
    assert (high >= root.amax(0) + 1.2 - 0.2).all()
    assert (high - low <= root.amax(0) - root.amin(0) + 2.4 + 0.8 + 1e-4).all()
    torch.testing.assert_close(cut.height_at(root), terrain.height_at(root))


def test_local_offset_puts_the_first_frame_over_the_origin():
    terrain = Heightfield(heights=torch.full((8, 8), 2.5), origin=torch.zeros(2))
    root = torch.tensor([[1.0, 2.0, 3.4], [1.5, 2.0, 3.4]])
    offset = local_offset(terrain, root)
    torch.testing.assert_close(root[0] + offset, torch.tensor([0.0, 0.0, 0.9]))
    moved = terrain.translated(offset)
    assert float(moved.height_at(torch.zeros(2))) == pytest.approx(0.0)


def test_random_crops_cover_the_map_evenly_and_remember_where():
    terrain = Heightfield(heights=torch.arange(36.0).view(6, 6), origin=torch.zeros(2))
    rng = np.random.default_rng(0)
    corners = set()
    for _ in range(200):
        crop, (i, j) = random_crop(rng, terrain, (4, 5))
        assert torch.equal(crop.heights, terrain.heights[i : i + 4, j : j + 5])
        corners.add((i, j))
    assert corners == {(i, j) for i in range(3) for j in range(2)}
    with pytest.raises(InputError, match=r"size\[0\]"):
        random_crop(rng, terrain, (7, 5))


def test_padding_adds_ground_and_keeps_places():
    terrain = Heightfield(heights=torch.ones(3, 4), origin=torch.tensor([1.0, 2.0]))
    wide = padded(terrain, 2, -1.0)
    assert wide.shape == (7, 8)
    assert float(wide.height_at(torch.tensor([1.0, 2.0]))) == 1.0
    assert float(wide.height_at(torch.tensor([0.4, 2.0]))) == -1.0
    assert float(wide.heights.sum()) == 12 - (56 - 12)
