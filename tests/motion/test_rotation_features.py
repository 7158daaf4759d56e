from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from parc_ray.character.kinematics import dof_to_joint_rot
from parc_ray.character.rotations import quat_angle, quat_from_exp, quat_positive
from parc_ray.motion.features import FeatureLayout, pack, project, unpack
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.rotation_features import (
    decode_dof,
    decode_joint_rot,
    encode_joints,
    encode_root,
    joints_size,
)


def random_frames(character, count: int = 9) -> MotionFrames:
    d, b = character.skeleton.num_dofs, character.skeleton.num_bodies
    return MotionFrames(
        root_pos=torch.randn(count, 3),
        root_rot=quat_positive(quat_from_exp(torch.randn(count, 3))),
        dof=0.9 * (2 * torch.rand(count, d) - 1),
        contacts=torch.rand(count, b),
    )


def test_sizes_by_hand(humanoid):
    """8 spherical joints and 4 hinges: 28 dofs, or 6 x 8 + 4 = 52 numbers; 3 more for the root."""
    kinds = humanoid.skeleton.joint_kinds
    assert (kinds.count("spherical"), kinds.count("hinge")) == (8, 4)
    assert joints_size(humanoid.skeleton, "exp") == 28
    assert joints_size(humanoid.skeleton, "6d") == 52
    assert FeatureLayout(humanoid.skeleton).size == 91
    assert FeatureLayout(humanoid.skeleton, "6d").size == 91 + 24 + 3


def test_six_numbers_are_two_axes_of_the_rotation():
    """Oracle: the first and third columns of scipy's matrices."""
    turns = Rotation.random(20, rng=np.random.default_rng(3))
    six = encode_root(torch.from_numpy(turns.as_quat()), "6d")
    matrix = torch.from_numpy(turns.as_matrix())
    torch.testing.assert_close(six, torch.cat([matrix[..., 0], matrix[..., 2]], dim=-1))


def test_round_trip(character):
    frames, skeleton = random_frames(character), character.skeleton
    values = encode_joints(skeleton, frames.dof, "6d")
    torch.testing.assert_close(decode_dof(skeleton, values, "6d"), frames.dof, rtol=1e-4, atol=1e-5)
    turns = quat_angle(
        decode_joint_rot(skeleton, values, "6d"), dof_to_joint_rot(skeleton, frames.dof)
    )
    assert float(turns.max()) < 2e-3
    layout = FeatureLayout(skeleton, "6d")
    x = pack(skeleton, frames, form="6d")
    assert x.shape[-1] == layout.size
    back, positions = unpack(layout, x)
    torch.testing.assert_close(back.dof, frames.dof, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(back.root_rot, frames.root_rot, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(project(skeleton, layout, x), x, rtol=1e-4, atol=1e-4)
    assert positions.shape[-2] == skeleton.num_joints


def test_six_numbers_do_not_jump_at_half_a_turn():
    """1 mrad before and after pi: exponential maps are 2 pi apart, six numbers 2 mrad."""
    angles = torch.tensor([math.pi - 1e-3, math.pi + 1e-3], dtype=torch.float64)
    quats = quat_from_exp(angles[:, None] * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    exp, six = encode_root(quats, "exp"), encode_root(quats, "6d")
    assert float((exp[0] - exp[1]).norm()) == pytest.approx(2 * math.pi, abs=3e-3)
    assert float((six[0] - six[1]).norm()) == pytest.approx(2e-3, rel=1e-3)


def test_project_makes_rotations_of_any_numbers(humanoid):
    layout = FeatureLayout(humanoid.skeleton, "6d")
    x = torch.randn(3, 5, layout.size)
    six = project(humanoid.skeleton, layout, x)[..., layout.root_rot]
    torch.testing.assert_close(six[..., :3].norm(dim=-1), torch.ones(3, 5))
    torch.testing.assert_close(
        (six[..., :3] * six[..., 3:]).sum(-1), torch.zeros(3, 5), rtol=0, atol=1e-6
    )


def test_gradients_are_finite_at_the_identity(humanoid):
    skeleton = humanoid.skeleton
    values = encode_joints(skeleton, torch.zeros(1, skeleton.num_dofs), "6d").requires_grad_()
    (gradient,) = torch.autograd.grad(decode_joint_rot(skeleton, values, "6d").sum(), values)
    assert torch.isfinite(gradient).all()
    assert float(gradient.abs().sum()) > 0
