"""Rotations against scipy, at the awkward places and in both precisions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation, Slerp

from parc_ray.character import rotations as rot

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}
both = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def random_rotations(
    count: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, Rotation]:
    reference = Rotation.random(count, random_state=np.random.RandomState(seed))
    quat = rot.quat_positive(torch.tensor(reference.as_quat(), dtype=dtype))
    return quat, reference


def same_rotation(q: torch.Tensor, reference: Rotation, tolerance: float) -> None:
    error = (torch.as_tensor(reference.as_matrix()) - rot.quat_to_matrix(q).double()).abs().max()
    assert float(error) < tolerance


@both
def test_products_and_rotated_vectors_agree_with_scipy(dtype):
    a, ref_a = random_rotations(200, dtype, 1)
    b, ref_b = random_rotations(200, dtype, 2)
    v = torch.randn(200, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    tolerance = 4 * TOLERANCE[dtype]
    same_rotation(rot.quat_mul(a, b), ref_a * ref_b, tolerance)
    same_rotation(rot.quat_conj(a), ref_a.inv(), tolerance)
    expected = torch.tensor(ref_a.apply(v.numpy()), dtype=dtype)
    assert torch.allclose(rot.quat_rotate(a, v), expected, atol=tolerance)
    assert torch.allclose(rot.quat_rotate_inv(a, expected), v, atol=tolerance)


@both
def test_matrices_agree_with_scipy_both_ways(dtype):
    q, reference = random_rotations(500, dtype)
    expected = torch.tensor(reference.as_matrix(), dtype=dtype)
    assert torch.allclose(rot.quat_to_matrix(q), expected, atol=TOLERANCE[dtype])
    assert torch.allclose(rot.quat_from_matrix(expected), q, atol=4 * TOLERANCE[dtype])


def test_matrix_to_quaternion_at_half_turns():
    axes = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.8, 0], [0, -0.6, 0.8]]).double()
    q = rot.quat_from_axis_angle(axes, torch.full((5,), math.pi, dtype=torch.float64))
    back = rot.quat_from_matrix(rot.quat_to_matrix(q))
    assert torch.allclose(rot.quat_angle(q, back), torch.zeros(5, dtype=torch.float64), atol=1e-9)


@both
def test_exponential_map_agrees_with_scipy(dtype):
    q, reference = random_rotations(500, dtype)
    rotvec = torch.tensor(reference.as_rotvec(), dtype=dtype)
    assert torch.allclose(rot.quat_to_exp(q), rotvec, atol=10 * TOLERANCE[dtype])
    assert torch.allclose(rot.quat_positive(rot.quat_from_exp(rotvec)), q, atol=TOLERANCE[dtype])


@both
@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-7, 3e-4, 1.1e-3, 0.1, 3.0, math.pi - 1e-4])
def test_exponential_map_round_trip_at_all_scales(dtype, angle):
    axis = torch.tensor([0.48, -0.6, 0.64], dtype=dtype)
    back = rot.quat_to_exp(rot.quat_from_exp(axis * angle))
    assert torch.allclose(back, axis * angle, atol=4 * TOLERANCE[dtype], rtol=1e-6)


def test_a_half_turn_keeps_its_axis_up_to_sign():
    v = math.pi * torch.tensor([0.0, -0.6, 0.8], dtype=torch.float64)
    back = rot.quat_to_exp(rot.quat_from_exp(v))
    assert float(torch.minimum((back - v).norm(), (back + v).norm())) < 1e-9


def test_angles_beyond_pi_are_wrapped():
    v = torch.tensor([0.0, 0.0, 2 * math.pi - 0.5], dtype=torch.float64)
    assert torch.allclose(
        rot.quat_to_exp(rot.quat_from_exp(v)), torch.tensor([0.0, 0, -0.5]).double()
    )


@both
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-5, 1e-3, 1.0, math.pi, 5.0])
def test_gradients_are_finite_everywhere(dtype, scale):
    v = (scale * torch.tensor([0.6, 0.0, -0.8], dtype=dtype)).requires_grad_()
    q = rot.quat_from_exp(v)
    identity = torch.tensor([0.0, 0, 0, 1], dtype=dtype)
    total = (
        rot.quat_to_exp(q).sum()
        + rot.quat_angle(q, identity)
        + rot.slerp(identity, q, torch.tensor(0.3, dtype=dtype)).sum()
        + rot.quat_from_matrix(rot.quat_to_matrix(q)).sum()
        + rot.quat_normalize(q).sum()
        + rot.quat_from_6d(rot.quat_to_6d(q)).sum()
    )
    (gradient,) = torch.autograd.grad(total, v)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("scale", [0.0, 1e-4, 9e-4, 1.1e-3, 0.7])
def test_gradients_match_finite_differences(scale):
    v = (scale * torch.tensor([0.48, -0.6, 0.64], dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(rot.quat_from_exp, (v,), atol=1e-6)
    assert torch.autograd.gradcheck(
        lambda x: rot.quat_to_exp(rot.quat_from_exp(x)), (v,), atol=1e-6
    )


@both
def test_six_dimensional_form_is_x_and_z_axis_and_inverts(dtype):
    q, reference = random_rotations(200, dtype)
    matrix = torch.tensor(reference.as_matrix(), dtype=dtype)
    six = rot.quat_to_6d(q)
    assert torch.allclose(
        six, torch.cat((matrix[..., 0], matrix[..., 2]), -1), atol=TOLERANCE[dtype]
    )
    assert torch.allclose(rot.quat_from_6d(3.0 * six), q, atol=10 * TOLERANCE[dtype])


@both
def test_slerp_agrees_with_scipy_and_takes_the_short_way(dtype):
    q, reference = random_rotations(40, dtype)
    for i in range(0, 40, 2):
        expected = Slerp([0, 1], reference[i : i + 2])([0.0, 0.25, 0.9, 1.0])
        t = torch.tensor([0.0, 0.25, 0.9, 1.0], dtype=dtype)
        ours = rot.slerp(q[i].expand(4, 4), -q[i + 1].expand(4, 4), t)
        same_rotation(ours, expected, 20 * TOLERANCE[dtype])


def test_slerp_between_nearly_equal_rotations_is_linear_in_angle():
    q0 = torch.tensor([0.0, 0, 0, 1])
    for angle in (0.0, 1e-6, 5e-4, 9e-4, 2.1e-3, 1e-2):
        q1 = rot.yaw_quat(torch.tensor(angle))
        middle = rot.quat_to_exp(rot.slerp(q0, q1, torch.tensor(0.25)))[2]
        assert float(middle) == pytest.approx(0.25 * angle, abs=2e-7)


@both
def test_geodesic_angle_is_scipys_magnitude(dtype):
    a, ref_a = random_rotations(300, dtype, 3)
    b, ref_b = random_rotations(300, dtype, 4)
    expected = torch.tensor((ref_a * ref_b.inv()).magnitude(), dtype=dtype)
    assert torch.allclose(rot.quat_angle(a, b), expected, atol=10 * TOLERANCE[dtype])
    assert torch.allclose(rot.quat_angle(a, -b), expected, atol=10 * TOLERANCE[dtype])


def test_heading_is_the_direction_of_the_x_axis():
    q, _ = random_rotations(300, torch.float64)
    x = rot.quat_rotate(q, torch.tensor([1.0, 0, 0], dtype=torch.float64))
    heading = rot.heading_angle(q)
    assert torch.allclose(heading, torch.atan2(x[..., 1], x[..., 0]))
    turned = rot.quat_mul(rot.quat_conj(rot.heading_quat(q)), q)
    assert float(rot.heading_angle(turned).abs().max()) < 1e-12


def test_angular_velocity_of_a_constant_spin():
    spin = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    start, _ = random_rotations(1, torch.float64)
    end = rot.quat_mul(rot.quat_from_exp(spin * 0.05), start)
    assert torch.allclose(rot.angular_velocity_w(start, end, 0.05)[0], spin)


@given(st.floats(-50, 50, allow_nan=False))
def test_wrapped_angle_is_equivalent_and_in_range(angle):
    wrapped = float(rot.wrap_angle(torch.tensor(angle, dtype=torch.float64)))
    assert -math.pi <= wrapped <= math.pi
    assert math.cos(wrapped) == pytest.approx(math.cos(angle), abs=1e-9)
    assert math.sin(wrapped) == pytest.approx(math.sin(angle), abs=1e-9)


@settings(max_examples=50)
@given(st.lists(st.floats(-4, 4, allow_nan=False), min_size=4, max_size=4))
def test_normalising_is_idempotent_and_positive_keeps_the_rotation(values):
    q = rot.quat_normalize(torch.tensor(values, dtype=torch.float64))
    assert float(q.norm()) == pytest.approx(1.0, abs=1e-12)
    assert torch.allclose(rot.quat_normalize(q), q)
    assert float(rot.quat_positive(q)[3]) >= 0
    assert torch.allclose(rot.quat_to_matrix(rot.quat_positive(q)), rot.quat_to_matrix(q))


def test_plane_rotation_agrees_with_yaw():
    v = torch.tensor([[1.0, 2.0], [-0.5, 0.1]])
    angle = torch.tensor([0.7, -2.0])
    full = rot.quat_rotate(rot.yaw_quat(angle), torch.cat((v, torch.zeros(2, 1)), -1))
    assert torch.allclose(rot.rotate_xy(v, angle), full[:, :2], atol=1e-6)
