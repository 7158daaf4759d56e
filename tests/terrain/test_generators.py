"""Terrain families: determinism, PARC's figures, knobs, and the fixed test set."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.terrain import generators
from parc_ray.terrain.families.slices import city_map
from parc_ray.terrain.generators import (
    TERRAINS,
    TerrainSpec,
    fixed_test_terrains,
    make_terrain,
    make_terrains,
    random_endpoints,
)
from parc_ray.terrain.heightfield import Heightfield


@pytest.mark.parametrize("kind", sorted(set(TERRAINS) - {"file"}))  # see test_files.py
@pytest.mark.parametrize("cells", [(16, 16), (10, 23)])
def test_terrain_is_a_function_of_spec_and_seed(kind, cells):
    spec = TerrainSpec(kind=kind, cells=cells)
    first, again = make_terrains(spec, 4, seed=5), make_terrains(spec, 2, seed=5)
    for a, b in zip(first, again, strict=False):
        assert torch.equal(a.heights, b.heights)
    assert first[0].shape == cells
    assert first[0].heights.dtype == torch.float32
    low, high = first[0].extent
    torch.testing.assert_close(low, -high)
    if kind != "flat":
        others = make_terrains(spec, 4, seed=6)
        assert any(
            not torch.equal(a.heights, b.heights) for a, b in zip(first, others, strict=True)
        )
        assert any(not torch.equal(first[0].heights, t.heights) for t in first[1:])


@pytest.mark.parametrize("kind", ["boxes", "paths", "stairs", "slice"])
def test_difficulty_scales_the_heights(kind):
    spec = TerrainSpec(kind=kind)
    full = make_terrains(spec, 3, seed=1)
    half = make_terrains(replace(spec, difficulty=0.5), 3, seed=1)
    none = make_terrains(replace(spec, difficulty=0.0), 3, seed=1)
    for a, b, c in zip(full, half, none, strict=True):
        torch.testing.assert_close(b.heights, a.heights * 0.5)
        assert (c.heights == 0).all()


def test_boxes_have_parcs_statistics():
    terrains = make_terrains(TerrainSpec(), 200, seed=0)
    heights = torch.stack([t.heights for t in terrains])
    assert heights.min() >= -2.0
    assert heights.max() <= 2.0
    # measured with the published code: about 8 distinct heights, 15 % of the cells stay at 0.
    distinct = np.mean([len(t.heights.unique()) for t in terrains])
    assert 7.0 < distinct < 11.0
    assert 0.10 < float((heights == 0).float().mean()) < 0.22


def test_one_box_is_a_rectangle_of_the_asked_size():
    spec = TerrainSpec(cells=(60, 60), box_count=1, box_side_m=(2.0, 4.0), box_height_m=(1.0, 1.5))
    seen = 0
    for terrain in make_terrains(spec, 20, seed=2):
        cells = (terrain.heights > 0).nonzero()
        low, high = cells.amin(0), cells.amax(0)
        if bool((low > 0).all() and (high < 59).all()):
            seen += 1
            sides = high - low + 1
            assert len(cells) == int(sides.prod())
            assert ((sides >= 4) & (sides <= 11)).all()
    assert seen > 5


def test_turned_boxes_keep_their_area():
    spec = TerrainSpec(
        cells=(80, 80),
        cell_size=0.1,
        box_count=1,
        box_side_m=(2.0, 2.0),
        box_height_m=(1.0, 1.0),
        box_angle_rad=(0.0, 6.28),
    )
    areas = []
    for terrain in make_terrains(spec, 40, seed=3):
        built = terrain.heights > 0
        border = built[0].any() | built[-1].any() | built[:, 0].any() | built[:, -1].any()
        if not bool(border):
            areas.append(float(built.sum()) * 0.01)
    assert len(areas) > 5
    assert np.mean(areas) == pytest.approx(4.0, rel=0.03)


def test_walks_are_connected_and_above_the_floor():
    spec = TerrainSpec(kind="paths", cells=(32, 32), path_count=1)
    from scipy.ndimage import label

    for terrain in make_terrains(spec, 10, seed=4):
        values = terrain.heights.unique().tolist()
        assert len(values) <= 2
        assert values[0] == -2.0 or len(values) == 1
        assert -1.6 <= values[-1] <= 2.0
        _, parts = label((terrain.heights > -2.0).numpy(), structure=np.ones((3, 3)))
        assert parts == 1
        # Widened by one cell on all sides: no strip is narrower than two cells (at the border).
        assert (terrain.heights > -2.0).sum() >= 9


def test_walks_do_not_depend_on_resolution():
    """The same draws on cells half as wide cover nearly the same ground."""
    spec = TerrainSpec(kind="paths", cells=(32, 32), path_count=10)
    fine = replace(spec, cells=(64, 64), cell_size=0.2)
    same = []
    for seed in range(5):
        a = make_terrain(spec, np.random.default_rng(seed)).resampled(0.2)
        b = make_terrain(fine, np.random.default_rng(seed))
        same.append(float((a.heights == b.heights).float().mean()))
    assert np.mean(same) > 0.7


def test_stairs_rise_by_the_asked_step():
    spec = TerrainSpec(
        kind="stairs",
        cells=(40, 40),
        stair_count=1,
        stair_step_m=(0.2, 0.2),
        stair_start_m=(1.0, 1.0),
    )
    for terrain in make_terrains(spec, 10, seed=5):
        levels = terrain.heights.unique()
        levels = levels[levels > 0]
        steps = (levels - 1.0) / 0.2
        torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
        assert len(levels) >= 2 or float(levels.min()) == pytest.approx(1.0)


def test_slices_are_cut_from_one_map():
    spec = TerrainSpec(kind="slice", cells=(16, 16), map_seed=3)
    whole = city_map((100, 100), 0.4, 3)
    windows = whole.heights.unfold(0, 16, 1).unfold(1, 16, 1)
    for terrain in make_terrains(spec, 5, seed=0):
        assert (windows == terrain.heights).all(-1).all(-1).any()
    assert whole.shape == (100, 100)
    assert len(whole.heights.unique()) > 100
    assert -6.0 < float(whole.heights.min()) < -1.0
    assert 1.0 < float(whole.heights.max()) < 8.0
    assert not torch.equal(whole.heights, city_map((100, 100), 0.4, 4).heights)
    with pytest.raises(InputError, match="map_cells"):
        make_terrain(replace(spec, cells=(101, 16)), np.random.default_rng(0))


def test_a_new_family_needs_only_a_line_in_the_registry(monkeypatch):
    def wave(rng, spec):
        base = Heightfield.flat(spec.cells, cell_size=spec.cell_size)
        return replace(base, heights=base.cell_centers()[..., 0].sin() * spec.extra["amplitude"])

    monkeypatch.setitem(generators.TERRAINS, "wave", wave)
    terrain = make_terrain(
        TerrainSpec(kind="wave", extra={"amplitude": 0.5}), np.random.default_rng(0)
    )
    assert 0.4 < float(terrain.heights.max()) <= 0.5
    monkeypatch.setitem(
        generators.TERRAINS,
        "broken",
        lambda rng, spec: replace(Heightfield.flat((2, 2)), heights=torch.full((2, 2), torch.nan)),
    )
    with pytest.raises(InputError, match="broken"):
        make_terrain(TerrainSpec(kind="broken"), np.random.default_rng(0))


def test_unknown_kinds_and_bad_numbers_are_refused_by_name():
    with pytest.raises(InputError, match="beams, boxes, file, flat"):
        make_terrain(TerrainSpec(kind="mountain"), np.random.default_rng(0))
    for bad in (
        {"cells": (0, 4)},
        {"box_count": -1},
        {"cell_size": 0.0},
        {"box_height_m": (1.0, -1.0)},
        {"box_side_m": (0.0, 1.0)},
        {"difficulty": float("nan")},
        {"path_floor_m": float("inf")},
        {"stair_step_m": (0.1, float("inf"))},
    ):
        with pytest.raises(InputError, match=f"terrain.{next(iter(bad))}"):
            TerrainSpec(**bad)


def test_endpoints_lie_near_the_border_and_far_apart():
    terrain = Heightfield.flat((32, 20))
    pairs = random_endpoints(np.random.default_rng(0), terrain, pairs=50)
    assert pairs.shape == (50, 2, 2)
    rim_i, rim_j = np.isin(pairs[..., 0], [1, 2, 29, 30]), np.isin(pairs[..., 1], [1, 2, 17, 18])
    assert (rim_i | rim_j).all()
    distance = np.linalg.norm((pairs[:, 0] - pairs[:, 1]) * 0.4, axis=-1)
    assert distance.min() >= 5.0
    for cells in ((4, 4), (2, 3), (1, 1), (5, 40)):
        few = random_endpoints(np.random.default_rng(0), Heightfield.flat(cells))
        assert few.shape == (10, 2, 2)


def digest(terrains):
    sha = hashlib.sha256()
    for t in terrains:
        sha.update(t.terrain.heights.numpy().tobytes())
        sha.update(t.endpoints.astype("<i8").tobytes())
    return sha.hexdigest()[:16]


def test_the_fixed_set_is_fixed():
    """A change here needs a new TEST_SET_VERSION: published figures refer to these terrains."""
    full = fixed_test_terrains(8)
    assert [t.name for t in full[:2]] == ["PATH_TERRAIN_0", "PATH_TERRAIN_1"]
    assert full[0].terrain.shape == (32, 32)
    assert digest(fixed_test_terrains(3)) == digest(full[:3])
    assert digest(fixed_test_terrains(3, seed=1)) != digest(full[:3])
    small = fixed_test_terrains(8, cells=(16, 16))
    assert small[0].terrain.shape == (16, 16)
    assert (digest(full), digest(small)) == ("b5e8368f3f81855a", "95fc5f191808d00d")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("boxes", "7c03b89b3b23d562"),
        ("paths", "a2d901f55521fae2"),
        ("stairs", "d0d075c1f8e953c6"),
        ("slice", "45362a2c2de9c00f"),
    ],
)
def test_parcs_families_are_fixed(kind, expected):
    """Seeds of stored runs name these terrains; a change here needs a line in the changelog."""
    odd = {"cells": (23, 40), "cell_size": 0.25, "difficulty": 0.7, "box_angle_rad": (0, 3)}
    sha = hashlib.sha256()
    for spec in (TerrainSpec(kind=kind), TerrainSpec(kind=kind, **odd)):
        for terrain in make_terrains(spec, 5, 3):
            sha.update(terrain.heights.numpy().tobytes())
    assert sha.hexdigest()[:16] == expected
