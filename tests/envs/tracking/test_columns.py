"""Kernels on columns against the project's rotation algebra and kinematics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from envs.tracking import columns as col
from parc_ray.character import rotations as rot
from parc_ray.character.character import load_character
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof
from parc_ray.character.targets import compose_residual
from tests.envs.helpers import WADDLER, random_state


def quats(count: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, 4, generator=rng), dim=-1)


def cols(x: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.numpy().T)


def rows(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.T.copy())


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 2e-6) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-5)


def test_algebra_agrees_with_the_rotations_module():
    a, b, v = quats(50), quats(50, 1), torch.randn(50, 3)
    close(rows(col.product(cols(a), cols(b))), rot.quat_mul(a, b))
    close(rows(col.rotate(cols(a), cols(v))), rot.quat_rotate(a, v))
    close(rows(col.from_exp(cols(v))), rot.quat_from_exp(v))
    close(rows(col.to_exp(cols(a))), rot.quat_to_exp(a))
    close(rows(col.six(cols(a))), rot.quat_to_6d(a))
    t = torch.rand(50)
    close(rows(col.slerp(cols(a), cols(b), t.numpy())), rot.slerp(a, b, t), 1e-5)
    close(col.chord_angle(a, b), rot.quat_angle(a, b), 5e-6)


def test_small_and_equal_rotations():
    q = quats(9)
    assert col.chord_angle(q, q).tolist() == [0.0] * 9
    assert col.chord_angle(q, -q).tolist() == [0.0] * 9
    zero = np.zeros((3, 2), np.float32)
    assert col.from_exp(zero).tolist() == [[0, 0]] * 3 + [[1, 1]]
    assert col.to_exp(col.from_exp(zero)).tolist() == zero.tolist()
    tiny = torch.tensor([[1e-5, -2e-5, 3e-5]])
    close(rows(col.to_exp(col.from_exp(cols(tiny)))), tiny, 1e-9)
    close(rows(col.slerp(cols(q), cols(q), np.full(9, 0.3, np.float32))), rot.quat_positive(q))


@pytest.mark.parametrize("which", ["humanoid", "waddler"])
def test_kinematics_agree_for_both_characters(which, humanoid):
    character = humanoid if which == "humanoid" else load_character(WADDLER)
    skeleton, state = character.skeleton, random_state(character, 20, seed=3)
    posing = col.Posing(skeleton)
    joints = posing.joints(state.dof_pos)
    close(posing.by_joint(joints), dof_to_joint_rot(skeleton, state.dof_pos))
    expected, _ = fk_from_dof(skeleton, state.root_pos, state.root_rot, state.dof_pos)
    close(posing.place(state.root_pos, state.root_rot, joints), expected)
    ordered = np.ascontiguousarray(posing.by_joint(joints).numpy().transpose(2, 1, 0))
    assert np.array_equal(posing.slots(ordered), joints)
    close(rows(posing.dofs(ordered)), state.dof_pos)
    residual = 0.3 * random_state(character, 20, seed=4).dof_pos
    joint_rot = dof_to_joint_rot(skeleton, state.dof_pos)
    close(
        posing.turned(state.dof_pos, joint_rot, residual),
        compose_residual(skeleton, state.dof_pos, residual),
    )


def test_a_result_does_not_depend_on_its_neighbours(humanoid):
    state = random_state(humanoid, 37, seed=5)
    posing = col.Posing(humanoid.skeleton)
    together = posing.place(state.root_pos, state.root_rot, posing.joints(state.dof_pos))
    for count in (1, 2, 5, 16):
        part = state.index(slice(count))
        alone = posing.place(part.root_pos, part.root_rot, posing.joints(part.dof_pos))
        assert torch.equal(alone, together[:count])
