"""Distances to columns against brute force, finite differences, worked numbers; and their work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from parc_ray.terrain.distance import (
    column_distance,
    outside_distance,
    penetration_depth,
    signed_distance,
)
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch

FUNCTIONS = {"out": outside_distance, "depth": penetration_depth}


def box_distance(point, low, high):
    """Distance in float64 of a point from a solid axis-aligned box, by clamping to it."""
    return np.linalg.norm(point - np.clip(point, low, high), axis=-1)


def brute_force(points, terrain, kind):
    """Nearest of all ground (or air) boxes of the grid, one numpy box at a time, float64."""
    points = points.double().numpy()
    best = np.full(len(points), np.inf)
    half, far = terrain.cell_size / 2, 1e3
    for i in range(terrain.shape[0]):
        for j in range(terrain.shape[1]):
            x, y = terrain.origin.double().numpy() + np.array([i, j]) * terrain.cell_size
            top = float(terrain.heights[i, j])
            z = (-far, top) if kind == "out" else (top, far)
            low, high = np.array([x - half, y - half, z[0]]), np.array([x + half, y + half, z[1]])
            best = np.minimum(best, box_distance(points, low, high))
    return torch.from_numpy(best).float()


def random_terrain(x=9, y=7, cell=0.4, scale=1.5):
    heights = torch.randn(x, y) * scale
    return Heightfield(heights=heights, origin=torch.tensor([-1.2, 0.7]), cell_size=cell)


def points_around(terrain, n=400, beyond=1.0):
    low, high = terrain.extent
    xy = low - beyond + torch.rand(n, 2) * (high - low + 2 * beyond)
    z = torch.rand(n, 1) * 8 - 4
    return torch.cat([xy, z], dim=1)


@pytest.mark.parametrize("kind", ["out", "depth"])
@pytest.mark.parametrize("cell", [0.4, 0.2, 0.15])
def test_exact_search_equals_brute_force(kind, cell):
    terrain = random_terrain(cell=cell)
    points = points_around(terrain)
    batch = HeightfieldBatch.stack([terrain])
    expected = brute_force(points, terrain, kind)
    got = FUNCTIONS[kind](points[None], batch, off_grid="code", exact=True)[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    inside = terrain.contains(points[:, :2])
    free = FUNCTIONS[kind](points[None], batch, off_grid="free", exact=True)[0]
    torch.testing.assert_close(free[inside], expected[inside], atol=1e-5, rtol=0)
    assert (free[~inside] == 0).all()


@pytest.mark.parametrize("kind", ["out", "depth"])
@pytest.mark.parametrize("window", [0, 1, 2, 3])
def test_a_window_is_exact_up_to_its_width_and_an_upper_bound_beyond(kind, window):
    terrain = random_terrain(12, 12)
    points = points_around(terrain, beyond=0.0)
    batch = HeightfieldBatch.stack([terrain])
    expected = brute_force(points, terrain, kind)
    got = FUNCTIONS[kind](points[None], batch, window)[0]
    near = expected < window * terrain.cell_size - 1e-5
    assert window == 0 or (near & (expected > 0)).sum() > 10
    torch.testing.assert_close(got[near], expected[near], atol=1e-5, rtol=0)
    assert (got >= expected - 1e-5).all()


@pytest.mark.parametrize("kind", ["out", "depth"])
def test_extended_edges_equal_a_wider_terrain(kind):
    terrain = random_terrain()
    batch = HeightfieldBatch.stack([terrain])
    low, high = terrain.extent
    wide = terrain.cropped(low, high, margin_m=6.0)
    points = points_around(terrain, beyond=1.5)
    expected = brute_force(points, wide, kind)
    got = FUNCTIONS[kind](points[None], batch, off_grid="extend", exact=True)[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["out", "depth"])
def test_edges_extend_far_beyond_a_small_terrain(kind):
    terrain = random_terrain(3, 2)
    low, high = terrain.extent
    wide = terrain.cropped(low, high, margin_m=14.0)
    points = points_around(terrain, 200, beyond=8.0)
    batch = HeightfieldBatch.stack([terrain])
    got = FUNCTIONS[kind](points[None], batch, off_grid="extend", exact=True)[0]
    expected = brute_force(points, wide, kind)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["out", "depth"])
def test_high_towers_and_deep_pits_are_found_from_afar(kind):
    """One odd cell, many cells away, decides: the widest windows are needed."""
    heights = torch.zeros(41, 41)
    heights[3, 37] = 30.0 if kind == "out" else -30.0
    terrain = Heightfield(heights=heights, origin=torch.zeros(2), cell_size=0.4)
    points = torch.rand(150, 3) * torch.tensor([16.0, 16.0, 20.0])
    points[:, 2] *= 1.0 if kind == "out" else -1.0
    batch = HeightfieldBatch.stack([terrain])
    got = FUNCTIONS[kind](points[None], batch, off_grid="code", exact=True)[0]
    expected = brute_force(points, terrain, kind)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-6)
    assert (got < points[:, 2].abs() - 0.1).sum() > 10


def test_padding_of_a_batch_is_no_ground():
    terrains = [random_terrain(4, 9), random_terrain(8, 3)]
    batch = HeightfieldBatch.stack(terrains)
    points = torch.stack([points_around(t, 200) for t in terrains])
    for mode in ("code", "free", "extend"):
        for kind, function in FUNCTIONS.items():
            together = function(points, batch, off_grid=mode, exact=True)
            for i, terrain in enumerate(terrains):
                alone = function(
                    points[i : i + 1], HeightfieldBatch.stack([terrain]), off_grid=mode, exact=True
                )
                torch.testing.assert_close(together[i : i + 1], alone, msg=f"{mode} {kind}")


def test_worked_numbers():
    terrain = Heightfield.flat((5, 5), height=1.0, origin=(0.0, 0.0))
    batch = HeightfieldBatch.stack([terrain])
    points = torch.tensor([[[0.7, 0.8, 0.2], [0.6, 0.8, 0.2], [0.8, 0.8, 1.3]]])
    torch.testing.assert_close(penetration_depth(points, batch), torch.tensor([[0.8, 0.8, 0.0]]))
    torch.testing.assert_close(outside_distance(points, batch), torch.tensor([[0.0, 0.0, 0.3]]))
    torch.testing.assert_close(signed_distance(points, batch), torch.tensor([[-0.8, -0.8, 0.3]]))


def test_a_wall_is_left_sideways_and_its_edge_at_an_angle():
    heights = torch.zeros(7, 7)
    heights[3, :] = 2.0
    batch = HeightfieldBatch.stack(
        [Heightfield(heights=heights, origin=torch.zeros(2), cell_size=0.4)]
    )
    # The wall stands at 1.0 <= x <= 1.4.
    points = torch.tensor([[[1.1, 1.2, 1.0], [0.9, 1.2, 1.0], [0.7, 1.2, 2.4], [1.3, 1.2, 1.95]]])
    expected = torch.tensor([[-0.1, 0.1, 0.5, -0.05]])
    torch.testing.assert_close(signed_distance(points, batch), expected, atol=1e-6, rtol=0)


def test_off_grid_points_count_as_the_published_code_counts_them():
    batch = HeightfieldBatch.stack([Heightfield.flat((32, 32))])
    edge = 6.4
    points = torch.tensor([[[edge + 0.4, 0.0, 1.0], [edge + 0.3, edge + 0.4, 1.0]]])
    code = penetration_depth(points, batch, off_grid="code")
    torch.testing.assert_close(code, torch.tensor([[0.4, 0.5]]))
    assert (penetration_depth(points, batch, off_grid="free") == 0).all()
    assert (penetration_depth(points, batch, off_grid="extend") == 0).all()
    torch.testing.assert_close(outside_distance(points, batch, off_grid="extend"), torch.ones(1, 2))


@pytest.mark.parametrize("kind", ["out", "depth"])
@pytest.mark.parametrize("mode", ["free", "extend", "code"])
def test_gradient_equals_finite_differences(kind, mode):
    terrain = random_terrain()
    heights = terrain.heights.double()[None].requires_grad_()
    origin = terrain.origin.double()[None]
    beyond = 0.0 if mode == "free" else 0.5
    points = points_around(terrain, 60, beyond=beyond).double()[None].requires_grad_()

    def total(p, h):
        return column_distance(p, h, origin, 0.4, kind=kind, exact=True, off_grid=mode)

    assert float((total(points, heights) > 0).double().mean()) > 0.2
    grad_p, grad_h = torch.autograd.grad(total(points, heights).sum(), (points, heights))
    step = 1e-6
    bad = 0
    for axis in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[axis] = step
        with torch.no_grad():
            slope = (total(points + shift, heights) - total(points - shift, heights)) / (2 * step)
        bad += int(((slope - grad_p[..., axis]).abs() > 1e-5).sum())
    # At ties and at the surface the slope jumps; random points are hardly ever there.
    assert bad <= 1
    for cell in [(3, 3), (0, 0), (8, 6)]:
        shift = torch.zeros_like(heights)
        shift[0, cell[0], cell[1]] = step
        with torch.no_grad():
            slope = (total(points, heights + shift) - total(points, heights - shift)).sum() / (
                2 * step
            )
        assert abs(float(slope - grad_h[0, cell[0], cell[1]])) < 1e-4


def test_gradients_are_unit_vectors_or_zero_and_never_nan():
    terrain = Heightfield.flat((5, 5), origin=(0.0, 0.0))
    batch = HeightfieldBatch.stack([terrain])
    # On the surface, on an internal face, above, below, on a corner, outside the grid.
    points = torch.tensor(
        [[[0.8, 0.8, 0.0], [0.6, 0.8, 0.0], [0.8, 0.8, 1.0], [0.8, 0.8, -0.3], [9.0, 9.0, 0.0]]]
    ).requires_grad_()
    for function in FUNCTIONS.values():
        for mode in ("free", "extend", "code"):
            (grad,) = torch.autograd.grad(
                function(points, batch, off_grid=mode, exact=True).sum(), points
            )
            norm = grad.norm(dim=-1)
            assert ((norm == 0) | ((norm - 1).abs() < 1e-5)).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), dz=st.floats(-5, 5, width=32))
def test_signed_distance_is_continuous_and_moves_with_the_terrain(seed, dz):
    torch.manual_seed(seed)
    terrain = random_terrain(8, 8)
    batch = HeightfieldBatch.stack([terrain])
    points = points_around(terrain, 60, beyond=-0.1)[None]
    value = signed_distance(points, batch, exact=True)
    other = points + torch.randn_like(points) * 0.01
    moved = (other - points).norm(dim=-1)
    inside = terrain.contains(other[..., :2])
    change = (signed_distance(other, batch, exact=True) - value).abs()
    # A distance is 1-Lipschitz, on both sides of the surface.
    assert (change <= moved + 1e-5)[inside].all()
    lifted = HeightfieldBatch.stack([terrain.translated((1.0, -2.0, dz))])
    again = signed_distance(points + torch.tensor([1.0, -2.0, dz]), lifted, exact=True)
    torch.testing.assert_close(again, value, atol=2e-5, rtol=0)


def test_shapes_dtypes_expansion_and_empty_input():
    terrain = random_terrain()
    batch = HeightfieldBatch.stack([terrain]).expand(6)
    points = points_around(terrain, 6 * 4 * 5).view(6, 4, 5, 3)
    value = penetration_depth(points, batch)
    assert value.shape == (6, 4, 5)
    one = penetration_depth(points.view(1, -1, 3), HeightfieldBatch.stack([terrain]))
    torch.testing.assert_close(value.view(1, -1), one)
    assert penetration_depth(points.double(), batch).dtype == torch.float64
    assert penetration_depth(points[:, :0], batch, exact=True).shape == (6, 0, 5)


def test_points_that_are_not_numbers_stay_visible():
    batch = HeightfieldBatch.stack([random_terrain()])
    points = torch.zeros(1, 3, 3)
    points[0, 1, 0] = float("nan")
    points[0, 2, 2] = float("nan")
    for mode in ("free", "extend", "code"):
        value = signed_distance(points, batch, off_grid=mode, exact=True)
        assert value.isnan().tolist() == [[False, True, True]]


def test_negative_windows_are_refused():
    with pytest.raises(ValueError, match="window"):
        penetration_depth(torch.zeros(1, 1, 3), HeightfieldBatch.stack([random_terrain()]), -1)


class Elements(TorchDispatchMode):
    """Counts the elements of all tensors that operations make: work, whatever the machine does."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.returns and func._schema.returns[0].alias_info is None:
            found = out if isinstance(out, tuple | list) else (out,)
            self.made += sum(x.numel() for x in found if isinstance(x, torch.Tensor))
        return out


def test_the_training_loss_looks_at_few_columns():
    """Batch 64, 630 points, 31 x 31 cells of 0.2 m, window 3, both ways.

    Ours makes 270 elements per point, most for the few points that their own column does not
    settle; one distance to each of the 49 columns of every window is 49 times three coordinates
    and several operations.
    """
    heights = torch.randn(64, 31, 31) * 0.5
    origin = torch.tensor([-2.0, -3.0]).expand(64, 2)
    points = (torch.randn(64, 630, 3) * torch.tensor([1.0, 1.0, 0.5])).requires_grad_()
    with Elements() as work:
        depth = column_distance(points, heights, origin, 0.2, kind="depth", window=3)
        depth.square().sum().backward()
    assert work.made < 350 * 64 * 630
