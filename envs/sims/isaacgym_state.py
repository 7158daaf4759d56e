"""Conversion between the project's state and the rows that Isaac Gym's tensors hold.

Root rows are position, quaternion xyzw, linear velocity of the centre of mass and angular
velocity, all in the frame of the terrain mesh; ours are in the frame of the environment's terrain,
with the velocity of the body's origin. They are sent as rows and come back as columns. Dof rows are
pairs of position and velocity. N environments, B bodies, D dofs, K rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.protocols import SimState

Floats = NDArray[np.float32]
_PLUS, _MINUS = np.float32(1.0), np.float32(-1.0)


class Conversion:
    """Between our order and frame and the engine's.

    Args:
        about: the server's hello.
        body_names: ours, in order.
        dof_names: ours, in order.
    """

    def __init__(
        self, about: Mapping[str, Any], body_names: Sequence[str], dof_names: Sequence[str]
    ) -> None:
        """Match the names."""
        self._com = np.asarray(about["root_com"], dtype=np.float32)
        self.bodies = _places(body_names, about["body_names"])
        self.dofs = _places(dof_names, about["dof_names"])
        self._to_dofs = _places(about["dof_names"], dof_names)
        self._to_bodies = _places(about["body_names"], body_names)

    def write_targets(self, arrays: Mapping[str, NDArray[Any]], targets: Floats) -> None:
        """PD targets (N, D), rad."""
        arrays["targets"][:] = targets if self._to_dofs is None else targets[:, self._to_dofs]

    def write_rows(
        self,
        arrays: Mapping[str, NDArray[Any]],
        state: SimState,
        ids: NDArray[np.int64],
        offsets: Floats,
    ) -> None:
        """Rows (K,) of ``state`` to be set, ``offsets`` (K, 3) m away in the mesh's frame."""
        count = len(ids)
        arrays["set_ids"][:count] = ids
        root = arrays["set_root"][:count]
        rot, spin = state.root_rot.numpy()[ids], state.root_ang_vel.numpy()[ids]
        root[:, 0:3] = state.root_pos.numpy()[ids] + offsets
        root[:, 3:7] = rot
        root[:, 7:10] = state.root_lin_vel.numpy()[ids] + cross(spin.T, rotated(rot.T, self._com)).T
        root[:, 10:13] = spin
        dof_pos, dof_vel = state.dof_pos.numpy()[ids], state.dof_vel.numpy()[ids]
        order = slice(None) if self._to_dofs is None else self._to_dofs
        arrays["set_dof"][:count, :, 0] = dof_pos[:, order]
        arrays["set_dof"][:count, :, 1] = dof_vel[:, order]

    def read(self, arrays: Mapping[str, NDArray[Any]], offsets: Floats, out: SimState) -> None:
        """All environments as the engine left them, written to ``out``; ``offsets`` (N, 3) m."""
        root, force = arrays["root"], arrays["force"]
        to = {key: value.numpy() for key, value in vars(out).items()}
        np.subtract(root[0:3].T, offsets, out=to["root_pos"])
        rot, spin = root[3:7] * np.where(root[6] < 0, _MINUS, _PLUS), root[10:13]
        to["root_rot"][:] = rot.T
        to["root_ang_vel"][:] = spin.T
        to["root_lin_vel"][:] = (root[7:10] - cross(spin, rotated(rot, self._com))).T
        for name in ("dof_pos", "dof_vel"):
            to[name][:] = arrays[name] if self.dofs is None else arrays[name][:, self.dofs]
        to["contact_force"][:] = force if self.bodies is None else force[:, self.bodies]

    def touched(
        self, arrays: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
        """Environment and body (K,) that forces act on, and their poses (K, 7) in the mesh."""
        count = int(arrays["touch_count"][0])
        ids = arrays["touch_ids"][:count].astype(np.intp)
        env, body = np.divmod(ids, arrays["force"].shape[1])
        if self._to_bodies is not None:
            body = self._to_bodies[body]
        return env, body, arrays["touch_pose"][:count].copy()


def cross(a: Floats, b: Floats) -> Floats:
    """Cross products (3, K) of (3, K)."""
    (ax, ay, az), (bx, by, bz) = a, b
    out = np.empty(a.shape, dtype=np.float32)
    out[0], out[1], out[2] = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    return out


def rotated(quat: Floats, vector: Floats) -> Floats:
    """``vector`` (3,) turned by quaternions xyzw (4, K): (3, K)."""
    u, w = quat[:3], quat[3]
    twice = 2.0 * cross(u, np.broadcast_to(vector[:, None], u.shape))
    return vector[:, None] + w * twice + cross(u, twice)


def blank_state(num_envs: int, num_bodies: int, num_dofs: int) -> SimState:
    """Everything zero, upright."""
    rot = torch.zeros(num_envs, 4)
    rot[:, 3] = 1.0
    return SimState(
        root_pos=torch.zeros(num_envs, 3),
        root_rot=rot,
        root_lin_vel=torch.zeros(num_envs, 3),
        root_ang_vel=torch.zeros(num_envs, 3),
        dof_pos=torch.zeros(num_envs, num_dofs),
        dof_vel=torch.zeros(num_envs, num_dofs),
        contact_force=torch.zeros(num_envs, num_bodies, 3),
    )


def _places(wanted: Sequence[str], given: Sequence[str]) -> NDArray[np.intp] | None:
    """Where each of ``wanted`` stands in ``given``; None where the order is the same."""
    if list(wanted) == list(given):
        return None
    return np.array([list(given).index(name) for name in wanted], dtype=np.intp)
