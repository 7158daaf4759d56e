"""Conversion between the project's conventions and MuJoCo's generalised coordinates.

MuJoCo: quaternions wxyz, a free joint's angular velocity in the body frame, ball joints as
quaternions. Ours: xyzw, world-frame angular velocity, rotation vectors. Ball joint velocities
(child frame) and a free joint's linear velocity (world, at the body's origin) agree. All in
float64 NumPy; N environments, B bodies, D degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.character.skeleton import Skeleton
from parc_ray.protocols import SimState

Array = NDArray[np.float64]
_TINY = 1e-12


@dataclass(frozen=True)
class StateLayout:
    """Where each quantity sits in MuJoCo's physics state [time, qpos, qvel].

    Attributes:
        num_state: length of the physics state.
        pos: slice of qpos in the state.
        vel: slice of qvel in the state.
        ball_qpos: (S, 4) columns of qpos of each ball joint.
        ball_dof: (S, 3) our dof index of each ball joint's rotation vector.
        hinge_qpos: (H,) columns of qpos.
        hinge_dof: (H,) our dof index.
        dof_qvel: (D,) column of qvel of each of our dofs.
    """

    num_state: int
    pos: slice
    vel: slice
    ball_qpos: NDArray[np.intp]
    ball_dof: NDArray[np.intp]
    hinge_qpos: NDArray[np.intp]
    hinge_dof: NDArray[np.intp]
    dof_qvel: NDArray[np.intp]


def state_layout(model: mujoco.MjModel, skeleton: Skeleton) -> StateLayout:
    """Read the layout off a compiled model."""
    ball_qpos, ball_dof, hinge_qpos, hinge_dof = [], [], [], []
    dof_qvel = np.zeros(skeleton.num_dofs, dtype=np.intp)
    for index, kind in enumerate(skeleton.joint_kinds):
        if kind not in ("spherical", "hinge"):
            continue
        joint = model.joint(f"{skeleton.body_names[index]}_joint").id
        qpos, qvel = int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])
        dofs = range(skeleton.num_dofs)[skeleton.dof_slices[index]]
        dof_qvel[list(dofs)] = np.arange(qvel, qvel + len(dofs))
        if kind == "spherical":
            ball_qpos.append(range(qpos, qpos + 4))
            ball_dof.append(dofs)
        else:
            hinge_qpos.append(qpos)
            hinge_dof.append(dofs.start)
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    return StateLayout(
        num_state=size,
        pos=slice(1, 1 + model.nq),
        vel=slice(1 + model.nq, 1 + model.nq + model.nv),
        ball_qpos=np.array(ball_qpos, dtype=np.intp).reshape(-1, 4),
        ball_dof=np.array(ball_dof, dtype=np.intp).reshape(-1, 3),
        hinge_qpos=np.array(hinge_qpos, dtype=np.intp),
        hinge_dof=np.array(hinge_dof, dtype=np.intp),
        dof_qvel=dof_qvel,
    )


def exp_to_quat(v: Array) -> Array:
    """Quaternions wxyz (..., 4) of rotation vectors (..., 3)."""
    angle = np.sqrt((v * v).sum(-1, keepdims=True))
    factor = np.where(angle > _TINY, np.sin(angle / 2) / np.maximum(angle, _TINY), 0.5)
    return np.concatenate((np.cos(angle / 2), v * factor), axis=-1)


def quat_to_exp(q: Array) -> Array:
    """Rotation vectors (..., 3), angle in [0, pi], of quaternions wxyz (..., 4)."""
    q = np.where(q[..., :1] < 0, -q, q)
    norm = np.sqrt((q[..., 1:] ** 2).sum(-1, keepdims=True))
    angle = 2.0 * np.arctan2(norm, q[..., :1])
    return q[..., 1:] * np.where(norm > _TINY, angle / np.maximum(norm, _TINY), 2.0)


def rotate(q: Array, v: Array) -> Array:
    """Rotate ``v`` (..., 3) by quaternions wxyz (..., 4)."""
    w, x, y, z = np.moveaxis(q, -1, 0)
    vx, vy, vz = np.moveaxis(v, -1, 0)
    tx, ty, tz = 2.0 * (y * vz - z * vy), 2.0 * (z * vx - x * vz), 2.0 * (x * vy - y * vx)
    out = np.empty(v.shape)
    out[..., 0] = vx + w * tx + (y * tz - z * ty)
    out[..., 1] = vy + w * ty + (z * tx - x * tz)
    out[..., 2] = vz + w * tz + (x * ty - y * tx)
    return out


def pack_state(layout: StateLayout, state: SimState) -> Array:
    """MuJoCo physics states (N, num_state), time zero, of ``state`` (N leading)."""

    def array(x: torch.Tensor) -> Array:
        return x.detach().cpu().numpy().astype(np.float64)

    root_rot = array(state.root_rot)[:, [3, 0, 1, 2]]
    root_rot /= np.linalg.norm(root_rot, axis=-1, keepdims=True)
    dof, dof_vel = array(state.dof_pos), array(state.dof_vel)
    out = np.zeros((len(dof), layout.num_state))
    qpos, qvel = out[:, layout.pos], out[:, layout.vel]
    qpos[:, :3], qpos[:, 3:7] = array(state.root_pos), root_rot
    qpos[:, layout.ball_qpos] = exp_to_quat(dof[:, layout.ball_dof])
    qpos[:, layout.hinge_qpos] = dof[:, layout.hinge_dof]
    conjugate = root_rot * np.array([1.0, -1.0, -1.0, -1.0])
    qvel[:, :3] = array(state.root_lin_vel)
    qvel[:, 3:6] = rotate(conjugate, array(state.root_ang_vel))
    qvel[:, layout.dof_qvel] = dof_vel
    return out


def unpack_state(layout: StateLayout, physics: Array, force: NDArray[np.float32]) -> SimState:
    """The project's view, float32, of physics states (N, num_state) and forces (N, B, 3)."""
    qpos, qvel = physics[:, layout.pos], physics[:, layout.vel]
    quat = qpos[:, 3:7]
    quat = np.where(quat[:, :1] < 0, -quat, quat)
    dof = np.empty((len(qpos), len(layout.dof_qvel)))
    dof[:, layout.ball_dof] = quat_to_exp(qpos[:, layout.ball_qpos])
    dof[:, layout.hinge_dof] = qpos[:, layout.hinge_qpos]

    def tensor(x: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))

    return SimState(
        root_pos=tensor(qpos[:, :3]),
        root_rot=tensor(quat[:, [1, 2, 3, 0]]),
        root_lin_vel=tensor(qvel[:, :3]),
        root_ang_vel=tensor(rotate(quat, qvel[:, 3:6])),
        dof_pos=tensor(dof),
        dof_vel=tensor(qvel[:, layout.dof_qvel]),
        contact_force=torch.from_numpy(force.copy()),
    )
