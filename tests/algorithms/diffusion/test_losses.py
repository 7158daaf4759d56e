from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.batch import local_terrain
from algorithms.diffusion.config import LossConfig
from algorithms.diffusion.losses import (
    LOSS_TERMS,
    decode_pose,
    penetration_term,
    pose_terms,
    target_term,
    weigh_terms,
)
from parc_ray.character.surface import SurfacePoints
from parc_ray.motion.features import FeatureLayout, pack
from parc_ray.motion.rotation_features import RotationForm
from parc_ray.terrain.local_grid import GridSpec
from tests.algorithms.diffusion.fakes import walking

DT = 1 / 30


@pytest.fixture
def features(humanoid):
    """(2, 15, F) of two swinging walks."""
    walks = [walking(humanoid, 15, 0.5 + i, 0.3 * i) for i in range(2)]
    return torch.stack([pack(humanoid.skeleton, w) for w in walks])


def test_terms_are_the_weights_of_the_config():
    names = {f.name for f in dataclasses.fields(LossConfig)}
    assert set(LOSS_TERMS) <= names


def test_truth_costs_nothing(humanoid, features):
    pose = decode_pose(humanoid.skeleton, features)
    for name, value in pose_terms(pose, pose, LossConfig(), DT).items():
        assert float(value.max()) < 1e-7, name


def test_a_shifted_window(humanoid, features):
    """Everything moved by 0.1 m along x: positions err by 0.01 m^2 each, nothing else does."""
    skeleton, layout = humanoid.skeleton, FeatureLayout(humanoid.skeleton)
    shift = torch.zeros(features.shape[-1])
    shift[layout.root_pos][0] = 0.1
    shift[layout.joint_pos][::3] = 0.1
    truth = decode_pose(skeleton, features)
    terms = pose_terms(decode_pose(skeleton, features + shift), truth, LossConfig(), DT)
    frames, bodies = 15, skeleton.num_bodies
    expected = {
        "root_pos": frames * 0.01,
        "body_pos": frames * (bodies - 1) * 0.01,
        "fk_pos": frames * bodies * 0.01,
    }
    for name, value in terms.items():
        wanted = torch.full((2,), expected.get(name, 0.0))
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-4, msg=name)


def test_one_wrong_frame(humanoid, features):
    """Frame 5 of a contact off by 0.5, a root position off by 0.3 m, a hinge by 0.2 rad."""
    skeleton, layout = humanoid.skeleton, FeatureLayout(humanoid.skeleton)
    elbow = skeleton.dof_slices[skeleton.body_index("right_lower_arm")].start
    wrong = features.clone()
    wrong[:, 5, layout.contacts.start] += 0.5
    wrong[:, 5, layout.root_pos.start + 1] += 0.3
    wrong[:, 5, layout.dof.start + elbow] += 0.2
    truth = decode_pose(skeleton, features)
    terms = pose_terms(decode_pose(skeleton, wrong), truth, LossConfig(), DT)
    expected = {
        "contacts": 0.25,
        "root_pos": 0.09,
        "root_vel": 2 * (0.3 / DT) ** 2,
        "joint_rot": 0.04,
        "joint_vel": 2 * (0.2 / DT) ** 2,
        "root_rot": 0.0,
        "root_ang_vel": 0.0,
        "body_pos": 0.0,
        "fk_rot": 2 * 0.04,
    }
    for name, wanted in expected.items():
        value = torch.full((2,), wanted)
        torch.testing.assert_close(terms[name], value, rtol=2e-3, atol=1e-4, msg=name)
    torch.testing.assert_close(terms["consistency"], terms["fk_pos"] - 0.09, rtol=1e-3, atol=1e-4)


def test_terms_of_weight_zero_are_left_out(humanoid, features):
    pose = decode_pose(humanoid.skeleton, features)
    config = LossConfig(body_vel=0.0, fk_rot=0.0)
    assert {"body_vel", "fk_rot"}.isdisjoint(pose_terms(pose, pose, config, DT))


def test_gradients_are_finite_at_zero_angles(humanoid):
    """All angles exactly zero, in prediction and truth: the usual place of NaN gradients."""
    layout = FeatureLayout(humanoid.skeleton)
    x = torch.zeros(2, 15, layout.size, requires_grad=True)
    pose = decode_pose(humanoid.skeleton, x)
    truth = decode_pose(humanoid.skeleton, torch.zeros(2, 15, layout.size))
    terms = pose_terms(pose, truth, LossConfig(), DT)
    sum(v.sum() for v in terms.values()).backward()
    assert torch.isfinite(x.grad).all()


