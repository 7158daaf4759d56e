"""Heightfields: look-ups, moves, cuts and batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch


def ramp(x: int = 5, y: int = 4, cell: float = 0.4) -> Heightfield:
    """Height 10 i + j in cell (i, j), which tells every cell from every other."""
    heights = 10.0 * torch.arange(x)[:, None] + torch.arange(y)[None]
    return Heightfield(heights=heights, origin=torch.tensor([1.0, -2.0]), cell_size=cell)


def test_lookup_takes_the_nearest_cell_and_extends_the_edge():
    terrain = ramp()
    xy = torch.tensor([[1.0, -2.0], [1.41, -1.59], [1.19, -2.0], [1.21, -2.0], [99.0, -99.0]])
    assert terrain.height_at(xy).tolist() == [0.0, 11.0, 0.0, 10.0, 40.0]
    assert terrain.index_of(xy)[-1].tolist() == [4, 0]


def test_borders_go_to_the_even_cell():
    terrain = Heightfield.flat((4, 4), cell_size=0.5, origin=(0.0, 0.0))
    xy = torch.tensor([[0.25, 0.0], [0.75, 0.0], [1.25, 0.0]])
    assert terrain.index_of(xy)[:, 0].tolist() == [0, 2, 2]


def test_the_ground_reaches_half_a_cell_beyond_the_last_centre():
    terrain = ramp()
    low, high = terrain.extent
    torch.testing.assert_close(low, torch.tensor([0.8, -2.2]))
    torch.testing.assert_close(high, torch.tensor([2.8, -0.6]))
    xy = torch.tensor([[0.81, -2.0], [0.79, -2.0], [2.79, -0.61], [2.79, -0.59]])
    assert terrain.contains(xy).tolist() == [True, False, True, False]


@settings(max_examples=50, deadline=None)
@given(x=st.floats(-5, 5, width=32), y=st.floats(-5, 5, width=32), dz=st.floats(-3, 3, width=32))
def test_moving_terrain_and_point_changes_only_the_height(x, y, dz):
    terrain = ramp(7, 9)
    # Stay off the borders, where rounding decides.
    point = terrain.cell_centers()[3, 4] + torch.tensor([0.1, -0.1])
    moved = terrain.translated((x, y, dz))
    got = moved.height_at(point + torch.tensor([x, y]))
    torch.testing.assert_close(got, terrain.height_at(point) + dz)


def test_mirroring_flips_y_and_undoes_itself():
    terrain = ramp()
    mirrored = terrain.mirrored()
    xy = terrain.cell_centers() + 0.05
    torch.testing.assert_close(
        mirrored.height_at(xy * torch.tensor([1.0, -1.0])), terrain.height_at(xy)
    )
    back = mirrored.mirrored()
    torch.testing.assert_close(back.heights, terrain.heights)
    torch.testing.assert_close(back.origin, terrain.origin)


def test_bounds_follow_the_heights():
    terrain = ramp()
    terrain = Heightfield(
        heights=terrain.heights,
        origin=terrain.origin,
        upper=terrain.heights + 1,
        lower=terrain.heights - 2,
    )
    for changed in (
        terrain.mirrored(),
        terrain.translated((1.0, 2.0, 3.0)),
        terrain.cropped((1.0, -2.0), (1.4, -1.0)),
        terrain.resampled(0.2),
    ):
        assert changed.upper is not None
        assert changed.lower is not None
        torch.testing.assert_close(changed.upper, changed.heights + 1)
        torch.testing.assert_close(changed.lower, changed.heights - 2)


def test_cropping_keeps_centres_and_repeats_the_edge():
    terrain = ramp()
    crop = terrain.cropped((1.05, -1.7), (1.75, -1.5), margin_m=0.0)
    assert crop.heights.tolist() == [[1.0], [11.0], [21.0]]
    torch.testing.assert_close(crop.origin, torch.tensor([1.0, -1.6]))
    wide = terrain.cropped((1.0, -2.0), (1.0, -2.0), margin_m=0.8)
    assert wide.shape == (5, 5)
    torch.testing.assert_close(wide.origin, torch.tensor([0.2, -2.8]))
    assert wide.heights[:, 0].tolist() == [0.0, 0.0, 0.0, 10.0, 20.0]


@pytest.mark.parametrize("cell", [0.2, 0.1, 0.4])
def test_finer_resampling_keeps_the_ground(cell):
    terrain = ramp()
    fine = terrain.resampled(cell)
    xy = torch.rand(500, 2) * torch.tensor([1.9, 1.5]) + torch.tensor([0.85, -2.15])
    far = ((xy - terrain.origin) / 0.4 % 1 - 0.5).abs().amin(1) > 1e-3
    torch.testing.assert_close(fine.height_at(xy)[far], terrain.height_at(xy)[far])
    torch.testing.assert_close(fine.extent[0], terrain.extent[0])
    torch.testing.assert_close(fine.extent[1], terrain.extent[1])


def test_coarser_resampling_takes_the_highest_and_drops_bounds():
    terrain = Heightfield(
        heights=torch.tensor([[0.0, 1.0, 5.0, 2.0], [3.0, 0.0, 1.0, 1.0]]),
        origin=torch.zeros(2),
        cell_size=0.2,
        upper=torch.ones(2, 4),
        lower=torch.zeros(2, 4),
    )
    coarse = terrain.resampled(0.4)
    assert coarse.heights.tolist() == [[3.0, 5.0]]
    assert coarse.upper is None
    torch.testing.assert_close(coarse.origin, torch.tensor([0.1, 0.1]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["heights", "upper", "origin"])
def test_numbers_that_are_not_finite_are_refused_by_name(bad, field):
    data = {"heights": torch.zeros(3, 3), "upper": torch.ones(3, 3), "origin": torch.zeros(2)}
    data[field] = data[field].clone()
    data[field][(1,) * data[field].ndim] = bad
    with pytest.raises(InputError, match=f"mine.{field}"):
        Heightfield(**data).validate("mine")


def test_other_unusable_fields_are_refused():
    with pytest.raises(InputError, match="heights"):
        Heightfield(heights=torch.zeros(3), origin=torch.zeros(2)).validate()
    with pytest.raises(InputError, match="cell_size"):
        Heightfield(heights=torch.zeros(3, 3), origin=torch.zeros(2), cell_size=0.0).validate()
    with pytest.raises(InputError, match="lower"):
        Heightfield(
            heights=torch.zeros(3, 3), origin=torch.zeros(2), lower=torch.zeros(2, 3)
        ).validate()


def test_dict_round_trip():
    terrain = ramp()
    terrain = Heightfield(
        heights=terrain.heights, origin=terrain.origin, confidence=torch.rand(5, 4), cell_size=0.3
    )
    back = Heightfield.from_dict(terrain.to_dict())
    assert back.cell_size == 0.3
    for name in ("heights", "origin", "confidence"):
        torch.testing.assert_close(getattr(back, name), getattr(terrain, name))
    assert back.upper is None
    with pytest.raises(InputError, match="origin"):
        Heightfield.from_dict({"heights": terrain.heights.numpy(), "cell_size": 0.4})


def test_a_batch_looks_up_as_its_members_do():
    terrains = [ramp(5, 4), ramp(2, 7).translated((0.3, 0.1, 1.0)), Heightfield.flat((3, 3))]
    batch = HeightfieldBatch.stack(terrains)
    assert tuple(batch.heights.shape) == (3, 5, 7)
    xy = torch.rand(3, 6, 50, 2) * 8 - 4
    for i, terrain in enumerate(terrains):
        torch.testing.assert_close(batch.height_at(xy)[i], terrain.height_at(xy[i]))
        assert torch.equal(batch.contains(xy)[i], terrain.contains(xy[i]))
        torch.testing.assert_close(batch.get(i).heights, terrain.heights)
    chosen = batch.index_select(torch.tensor([2, 0, 0]))
    torch.testing.assert_close(chosen.height_at(xy)[2], terrains[0].height_at(xy[2]))
    one = HeightfieldBatch.stack(terrains[:1]).expand(3)
    assert one.heights.untyped_storage().nbytes() == terrains[0].heights.numel() * 4
    torch.testing.assert_close(one.height_at(xy)[1], terrains[0].height_at(xy[1]))


def test_a_batch_carries_bounds_only_when_all_members_have_them():
    flat = Heightfield.flat((3, 3))
    bounded = Heightfield(
        heights=flat.heights, origin=flat.origin, upper=flat.heights + 1, lower=flat.heights - 1
    )
    assert HeightfieldBatch.stack([bounded, flat]).upper is None
    upper = HeightfieldBatch.stack([bounded, bounded]).upper
    assert upper is not None
    assert upper.shape == (2, 3, 3)


def test_batches_refuse_mixed_cell_sizes_and_nothing():
    with pytest.raises(InputError, match=r"terrains\[1\].cell_size"):
        HeightfieldBatch.stack([ramp(), ramp(cell=0.2)])
    with pytest.raises(InputError, match="empty"):
        HeightfieldBatch.stack([])
