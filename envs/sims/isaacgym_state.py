"""Conversion between the project's state and the rows that Isaac Gym's tensors hold.

Root rows are position, quaternion xyzw, linear velocity of the centre of mass and angular
velocity, all in the frame of the terrain mesh; ours are in the frame of the environment's terrain,
with the velocity of the body's origin. Dof rows are pairs of position and velocity. N
environments, B bodies, D dofs, K rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.protocols import SimState

Floats = NDArray[np.float32]


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
        root[:, 7:10] = state.root_lin_vel.numpy()[ids] + np.cross(spin, rotated(rot, self._com))
        root[:, 10:13] = spin
        dof_pos, dof_vel = state.dof_pos.numpy()[ids], state.dof_vel.numpy()[ids]
        order = slice(None) if self._to_dofs is None else self._to_dofs
        arrays["set_dof"][:count, :, 0] = dof_pos[:, order]
        arrays["set_dof"][:count, :, 1] = dof_vel[:, order]

    def read(self, arrays: Mapping[str, NDArray[Any]], offsets: Floats) -> SimState:
        """All environments as the engine left them; ``offsets`` (N, 3) m."""
        root, dof, force = arrays["root"], arrays["dof"], arrays["force"]
        rot = root[:, 3:7] * np.where(root[:, 6:7] < 0, np.float32(-1), np.float32(1))
        spin = root[:, 10:13].copy()
        order = slice(None) if self.dofs is None else self.dofs
        bodies = slice(None) if self.bodies is None else self.bodies
        return SimState(
            root_pos=torch.from_numpy(root[:, 0:3] - offsets),
            root_rot=torch.from_numpy(rot),
            root_lin_vel=torch.from_numpy(
                root[:, 7:10] - np.cross(spin, rotated(rot, self._com)).astype(np.float32)
            ),
            root_ang_vel=torch.from_numpy(spin),
            dof_pos=torch.from_numpy(np.ascontiguousarray(dof[:, order, 0])),
            dof_vel=torch.from_numpy(np.ascontiguousarray(dof[:, order, 1])),
            contact_force=torch.from_numpy(force[:, bodies].copy()),
        )


def rotated(quat: Floats, vector: Floats) -> Floats:
    """``vector`` (3,) turned by quaternions xyzw (K, 4)."""
    x, y, z, w = np.moveaxis(quat, -1, 0)
    u = np.stack((x, y, z), axis=-1)
    twice = 2.0 * np.cross(u, vector)
    return (vector + w[:, None] * twice + np.cross(u, twice)).astype(np.float32)


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
