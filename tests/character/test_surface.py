"""Surface points: counts of the published sets, positions on the shapes, placement."""

from __future__ import annotations

import math

import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, sole_points, surface_points

COUNTS = [24, 44, 12, 16, 16, 12, 16, 16, 12, 16, 16, 36, 16, 16, 36]


def distance_to_surface(geom, points):
    """Distance of body-frame points to the surface of one geom (own closed forms)."""
    local = rot.quat_rotate_inv(
        torch.tensor(geom.quat).double(), points.double() - torch.tensor(geom.pos).double()
    )
    if geom.kind == "box":
        gap = local.abs() - torch.tensor(geom.size).double()
        return (gap.clamp(min=0).norm(dim=-1) + gap.amax(-1).clamp(max=0)).abs()
    half = geom.size[1] if geom.kind == "capsule" else 0.0
    local[:, 2] -= local[:, 2].clamp(-half, half)
    return (local.norm(dim=-1) - geom.size[0]).abs()


def test_humanoid_has_the_published_number_of_points(person):
    full = surface_points(person, "full")
    assert [s.stop - s.start for s in full.point_ranges] == COUNTS
    assert len(full) == 304
    assert len(surface_points(person, "minimal")) == 42
    assert surface_points(person, "full") is full


def test_every_full_point_lies_on_a_shape_of_its_body(character):
    points = surface_points(character, "full")
    for body in range(character.skeleton.num_bodies):
        mine = points.of_body(body)
        shapes = [g for g in character.geoms if g.body == body]
        nearest = torch.stack([distance_to_surface(g, mine) for g in shapes]).amin(0)
        assert float(nearest.max()) < 1e-6


def test_points_are_symmetric_left_to_right(character):
    """A y-flip of one side's points gives the other side's, in some order."""
    for kind in ("full", "minimal"):
        points = surface_points(character, kind)
        for body, other in enumerate(character.mirror_bodies):
            a = points.of_body(body) * torch.tensor([1.0, -1.0, 1.0])
            assert (
                float(torch.cdist(a.double(), points.of_body(other).double()).amin(-1).max()) < 1e-5
            )


def test_icosahedron_edges_are_equal(person):
    hand = surface_points(person).of_body(person.hands[0])
    assert torch.allclose(hand.norm(dim=-1), torch.full((12,), 0.04), atol=1e-7)
    hand = hand.double()
    distances = torch.cdist(hand, hand) + torch.eye(12)
    edge = 0.04 * 4 / (10 + 2 * 5**0.5) ** 0.5
    assert torch.allclose(distances.amin(-1), torch.full((12,), edge).double(), atol=1e-6)
    assert int((distances < edge + 1e-5).sum()) == 60  # five neighbours each


def test_the_sole_is_the_first_half_of_a_box_foot(person):
    points = surface_points(person)
    sole = sole_points(person)
    for foot in person.feet:
        mine = sole.of_body(foot)
        assert torch.equal(mine, points.of_body(foot)[:18])
        assert torch.allclose(mine[:, 2], torch.tensor(-0.05))
        assert mine[:, 0].max() - mine[:, 0].min() == pytest.approx(0.177, abs=1e-6)
        assert mine[:, 1].max() - mine[:, 1].min() == pytest.approx(0.09, abs=1e-6)


def test_minimal_points_of_a_thigh_divide_its_axis_in_thirds(person):
    thigh = person.skeleton.body_index("right_thigh")
    points = surface_points(person, "minimal").of_body(thigh)
    middle, length = -0.2, 0.32
    assert sorted(points[:, 2].tolist()) == pytest.approx(
        [middle - length / 3, middle + length / 3], abs=1e-6
    )


@pytest.mark.parametrize("kind", ["full", "minimal"])
def test_placement_is_the_rigid_motion_of_each_body(character, kind):
    points = surface_points(character, kind)
    g = torch.Generator().manual_seed(0)
    pos = torch.randn(2, 3, 3, generator=g) * 10
    quat = rot.quat_normalize(torch.randn(2, 3, 4, generator=g))
    dof = 0.5 * torch.randn(2, 3, character.skeleton.num_dofs, generator=g)
    body_pos, body_rot = fk_from_dof(character.skeleton, pos, quat, dof)
    placed = place_points(points, body_pos, body_rot)
    expected = rot.quat_rotate(body_rot[..., points.body, :], points.offset)
    assert placed.shape == (2, 3, len(points), 3)
    assert torch.allclose(placed, expected + body_pos[..., points.body, :], atol=1e-5)


def test_placement_keeps_float32_under_autocast_and_is_differentiable(person):
    points = surface_points(person, "minimal")
    count = person.skeleton.num_bodies
    pos = torch.randn(2, count, 3, requires_grad=True)
    quat = rot.quat_normalize(torch.randn(2, count, 4)).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        placed = place_points(points, pos, quat)
    assert placed.dtype == torch.float32
    assert torch.equal(placed.detach(), place_points(points, pos, quat).detach())
    placed.square().sum().backward()
    assert pos.grad is not None
    assert bool(torch.isfinite(quat.grad).all())


def test_published_points_differ_only_in_the_rings_of_upright_limbs(person):
    full, published = surface_points(person), surface_points(person, "published")
    names = person.skeleton.body_names
    changed = {
        names[b]
        for b in range(len(names))
        if not torch.equal(full.of_body(b), published.of_body(b))
    }
    assert changed == {"right_thigh", "right_shin", "left_thigh", "left_shin"}
    thigh = person.skeleton.body_index("left_thigh")
    radius = published.of_body(thigh)[:, :2].norm(dim=-1)
    assert torch.allclose(radius, torch.full((16,), 0.055), atol=1e-6)
    turned = torch.atan2(published.of_body(thigh)[0, 1], published.of_body(thigh)[0, 0])
    assert float(turned) == pytest.approx(math.acos(-0.32), abs=1e-5)
