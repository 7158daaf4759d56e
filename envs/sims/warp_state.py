"""Conversion between the project's conventions and MuJoCo's coordinates, in torch on any device.

The same mapping as `envs.sims.mujoco_state`, which is NumPy in float64; this one is float32 and
reads and writes the simulator's own arrays. N environments, B bodies, D degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from envs.sims.mujoco_state import StateLayout
from parc_ray.character import rotations
from parc_ray.protocols import SimState

_ROOT = 7
_WXYZ = [3, 0, 1, 2]
_XYZW = [1, 2, 3, 0]


@dataclass(frozen=True)
class TorchLayout:
    """`envs.sims.mujoco_state.StateLayout` as index tensors on the simulator's device."""

    ball_qpos: Tensor
    ball_dof: Tensor
    hinge_qpos: Tensor
    hinge_dof: Tensor
    dof_qvel: Tensor

    @classmethod
    def of(cls, layout: StateLayout, device: torch.device) -> TorchLayout:
        """Move the index arrays to ``device``."""

        def tensor(name: str) -> Tensor:
            return torch.as_tensor(getattr(layout, name).astype("int64"), device=device)

        names = ("ball_qpos", "ball_dof", "hinge_qpos", "hinge_dof", "dof_qvel")
        return cls(**{name: tensor(name) for name in names})


def pack(layout: TorchLayout, state: SimState, nq: int) -> tuple[Tensor, Tensor]:
    """Generalised positions (N, nq) and velocities (N, nv) of ``state`` (N leading)."""
    n, num_dofs = state.dof_pos.shape
    device = layout.dof_qvel.device
    root_rot = rotations.quat_normalize(state.root_rot)
    qpos = torch.zeros(n, nq, device=device)
    qpos[:, :3] = state.root_pos
    qpos[:, 3:_ROOT] = root_rot[:, _WXYZ]
    ball = rotations.quat_from_exp(state.dof_pos[:, layout.ball_dof])
    qpos[:, layout.ball_qpos] = ball[..., _WXYZ]
    qpos[:, layout.hinge_qpos] = state.dof_pos[:, layout.hinge_dof]
    qvel = torch.zeros(n, 6 + num_dofs, device=device)
    qvel[:, :3] = state.root_lin_vel
    qvel[:, 3:6] = rotations.quat_rotate_inv(root_rot, state.root_ang_vel)
    qvel[:, layout.dof_qvel] = state.dof_vel
    return qpos, qvel


def unpack(layout: TorchLayout, qpos: Tensor, qvel: Tensor, force: Tensor) -> SimState:
    """The project's view of positions (N, nq), velocities (N, nv), forces (N, B, 3); copies."""
    root_rot = rotations.quat_positive(qpos[:, 3:_ROOT][:, _XYZW])
    dof_pos = torch.zeros(len(qpos), len(layout.dof_qvel), device=qpos.device)
    ball = qpos[:, layout.ball_qpos][..., _XYZW]
    dof_pos[:, layout.ball_dof] = rotations.quat_to_exp(rotations.quat_positive(ball))
    dof_pos[:, layout.hinge_dof] = qpos[:, layout.hinge_qpos]
    return SimState(
        root_pos=qpos[:, :3].clone(),
        root_rot=root_rot,
        root_lin_vel=qvel[:, :3].clone(),
        root_ang_vel=rotations.quat_rotate(root_rot, qvel[:, 3:6]),
        dof_pos=dof_pos,
        dof_vel=qvel[:, layout.dof_qvel],
        contact_force=force.clone(),
    )
