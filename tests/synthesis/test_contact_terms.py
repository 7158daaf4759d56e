from __future__ import annotations

import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.synthesis.constraints import HeldBodies, contact_runs, project_to_surface
from parc_ray.synthesis.contact_terms import (
    BodyPoints,
    Ground,
    column_gap,
    contact_sum,
    nearest_cells,
    nearest_distance,
    penetration_sum,
)
from parc_ray.terrain.distance import outside_distance, penetration_depth
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch


def rough(seed: int, shape=(12, 10)) -> Heightfield:
    generator = torch.Generator().manual_seed(seed)
    heights = torch.randint(-2, 3, shape, generator=generator) * 0.25
    return Heightfield(heights=heights.float(), origin=torch.tensor([-2.0, -1.8]))


@pytest.fixture(scope="module")
def scene(humanoid):
    generator = torch.Generator().manual_seed(0)
    n, t = 3, 5
    pos = torch.rand(n, t, 3, generator=generator) * torch.tensor([3.0, 3.0, 0.8]) - 1.2
    pos[..., 2] += 1.8
    turn = rot.quat_normalize(torch.randn(n, t, 4, generator=generator))
    dof = 0.4 * torch.randn(n, t, humanoid.skeleton.num_dofs, generator=generator)
    batch = HeightfieldBatch.stack([rough(s, (12, 10 + s)) for s in range(n)])
    points = BodyPoints.of(humanoid)
    body_pos, body_rot = fk_from_dof(humanoid.skeleton, pos, turn, dof)
    return batch, points, body_pos, body_rot


def test_sparse_sums_equal_dense_distances(humanoid, scene):
    batch, points, body_pos, body_rot = scene
    mat = rot.quat_to_matrix(body_rot)
    mask = torch.ones(body_pos.shape[:2], dtype=torch.bool)
    mask[1, 3:] = False
    full = surface_points(humanoid, "full")
    place = place_points(full, body_pos, body_rot)
    ground = Ground.of(batch, float(points.reach.max()), 3)
    dense = penetration_depth(place, batch, 3, off_grid="extend").sum(-1)
    expected = (dense * mask).sum(1)
    got = penetration_sum(body_pos, mat, mask, points, ground)
    assert float(expected.min()) > 0.01
    assert torch.allclose(got, expected, atol=1e-4)

    labels = torch.rand(*body_pos.shape[:3], generator=torch.Generator().manual_seed(1))
    out = outside_distance(place, batch, 3, off_grid="extend")
    per_body = torch.stack([out[..., s].amin(-1) for s in full.point_ranges], -1)
    expected = ((per_body * labels).sum(-1) * mask).sum(1)
    got = contact_sum(body_pos, mat, labels, mask, points, ground)
    assert torch.allclose(got, expected, atol=1e-4)
    high = torch.where(labels > 0.5, labels, 0.0)
    floored = contact_sum(body_pos, mat, labels, mask, points, ground, floor=0.5)
    assert torch.allclose(floored, ((per_body * high).sum(-1) * mask).sum(1), atol=1e-4)


@pytest.mark.parametrize("kind", ["out", "depth"])
def test_nearest_column_equals_all_columns(kind):
    terrains = [rough(3), rough(4)]
    batch = HeightfieldBatch.stack(terrains)
    generator = torch.Generator().manual_seed(2)
    p = torch.rand(200, 3, generator=generator) * torch.tensor([3.6, 2.8, 1.6])
    p = p - torch.tensor([1.6, 1.4, 0.8])
    row = torch.arange(200) % 2
    ground = Ground.of(batch, 0.3, 12)
    got = column_gap(p, nearest_cells(p, row, ground, kind), row, batch, kind)
    for k in range(200):
        hf = terrains[k % 2]
        gap = ((p[k, :2] - hf.cell_centers()).abs() - 0.2).clamp(min=0).square().sum(-1)
        rise = p[k, 2] - hf.heights if kind == "out" else hf.heights - p[k, 2]
        best = (gap + rise.clamp(min=0).square()).min().sqrt()
        assert float(got[k]) == pytest.approx(float(best), abs=1e-5)


