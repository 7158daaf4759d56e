"""Terrains as one triangle mesh, looked at by rays from all sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from envs.sims.terrain_mesh import mesh_of
from parc_ray.terrain.heightfield import Heightfield

EXTENSION = 1.5


def rough(shape, seed, cell=0.4, levels=4):
    rng = torch.Generator().manual_seed(seed)
    heights = 0.25 * torch.randint(0, levels, shape, generator=rng).float() - 0.3
    origin = torch.tensor([3.0 * seed, -7.0])
    return Heightfield(heights=heights, origin=origin, cell_size=cell)


TERRAINS = [rough((7, 5), 1), Heightfield.flat((4, 9), height=1.25), rough((12, 12), 2, cell=0.2)]


@pytest.fixture(scope="module")
def mesh():
    return mesh_of(TERRAINS, EXTENSION)


@pytest.fixture(scope="module")
def solid(mesh):
    return mesh.vertices.astype(np.float64)[mesh.triangles.astype(np.int64)]


def points_on(terrain, count, seed, margin):
    low, high = (x.numpy() for x in terrain.extent)
    rng = np.random.default_rng(seed)
    return rng.uniform(low - margin, high + margin, (count, 2))


def hits(solid, origin, direction):
    """Distances (K,) and normals (K, 3) of the triangles (F, 3, 3) that a ray passes through.

    The signed volumes that the ray spans with the three edges have one sign inside.
    """
    origin, direction = np.asarray(origin, dtype=np.float64), np.asarray(direction)
    corners = solid - origin
    turned = np.roll(corners, -1, axis=1)
    volumes = np.cross(corners, turned) @ direction
    inside = (volumes > 0).all(axis=1) | (volumes < 0).all(axis=1)
    a, b, c = corners[inside].swapaxes(0, 1)
    normal = np.cross(b - a, c - a)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    far = (normal * a).sum(1) / (normal @ direction)
    return far[far > 0], normal[far > 0]


def first_hit(solid, origin, direction):
    """Distance and normal of the nearest triangle."""
    far, normal = hits(solid, origin, direction)
    nearest = int(far.argmin())
    return float(far[nearest]), normal[nearest]


@pytest.mark.parametrize("index", range(3))
def test_seen_from_above_it_is_the_terrain_and_its_border_goes_on(mesh, solid, index):
    terrain, offset = TERRAINS[index], mesh.offsets[index]
    for xy in points_on(terrain, 60, index, EXTENSION - 0.01):
        far, normal = first_hit(solid, [*(xy + offset[:2]), 50.0], [0, 0, -1.0])
        want = float(terrain.height_at(torch.tensor(xy, dtype=torch.float32)))
        assert 50.0 - far == pytest.approx(want, abs=1e-4)
        assert normal[2] == pytest.approx(1.0)


def test_walls_stand_where_heights_change_and_face_the_lower_side(mesh, solid):
    """Along a row at half a step's height every ray ends at the first higher column."""
    terrain, offset, seen = TERRAINS[0], mesh.offsets[0], 0
    heights, cell = terrain.heights.numpy(), terrain.cell_size
    origin = terrain.origin.numpy() + offset[:2]
    for axis in (0, 1):
        grid = heights if axis == 0 else heights.T
        for row in range(grid.shape[1]):
            for i in range(grid.shape[0] - 1):
                low, high = sorted((grid[i, row], grid[i + 1, row]))
                if high - low < 0.1:
                    continue
                sign = 1.0 if grid[i + 1, row] > grid[i, row] else -1.0
                start = np.zeros(3)
                start[axis] = origin[axis] + (i if sign > 0 else i + 1) * cell
                start[1 - axis] = origin[1 - axis] + row * cell + 0.03
                start[2] = (low + high) / 2
                ray = np.zeros(3)
                ray[axis] = sign
                far, normal = first_hit(solid, start, ray)
                assert far == pytest.approx(cell / 2, abs=1e-5)
                assert normal[axis] == pytest.approx(-sign)
                seen += 1
    assert seen > 20


def test_nothing_lies_inside_the_ground(mesh, solid):
    """A ray that comes up from below meets nothing but the top: no hidden wall, no second floor."""
    for index, terrain in enumerate(TERRAINS):
        for xy in points_on(terrain, 20, 9, 0.5):
            start = [*(xy + mesh.offsets[index][:2]), -50.0]
            assert len(hits(solid, start, [0, 0, 1.0])[0]) == 1


def test_tiles_are_on_a_square_grid_around_the_origin():
    terrains = [rough((5, 8), seed) for seed in range(7)]
    mesh = mesh_of(terrains, EXTENSION)
    pitch = np.array(mesh.pitch)
    np.testing.assert_allclose(pitch, [5 * 0.4 + 2 * EXTENSION, 8 * 0.4 + 2 * EXTENSION])
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    np.testing.assert_allclose(low[:2], -1.5 * pitch, rtol=1e-6)
    np.testing.assert_allclose(high[:2], 1.5 * pitch, rtol=1e-6)
    middles = [
        o[:2] + t.origin.numpy() + (np.array(t.shape) - 1) * 0.2
        for t, o in zip(terrains, mesh.offsets, strict=True)
    ]
    places = np.array(middles) / pitch
    want = [[k // 3 - 1, k % 3 - 1] for k in range(7)]
    np.testing.assert_allclose(places, want, atol=1e-5)


def test_equal_terrains_share_a_tile_wherever_they_lie():
    one = rough((6, 6), 3)
    moved = one.translated([2.0, -1.0, 0.0])
    raised = one.translated([0.0, 0.0, 0.5])
    mesh = mesh_of([one, moved, raised], EXTENSION)
    assert len(mesh.vertices) == len(mesh_of([one, raised], EXTENSION).vertices)
    apart = mesh.offsets[0] - mesh.offsets[1]
    np.testing.assert_allclose(apart, [*(moved.origin - one.origin).tolist(), 0.0], atol=1e-5)