def one_point(body: int, num_bodies: int) -> SurfacePoints:
    return SurfacePoints(torch.tensor([body]), torch.zeros(1, 3), num_bodies)


@pytest.mark.parametrize(
    ("form", "expected"), [("half_squared", 15 * 0.5 * 0.04), ("absolute", 15 * 0.2)]
)
def test_penetration_of_one_point(humanoid, form, expected):
    """The root 0.2 m under level ground, in all 15 frames."""
    layout = FeatureLayout(humanoid.skeleton)
    x = torch.zeros(1, 15, layout.size)
    x[..., layout.root_pos.start + 2] = -0.2
    x.requires_grad_()
    pose = decode_pose(humanoid.skeleton, x)
    grid = GridSpec()
    ground = local_terrain(torch.zeros(1, *grid.shape), grid, 3.0)
    config = LossConfig(penetration_form=form)
    points = one_point(0, humanoid.skeleton.num_bodies)
    value = penetration_term(pose, points, ground, config)
    torch.testing.assert_close(value, torch.tensor([expected]), rtol=1e-5, atol=1e-6)
    value.sum().backward()
    slope = x.grad[..., layout.root_pos.start + 2]
    wanted = -0.2 if form == "half_squared" else -1.0
    torch.testing.assert_close(slope, torch.full_like(slope, wanted), rtol=1e-5, atol=1e-6)


def test_points_beyond_the_grid_cost_nothing(humanoid):
    layout = FeatureLayout(humanoid.skeleton)
    x = torch.zeros(1, 15, layout.size)
    x[..., layout.root_pos.start] = 5.0
    x[..., layout.root_pos.start + 2] = -0.2
    pose, grid = decode_pose(humanoid.skeleton, x), GridSpec()
    ground = local_terrain(torch.zeros(1, *grid.shape), grid, 3.0)
    points = one_point(0, humanoid.skeleton.num_bodies)
    assert float(penetration_term(pose, points, ground, LossConfig())) == 0.0


def test_target_term():
    """Moves of 0.05 m forward, 0.3 m forward, 0.2 m back, against a unit direction along x."""
    root = torch.zeros(4, 15, 3)
    root[:, :2, 0] = 1.0
    root[:, 2:, 0] = 1.0 + torch.tensor([0.05, 0.3, -0.2, 0.3])[:, None]
    direction = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 0.0]])
    value = target_term(root, direction, reference=1, reach=0.1)
    torch.testing.assert_close(value, torch.tensor([-0.05, -0.1, 0.2, 0.0]), rtol=0, atol=1e-6)


def test_foreign_terrain_is_scored_by_geometry_only():
    terms = {"root_pos": torch.tensor([2.0, 4.0]), "penetration": torch.tensor([0.1, 0.3])}
    ood = torch.tensor([False, True])
    total, shares = weigh_terms(terms, LossConfig(), ood, torch.ones(2))
    assert float(shares["root_pos"]) == pytest.approx(1.0 * 2.0 / 2)
    assert float(shares["penetration"]) == pytest.approx(15.0 * 0.4 / 2)
    assert float(total) == pytest.approx(1.0 + 3.0)


def test_terms_do_not_depend_on_the_form_of_rotations(humanoid):
    """The same two windows as exponential maps and as six numbers cost the same."""
    skeleton = humanoid.skeleton
    forms: tuple[RotationForm, RotationForm] = ("exp", "6d")
    first, second = (
        [
            decode_pose(
                skeleton, pack(skeleton, walking(humanoid, 15, speed, 0.2), form=form), form
            )
            for speed in (0.5, 1.5)
        ]
        for form in forms
    )
    poses = [[_batched(p) for p in pair] for pair in (first, second)]
    terms = [pose_terms(pair[0], pair[1], LossConfig(), DT) for pair in poses]
    for name, value in terms[0].items():
        torch.testing.assert_close(terms[1][name], value, rtol=1e-3, atol=1e-4, msg=name)


def _batched(pose):
    values = {f.name: getattr(pose, f.name)[None] for f in dataclasses.fields(pose)}
    return dataclasses.replace(pose, **values)