@pytest.mark.parametrize("kind", ["out", "depth"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_pruned_search_equals_the_dense_one_also_beyond_the_edge(kind, window):
    terrains = [rough(5, (6, 9)), rough(6, (10, 4)), rough(7)]
    batch = HeightfieldBatch.stack(terrains)
    generator = torch.Generator().manual_seed(3)
    p = torch.rand(3, 500, 3, generator=generator) * torch.tensor([6.0, 6.0, 2.4])
    p = p - torch.tensor([3.2, 3.0, 1.2])
    row = torch.arange(3).repeat_interleave(500)
    ground = Ground.of(batch, 0.3, window)
    got = nearest_distance(p.reshape(-1, 3), row, ground, kind)
    dense = outside_distance if kind == "out" else penetration_depth
    expected = dense(p, batch, off_grid="extend", exact=True).reshape(-1)
    near = expected < window * batch.cell_size - 1e-5
    assert int((near & (expected > 0)).sum()) > 300
    assert torch.allclose(got[near], expected[near], atol=1e-5)
    assert bool((got >= expected - 1e-5).all())


def test_gradients_equal_finite_differences(scene):
    batch, points, body_pos, body_rot = scene
    batch = HeightfieldBatch(
        heights=batch.heights.double(),
        origin=batch.origin.double(),
        size=batch.size,
        cell_size=batch.cell_size,
    )
    points = BodyPoints(
        offset=points.offset.double(),
        count=points.count,
        real=points.real,
        reach=points.reach.double(),
    )
    ground = Ground.of(batch, float(points.reach.max()), 2)
    mat = rot.quat_to_matrix(body_rot.double())
    mask = torch.ones(body_pos.shape[:2], dtype=torch.bool)
    labels = torch.ones(body_pos.shape[:3], dtype=torch.float64)
    pos = body_pos.double().clone().requires_grad_()

    def total(x):
        return (
            penetration_sum(x, mat, mask, points, ground)
            + contact_sum(x, mat, labels, mask, points, ground)
        ).sum()

    (grad,) = torch.autograd.grad(total(pos), pos)
    generator = torch.Generator().manual_seed(5)
    good = 0
    for _ in range(12):
        step = torch.randn(pos.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            numeric = (total(pos + 1e-7 * step) - total(pos - 1e-7 * step)) / 2e-7
        good += abs(float(numeric - (grad * step).sum())) < 1e-3 * (1 + abs(float(numeric)))
    assert good >= 11  # a step across a tie is possible


def test_contact_runs_number_consecutive_frames():
    active = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1], dtype=torch.bool)[None, :, None]
    assert contact_runs(active)[0, :, 0].tolist() == [0, 0, -1, 1, -1, -1, 2, 2]


def test_projection_lands_on_the_surface_at_the_nearest_point():
    heights = torch.zeros(5, 5)
    heights[2, 2] = 1.0
    hf = Heightfield(heights=heights, origin=torch.zeros(2))
    ground = Ground.of(HeightfieldBatch.stack([hf]), 0.3, 2)
    points = torch.tensor(
        [[0.8, 0.8, 1.5], [0.4, 0.4, 0.2], [0.7, 0.8, 0.5], [0.55, 0.8, 0.5], [0.4, 0.4, -0.1]]
    )
    out = project_to_surface(points, torch.zeros(5, dtype=torch.long), ground)
    expected = [
        [0.8, 0.8, 1.0],  # above the block
        [0.4, 0.4, 0.0],  # above the floor
        [0.6, 0.8, 0.5],  # inside the block: out through its side
        [0.6, 0.8, 0.5],  # beside the block: onto its side
        [0.4, 0.4, 0.0],  # under the floor
    ]
    assert torch.allclose(out, torch.tensor(expected), atol=1e-6)


def test_held_bodies_of_the_humanoid(humanoid):
    held = HeldBodies.of(humanoid)
    names = [humanoid.skeleton.body_names[b] for b in held.bodies]
    for k, name in enumerate(names):
        assert bool(held.round_[k]) == name.endswith("hand")
        if name.endswith("hand"):
            assert float(held.radius[k]) == pytest.approx(0.04)
        else:
            assert int(held.real[k].sum()) == 18
            assert float(held.radius[k]) == pytest.approx(0.1288, abs=2e-4)
            assert held.centre[k].tolist() == pytest.approx([0.045, 0.0, -0.0225], abs=1e-6)
