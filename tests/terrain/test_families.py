"""Obstacle families: what each is made of, in metres, at any cell size; mixes; difficulty."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.ndimage import label

from parc_ray.config_io import from_plain, to_plain
from parc_ray.errors import InputError
from parc_ray.terrain.difficulty import terrain_difficulty
from parc_ray.terrain.family_specs import (
    BeamsSpec,
    FileSpec,
    GapsSpec,
    RubbleSpec,
    RuinsSpec,
    SlopesSpec,
    StonesSpec,
    WallsSpec,
)
from parc_ray.terrain.generators import (
    TERRAINS,
    TerrainSpec,
    drawn_spec,
    make_terrain,
    make_terrains,
)

OBSTACLES = ["slopes", "rubble", "stones", "gaps", "beams", "walls", "ruins"]
GRADED = sorted(set(TERRAINS) - {"flat", "file"})


def runs(line):
    """Lengths of the runs of equal values of a line of cells, and their values."""
    cuts = np.flatnonzero(np.diff(line)) + 1
    parts = np.split(line, cuts)
    return [(len(p), float(p[0])) for p in parts]


def profile(terrain):
    """Heights along the axis that a terrain of strips changes along."""
    heights = terrain.heights.numpy()
    across = (heights == heights[:, :1]).all()
    assert across or (heights == heights[:1]).all()
    return heights[:, 0] if across else heights[0]


@pytest.mark.parametrize("kind", OBSTACLES)
@pytest.mark.parametrize(("cells", "size"), [((1, 1), 0.4), ((3, 40), 0.15), ((20, 7), 1.5)])
def test_families_make_ground_of_any_size(kind, cells, size):
    for terrain in make_terrains(TerrainSpec(kind=kind, cells=cells, cell_size=size), 5, 0):
        assert terrain.shape == cells
        assert float(terrain.heights.abs().max()) < 12.0


@pytest.mark.parametrize("kind", GRADED)
@pytest.mark.parametrize(("cells", "size"), [((32, 32), 0.4), ((32, 32), 0.2)])
def test_measured_difficulty_rises_with_the_asked_one(kind, cells, size):
    spec = TerrainSpec(kind=kind, cells=cells, cell_size=size)
    measured = []
    for asked in (0.0, 0.25, 0.5, 1.0):
        terrains = make_terrains(replace(spec, difficulty=asked), 6, seed=11)
        measured.append(float(np.mean([terrain_difficulty(t) for t in terrains])))
    assert measured[0] == 0.0
    assert all(b > a + 0.005 for a, b in pairwise(measured)), measured


@pytest.mark.parametrize("kind", OBSTACLES)
def test_families_look_alike_at_half_the_cell_size(kind):
    """Sizes are metres: the share of low and of high ground does not depend on the cells."""
    coarse = make_terrains(TerrainSpec(kind=kind, cells=(40, 40), cell_size=0.3), 12, 3)
    fine = make_terrains(TerrainSpec(kind=kind, cells=(80, 80), cell_size=0.15), 12, 3)
    for quantile in (0.1, 0.5, 0.9):
        a, b = (np.mean([np.quantile(t.heights, quantile) for t in ts]) for ts in (coarse, fine))
        assert a == pytest.approx(b, abs=0.25)


def test_gaps_have_the_asked_widths_depths_and_land():
    gaps = GapsSpec(width_m=(1.0, 1.0), land_m=(2.0, 2.0), depth_m=(1.5, 1.5), level_m=(0.1, 0.2))
    spec = TerrainSpec(kind="gaps", cells=(200, 200), cell_size=0.1, gaps=gaps)
    for terrain in make_terrains(spec, 4, 0):
        inner = runs(profile(terrain))[1:-1]
        assert len(inner) > 8
        for length, height in inner:
            sunk = height < 0.0
            assert height == pytest.approx(-1.5) if sunk else 0.1 <= height <= 0.2
            assert length * 0.1 == pytest.approx(1.0 if sunk else 2.0, abs=0.11)


def test_difficulty_widens_gaps_about_their_middles():
    spec = TerrainSpec(kind="gaps", cells=(150, 150), cell_size=0.1)
    sunk = []
    for asked in (0.3, 0.6, 1.0):
        line = profile(make_terrain(replace(spec, difficulty=asked), np.random.default_rng(4)))
        sunk.append(line < -1.0 * asked)
    assert (sunk[0] <= sunk[1]).all()
    assert (sunk[1] <= sunk[2]).all()
    assert 0 < sunk[0].sum() < sunk[1].sum() < sunk[2].sum()


def test_walls_are_to_vault_or_to_climb():
    walls = WallsSpec(thickness_m=(0.5, 0.5), space_m=(2.0, 2.5), climb_share=0.5)
    spec = TerrainSpec(kind="walls", cells=(200, 200), cell_size=0.1, walls=walls)
    heights = []
    for terrain in make_terrains(spec, 6, 0):
        for length, height in runs(profile(terrain))[1:-1]:
            if height > 0.0:
                heights.append(height)
                assert length * 0.1 == pytest.approx(0.5, abs=0.11)
            else:
                assert height == 0.0
                assert 1.85 < length * 0.1 < 2.65
    vaults = [h for h in heights if 0.4 <= h <= 1.0]
    climbs = [h for h in heights if 1.2 <= h <= 1.9]
    assert len(vaults) + len(climbs) == len(heights)
    assert 0.3 < len(climbs) / len(heights) < 0.7


@pytest.mark.parametrize("size", [0.1, 0.4, 1.0])
def test_beams_bridge_every_pit(size):
    """Of the ground above -0.5 m one part reaches from end to end."""
    spec = TerrainSpec(kind="beams", cells=(24, 24), cell_size=size)
    for seed in range(12):
        heights = make_terrain(spec, np.random.default_rng(seed)).heights.numpy()
        parts = np.asarray(label(heights > -0.5)[0])
        sides = [(parts[0], parts[-1]), (parts[:, 0], parts[:, -1])]
        assert any(set(a[a > 0]) & set(b[b > 0]) for a, b in sides), seed


def test_stones_stand_in_a_pit_and_shrink_with_difficulty():
    spec = TerrainSpec(kind="stones", cells=(120, 120), cell_size=0.1)
    shares = []
    for asked in (0.2, 0.6, 1.0):
        terrain = make_terrain(replace(spec, difficulty=asked), np.random.default_rng(2))
        top = (terrain.heights > -0.5 * asked).numpy()
        shares.append(top.mean())
    assert shares[0] > shares[1] > shares[2] > 0.1
    parts, count = label(top)
    areas = np.bincount(parts.ravel())[1:] * 0.01
    assert count > 20
    assert np.quantile(areas, 0.95) < 1.05
    assert len(np.unique(terrain.heights[~torch.from_numpy(top)])) == 1
    coarse = TerrainSpec(kind="stones", cells=(24, 24), cell_size=0.4, difficulty=1.5)
    assert float((make_terrain(coarse, np.random.default_rng(2)).heights > -1).sum()) > 40


def test_slopes_are_as_steep_as_asked():
    steep = SlopesSpec(angle_rad=(0.4, 0.4), ramp_m=(3.0, 3.0), flat_m=(2.0, 2.0))
    spec = TerrainSpec(kind="slopes", cells=(128, 128), cell_size=0.1, slopes=steep)
    for terrain in make_terrains(spec, 4, 1):
        gx, gy = np.gradient(terrain.heights.double().numpy(), 0.1)
        slope = np.hypot(gx, gy)
        assert np.quantile(slope, 0.9) == pytest.approx(np.tan(0.4), rel=0.02)
        assert slope.max() < np.tan(0.4) * 1.02
        assert 0.25 < (slope < 0.01).mean() < 0.55


def test_rubble_is_as_dense_and_as_high_as_asked():
    flat = RubbleSpec(side_m=(0.5, 0.5), height_m=(0.2, 0.4), tilt_rad=(0.0, 0.0))
    spec = TerrainSpec(kind="rubble", cells=(150, 150), cell_size=0.1, rubble=flat)
    terrains = make_terrains(spec, 6, 1)
    covered = np.mean([float((t.heights > 0).float().mean()) for t in terrains])
    assert covered == pytest.approx(1 - np.exp(-0.7 * 0.25), rel=0.12)  # places are independent
    for terrain in terrains:
        built = terrain.heights[terrain.heights > 0]
        assert 0.2 <= float(built.min()) <= float(built.max()) <= 0.4
    tilted = replace(spec, rubble=replace(flat, tilt_rad=(0.3, 0.3)))
    tops = torch.cat([t.heights[t.heights > 0] for t in make_terrains(tilted, 3, 1)])
    assert 0.4 < float(tops.max()) <= 0.4 + np.tan(0.3) * 0.25 * np.sqrt(2) + 1e-6


def test_ruins_have_walls_doors_and_floors():
    bare = RuinsSpec(rubble_per_m2=0.0, level_m=(0.1, 0.1), wall_m=(2.0, 2.0))
    one = replace(bare, rooms_per_m2=0.0, room_m=(4.0, 4.0), door_m=(1.2, 1.2))
    spec = TerrainSpec(kind="ruins", cells=(60, 60), cell_size=0.2, ruins=one)
    seen = 0
    for terrain in make_terrains(spec, 20, 0):
        heights = terrain.heights.numpy()
        room = heights != 0.0
        if room[0].any() or room[-1].any() or room[:, 0].any() or room[:, -1].any():
            continue
        seen += 1
        assert room.sum() * 0.04 == pytest.approx(16.0, rel=0.11)
        assert heights.max() <= 2.1 + 1e-6
        wall = heights > 0.1 + 1e-6
        assert 0.1 < wall.sum() / room.sum() < 0.45
        # Floor and surroundings are joined by the door at least.
        _, parts = label(~wall)
        assert parts == 1
    assert seen >= 4


def test_mixes_draw_families_by_weight():
    spec = TerrainSpec(kind="mixed", cells=(8, 8), mix=("flat", "walls"), mix_weights=(3.0, 1.0))
    level = [bool((t.heights == 0).all()) for t in make_terrains(spec, 200, 0)]
    assert 0.65 < np.mean(level) < 0.85
    one = replace(spec, mix=("gaps",), mix_weights=())
    rng = np.random.default_rng(5)
    rng.choice(1, p=[1.0])
    alone = TERRAINS["gaps"](rng, replace(one, kind="gaps"))
    assert torch.equal(make_terrain(one, np.random.default_rng(5)).heights, alone.heights)
    whole = TerrainSpec(kind="mixed", cells=(8, 8), difficulty_spread=0.5)
    for seed in range(20):
        own = drawn_spec(whole, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        drawn_spec(whole, rng)
        direct = TERRAINS[own.kind](rng, own).heights * own.difficulty
        assert own.kind in whole.mix
        assert torch.equal(make_terrain(whole, np.random.default_rng(seed)).heights, direct)
    assert set(TerrainSpec().mix) == set(GRADED) - {"slice", "mixed"}
    for bad in ("mountains", "mixed"):
        with pytest.raises(InputError, match=rf"terrain.mix: '{bad}'"):
            make_terrain(replace(one, mix=(bad,)), rng)


def test_terrains_may_draw_their_own_difficulty():
    spec = TerrainSpec(kind="walls", cells=(16, 16), difficulty=0.8, difficulty_spread=0.5)
    walls = WallsSpec(vault_m=(1.0, 1.0), climb_share=0.0)
    tops = [float(t.heights.max()) for t in make_terrains(replace(spec, walls=walls), 60, 0)]
    assert 0.4 <= min(tops) < 0.45
    assert 0.75 < max(tops) <= 0.8


def test_specs_survive_yaml_and_refuse_bad_ranges_by_name():
    spec = TerrainSpec(kind="mixed", gaps=GapsSpec(width_m=(0.1, 0.2)), mix=("gaps", "flat"))
    assert from_plain(TerrainSpec, to_plain(spec)) == spec
    for cls, values in (
        (SlopesSpec, {"angle_rad": (0.1, 1.6)}),
        (SlopesSpec, {"ramp_m": (0.0, 1.0)}),
        (RubbleSpec, {"density_per_m2": -1.0}),
        (RubbleSpec, {"tilt_rad": (0.0, 2.0)}),
        (StonesSpec, {"gap_m": (-0.1, 1.0)}),
        (GapsSpec, {"width_m": (2.0, 1.0)}),
        (GapsSpec, {"land_m": (0.0, 1.0)}),
        (BeamsSpec, {"depth_m": (1.0, float("nan"))}),
        (WallsSpec, {"climb_share": 1.5}),
        (RuinsSpec, {"thickness_m": float("inf")}),
        (FileSpec, {"min_reachable": 1.1}),
    ):
        name = cls.__name__.removesuffix("Spec").lower()
        with pytest.raises(InputError, match=rf"terrain\.{name}\.{next(iter(values))}: "):
            cls(**values)
    for values in (
        {"mix": ()},
        {"mix_weights": (1.0,)},
        {"mix_weights": (0.0,) * 10},
        {"difficulty_spread": 1.5},
    ):
        with pytest.raises(InputError, match=rf"terrain\.{next(iter(values))}: "):
            TerrainSpec(**values)
