"""Maps on disk, mending of real ground, and crops of maps as a family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.terrain.family_specs import FileSpec
from parc_ray.terrain.files import TerrainMap, content_hash, load_map, save_map
from parc_ray.terrain.generators import TerrainSpec, make_terrain, make_terrains
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.mending import fill_holes, largest_hole_m, reachable_cells


def some_map(shape=(30, 20), cell_size=0.4):
    heights = torch.arange(float(np.prod(shape))).reshape(shape) / 100
    base = Heightfield.flat(shape, cell_size=cell_size)
    known = torch.ones(shape)
    known[3, 4] = 0.0
    reachable = np.ones(shape, dtype=bool)
    reachable[20:] = False
    return TerrainMap(terrain=replace(base, heights=heights, confidence=known), reachable=reachable)


def test_maps_come_back_as_they_were(tmp_path):
    made = some_map()
    digest = save_map(tmp_path / "a.npz", made)
    held = load_map(tmp_path / "a.npz")
    assert torch.equal(held.terrain.heights, made.terrain.heights)
    assert torch.equal(held.terrain.origin, made.terrain.origin)
    assert held.terrain.confidence is not None
    assert torch.equal(held.terrain.confidence, made.terrain.confidence)
    assert held.terrain.cell_size == 0.4
    assert (held.reachable == made.reachable).all()
    assert digest == content_hash(tmp_path / "a.npz") == save_map(tmp_path / "b.npz", made)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_coarser_cells_are_reachable_where_all_of_theirs_are():
    made = some_map((8, 8))
    made.reachable[:] = True
    made.reachable[2, 5] = False
    coarse = made.resampled(0.8)
    assert coarse.reachable.shape == (4, 4)
    assert np.argwhere(~coarse.reachable).tolist() == [[1, 2]]
    assert coarse.terrain.confidence is not None
    assert float(coarse.terrain.confidence[1, 2]) == 0.0
    assert float(coarse.terrain.heights[0, 0]) == pytest.approx(0.09)


def test_files_that_are_no_maps_are_refused_in_one_line(tmp_path):
    np.save(tmp_path / "array.npz", np.zeros(3))
    (tmp_path / "array.npz.npy").rename(tmp_path / "array.npz")
    np.savez(tmp_path / "other.npz", heights=np.zeros((2, 2)))
    np.savez(tmp_path / "pickled.npz", heights=np.array([{}]), format=np.int64(1))
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(
        tmp_path / "mask.npz",
        heights=np.zeros((2, 2)),
        origin=np.zeros(2),
        cell_size=0.4,
        reachable=np.ones((3, 2), bool),
        format=1,
    )
    save_map(tmp_path / "whole.npz", some_map())
    half = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "half.npz").write_bytes(half[: len(half) // 2])
    for name in ("array", "other", "pickled", "text", "mask", "half", "missing"):
        with pytest.raises(InputError, match=rf"{name}\.npz: .*parc terrain") as caught:
            load_map(tmp_path / f"{name}.npz")
        assert "\n" not in str(caught.value)


def test_nearest_filling_takes_the_nearest_known_height():
    heights = np.full((5, 6), np.nan)
    heights[0, 0], heights[4, 5] = 1.0, 7.0
    filled = fill_holes(heights, "nearest")
    for i in range(5):
        for j in range(6):
            near, far = np.hypot(i, j), np.hypot(4 - i, 5 - j)
            if abs(near - far) > 1e-9:
                assert filled[i, j] == (1.0 if near < far else 7.0)
    assert np.isnan(heights).sum() == 28
    with pytest.raises(InputError, match="no cell has a height"):
        fill_holes(np.full((2, 2), np.nan), "nearest")


def test_a_membrane_continues_planes_and_is_the_mean_of_its_neighbours():
    x, y = np.meshgrid(np.arange(20.0), np.arange(15.0), indexing="ij")
    plane = 1000.0 + 0.3 * x - 0.2 * y
    holed = plane.copy()
    holed[4:9, 3:11] = np.nan
    holed[12, 12] = np.nan
    np.testing.assert_allclose(fill_holes(holed, "laplace"), plane, atol=1e-5)
    rough = np.random.default_rng(0).normal(size=(20, 15))
    rough[4:9, 3:11] = np.nan
    filled = fill_holes(rough, "laplace")
    mean = (filled[3:8, 3:11] + filled[5:10, 3:11] + filled[4:9, 2:10] + filled[4:9, 4:12]) / 4
    np.testing.assert_allclose(filled[4:9, 3:11], mean, atol=1e-5)
    rough[:, 12:] = np.nan  # a hole at the border: the border is free
    assert np.isfinite(fill_holes(rough, "laplace")).all()


def test_the_largest_part_that_steps_connect_is_reachable():
    heights = np.zeros((9, 9))
    heights[:, 4] = 4.0  # a wall in two
    assert reachable_cells(heights, 2.1).sum() == 36
    heights[8, 4] = 1.5  # a way over it
    assert reachable_cells(heights, 2.1).sum() == 73
    heights = np.zeros((5, 5))
    heights[2, 2] = -4.0
    mask = reachable_cells(heights, 2.1)
    assert np.argwhere(~mask).tolist() == [[2, 2]]
    heights[2, 2], heights[1, 1] = -4.0, -2.0  # by the diagonal, in steps of 2
    assert reachable_cells(heights, 2.1).all()


def test_reachable_cells_equal_a_flood():
    rng = np.random.default_rng(3)
    heights = rng.normal(size=(12, 10)) * 1.5
    mask = reachable_cells(heights, 0.6)
    start = tuple(np.argwhere(mask)[0])
    seen, stack = {start}, [start]
    while stack:
        i, j = stack.pop()
        for a in range(max(i - 1, 0), min(i + 2, 12)):
            for b in range(max(j - 1, 0), min(j + 2, 10)):
                if (a, b) not in seen and abs(heights[a, b] - heights[i, j]) <= 0.6:
                    seen.add((a, b))
                    stack.append((a, b))
    assert seen == {(int(i), int(j)) for i, j in np.argwhere(mask)}


def test_the_largest_hole_is_told_in_metres():
    hole = np.zeros((10, 10), dtype=bool)
    assert largest_hole_m(hole, 0.5) == 0.0
    hole[0, 0], hole[4:8, 4:8] = True, True
    assert largest_hole_m(hole, 0.5) == pytest.approx(2.0)


@pytest.fixture
def path(tmp_path):
    save_map(tmp_path / "map.npz", some_map())
    return tmp_path / "map.npz"


def test_crops_of_a_map_are_a_family(path):
    whole = load_map(path)
    spec = TerrainSpec(kind="file", cells=(8, 9), file=FileSpec(path=str(path), min_reachable=1.0))
    firsts = set()
    for crop in make_terrains(spec, 30, 0):
        assert crop.shape == (8, 9)
        corner = np.argwhere(whole.terrain.heights.numpy() == float(crop.heights[0, 0]))[0]
        i, j = (int(v) for v in corner)
        assert torch.equal(crop.heights, whole.terrain.heights[i : i + 8, j : j + 9])
        assert crop.confidence is not None
        assert torch.equal(crop.confidence, whole.terrain.confidence[i : i + 8, j : j + 9])
        assert i <= 12  # rows from 20 on cannot be reached
        firsts.add((i, j))
    assert len(firsts) > 20
    again = make_terrains(spec, 30, 0)
    assert torch.equal(again[3].heights, make_terrains(spec, 4, 0)[3].heights)
    half = make_terrain(replace(spec, difficulty=0.5), np.random.default_rng(1))
    full = make_terrain(spec, np.random.default_rng(1))
    torch.testing.assert_close(half.heights, full.heights / 2)


def test_a_map_is_cut_at_the_cells_that_are_asked_for(path):
    spec = TerrainSpec(kind="file", cells=(6, 6), cell_size=0.8, file=FileSpec(path=str(path)))
    crop = make_terrain(spec, np.random.default_rng(0))
    assert crop.cell_size == 0.8
    coarse = load_map(path).terrain.resampled(0.8).heights
    windows = coarse.unfold(0, 6, 1).unfold(1, 6, 1)
    assert (windows == crop.heights).all(-1).all(-1).any()


def test_maps_that_do_not_fit_are_refused_by_name(path, tmp_path):
    rng = np.random.default_rng(0)
    spec = TerrainSpec(kind="file", cells=(8, 8), file=FileSpec(path=str(path)))
    for changed, name in (
        (replace(spec, file=FileSpec()), "terrain.file.path"),
        (replace(spec, file=FileSpec(path=str(tmp_path / "none.npz"))), "terrain.file.path"),
        (replace(spec, cells=(31, 8)), "terrain.cells"),
        (replace(spec, file=replace(spec.file, sha256="0" * 64)), "terrain.file.sha256"),
        (replace(spec, cells=(29, 8), file=replace(spec.file, min_reachable=0.9)), "min_reachable"),
    ):
        with pytest.raises(InputError, match=name):
            make_terrain(changed, rng)
    right = replace(spec, file=replace(spec.file, sha256=content_hash(path)))
    assert make_terrain(right, rng).shape == (8, 8)


def test_a_changed_map_is_read_again(path):
    spec = TerrainSpec(kind="file", cells=(8, 8), file=FileSpec(path=str(path)))
    before = make_terrain(spec, np.random.default_rng(0))
    made = some_map()
    taller = replace(made.terrain, heights=made.terrain.heights + 5.0)
    save_map(path, TerrainMap(terrain=taller, reachable=made.reachable))
    after = make_terrain(spec, np.random.default_rng(0))
    torch.testing.assert_close(after.heights, before.heights + 5.0)
