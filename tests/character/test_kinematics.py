"""Kinematics of both characters against MuJoCo, which never touches our code."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import (
    dof_to_joint_rot,
    finite_velocities,
    fk_from_dof,
    joint_rot_to_dof,
)


def random_pose(character, dtype, seed, count=1):
    g = torch.Generator().manual_seed(seed)
    skeleton = character.skeleton
    low, high = skeleton.dof_limits.double().T
    dof = low + (high - low) * torch.rand(count, skeleton.num_dofs, generator=g).double()
    pos = 3.0 * torch.randn(count, 3, generator=g).double()
    quat = rot.quat_normalize(torch.randn(count, 4, generator=g).double())
    return pos.to(dtype), quat.to(dtype), dof.to(dtype)


def mujoco_qpos(character, pos, quat, dof) -> np.ndarray:
    """Our state as MuJoCo's: wxyz, ball joints as quaternions, bodies in the same order."""
    skeleton = character.skeleton
    values = [*pos.tolist(), *quat[[3, 0, 1, 2]].tolist()]
    for kind, dofs in zip(skeleton.joint_kinds, skeleton.dof_slices, strict=True):
        if kind == "spherical":
            vector = dof[dofs].double().numpy()
            angle = float(np.linalg.norm(vector))
            out = np.zeros(4)
            mujoco.mju_axisAngle2Quat(out, vector / max(angle, 1e-30), angle)
            values += out.tolist()
        elif kind == "hinge":
            values += dof[dofs].tolist()
    return np.array(values)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_forward_kinematics_agrees_with_mujoco(character, dtype, tolerance):
    model = mujoco.MjModel.from_xml_string(character.mjcf_xml)
    data = mujoco.MjData(model)
    pos, quat, dof = random_pose(character, dtype, seed=5, count=25)
    body_pos, body_rot = fk_from_dof(character.skeleton, pos, quat, dof)
    for i in range(25):
        data.qpos[:] = mujoco_qpos(character, pos[i], quat[i], dof[i])
        mujoco.mj_kinematics(model, data)
        assert np.abs(data.xpos[1:] - body_pos[i].numpy()).max() < tolerance
        matrix = rot.quat_to_matrix(body_rot[i]).numpy().reshape(-1, 9)
        assert np.abs(data.xmat[1:] - matrix).max() < tolerance


def test_body_and_joint_order_is_mujocos(character):
    model = mujoco.MjModel.from_xml_string(character.mjcf_xml)
    assert tuple(model.body(i + 1).name for i in range(model.nbody - 1)) == (
        character.skeleton.body_names
    )
    assert model.nv == character.skeleton.num_dofs + 6
    assert [int(p) - 1 for p in model.body_parentid[1:]] == list(character.skeleton.parents)


def test_dofs_survive_the_round_trip_through_rotations(character):
    _, _, dof = random_pose(character, torch.float64, seed=1, count=50)
    scale = torch.where(dof.abs() > 1.7, 1.7 / dof.abs().clamp(min=1.7), 1.0)
    dof = dof * scale  # keep exponential maps below pi in norm
    joint_rot = dof_to_joint_rot(character.skeleton, dof)
    assert joint_rot.shape == (50, character.skeleton.num_joints, 4)
    assert torch.allclose(joint_rot_to_dof(character.skeleton, joint_rot), dof, atol=1e-12)


def test_hinge_angles_keep_their_sign_beyond_a_quarter_turn(person):
    skeleton = person.skeleton
    dof = torch.zeros(2, skeleton.num_dofs)
    left_elbow = skeleton.dof_names.index("left_elbow")
    dof[:, left_elbow] = torch.tensor([-2.7, 2.7])
    back = joint_rot_to_dof(skeleton, dof_to_joint_rot(skeleton, dof))
    assert torch.allclose(back, dof, atol=1e-6)


def test_fixed_joints_stay_at_the_identity(person):
    hand = person.skeleton.body_index("right_hand")
    joint_rot = dof_to_joint_rot(person.skeleton, torch.randn(4, person.skeleton.num_dofs))
    assert torch.equal(joint_rot[:, hand - 1], torch.tensor([[0.0, 0, 0, 1]]).expand(4, 4))


def test_any_leading_shape_gives_the_same_numbers(character):
    pos, quat, dof = random_pose(character, torch.float32, seed=2, count=12)
    flat = fk_from_dof(character.skeleton, pos, quat, dof)
    deep = fk_from_dof(
        character.skeleton, pos.view(2, 3, 2, 3), quat.view(2, 3, 2, 4), dof.view(2, 3, 2, -1)
    )
    assert torch.equal(deep[0].view(12, -1, 3), flat[0])
    assert torch.equal(deep[1].view(12, -1, 4), flat[1])


def test_gradients_at_the_rest_pose_are_finite_and_right(character):
    skeleton = character.skeleton
    pos = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    turn = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    dof = torch.zeros(1, skeleton.num_dofs, dtype=torch.float64, requires_grad=True)

    def bodies(p, r, d):
        return fk_from_dof(skeleton, p, rot.quat_from_exp(r), d)[0]

    assert torch.autograd.gradcheck(bodies, (pos, turn, dof), atol=1e-6)


def test_velocities_agree_with_mujocos_differentiation(character):
    model = mujoco.MjModel.from_xml_string(character.mjcf_xml)
    pos, quat, dof = random_pose(character, torch.float64, seed=3, count=2)
    pos[1] = pos[0] + 0.01
    quat[1] = rot.quat_mul(quat[0], rot.quat_from_exp(torch.tensor([0.02, -0.01, 0.03]).double()))
    dof[1] = dof[0] + 0.02
    lin, ang, dof_vel = finite_velocities(character.skeleton, pos, quat, dof, fps=30.0)
    expected = np.zeros(model.nv)
    start, end = (mujoco_qpos(character, pos[i], quat[i], dof[i]) for i in (0, 1))
    mujoco.mj_differentiatePos(model, expected, 1 / 30, start, end)
    assert np.allclose(lin[0], expected[:3], atol=1e-9)
    body_frame = rot.quat_rotate_inv(quat[0], ang[0])  # MuJoCo's free joint spins in body axes
    assert np.allclose(body_frame, expected[3:6], atol=1e-9)
    assert np.allclose(dof_vel[0], expected[6:], atol=1e-9)
    assert torch.equal(lin[1], lin[0])
    assert torch.equal(dof_vel[1], dof_vel[0])
