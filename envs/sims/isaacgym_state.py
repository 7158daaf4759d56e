"""Conversion between the project's state and the rows that Isaac Gym's tensors hold.

Root rows are position, quaternion xyzw, linear velocity of the centre of mass and angular
velocity, all in the frame of the terrain mesh; ours are in the frame of the environment's terrain,
with the velocity of the body's origin. They are sent as rows and come back as columns. Dof rows are
pairs of position and velocity. N environments, B bodies, D dofs, K rows.

Columns are worked on one by one into arrays that are kept: at thousands of environments the time
goes into memory, and NumPy is slow on short last axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parc_ray.protocols import SimState

Floats = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]
_ONE = np.float32(1.0)
_PAIRS = 10


class Frame:
    """A state of all environments as tensors and, in the same memory, as arrays.

    Args:
        arrays: float32 arrays under the names of `SimState`'s fields.
    """

    def __init__(self, arrays: Mapping[str, Floats]) -> None:
        """Look at the arrays; nothing is copied."""
        self.arrays = dict(arrays)
        self.state = SimState(**{k: torch.from_numpy(v) for k, v in self.arrays.items()})

    def clone(self) -> Frame:
        """A copy."""
        return Frame({k: v.copy() for k, v in self.arrays.items()})


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
        self._lever = _lever(np.asarray(about["root_com"], dtype=np.float32))
        self.bodies = _places(body_names, about["body_names"])
        self.dofs = _places(dof_names, about["dof_names"])
        self._to_dofs = _places(about["dof_names"], dof_names)
        self._to_bodies = _places(about["body_names"], body_names)
        self._pairs = np.empty((_PAIRS, 0), dtype=np.float32)

    def frames(self, arrays: Arrays) -> tuple[Frame, Frame]:
        """A frame for each half of the doubled buffers, in them where the order is ours."""
        count, num_bodies = arrays["force"].shape[1:3]
        own = (blank_frame(count, num_bodies, arrays["dof_pos"].shape[2]) for _ in range(2))
        doubled = [("contact_force", "force", self.bodies)]
        doubled += [(name, name, self.dofs) for name in ("dof_pos", "dof_vel")]
        first, second = (
            Frame(f.arrays | {to: arrays[name][k] for to, name, order in doubled if order is None})
            for k, f in enumerate(own)
        )
        return first, second

    def write_targets(self, arrays: Arrays, targets: Floats) -> None:
        """PD targets (N, D), rad."""
        arrays["targets"][:] = targets if self._to_dofs is None else targets[:, self._to_dofs]

    def write_rows(
        self, arrays: Arrays, frame: Frame, ids: NDArray[np.int64], offsets: Floats
    ) -> None:
        """Rows (K,) of ``frame`` to be set, ``offsets`` (3, K) m away in the mesh's frame."""
        count, state = len(ids), frame.arrays
        arrays["set_ids"][:count] = ids
        root = arrays["set_root"][:count]
        rot, spin = state["root_rot"][ids], state["root_ang_vel"][ids]
        root[:, 0:3] = state["root_pos"][ids] + offsets.T
        root[:, 3:7] = rot
        root[:, 7:10] = state["root_lin_vel"][ids]
        pairs = np.empty((_PAIRS, count), dtype=np.float32)
        for axis, part in enumerate(cross(spin.T, self._arm(rot.T, pairs))):
            root[:, 7 + axis] += part
        root[:, 10:13] = spin
        dof_pos, dof_vel = state["dof_pos"][ids], state["dof_vel"][ids]
        order = slice(None) if self._to_dofs is None else self._to_dofs
        arrays["set_dof"][:count, :, 0] = dof_pos[:, order]
        arrays["set_dof"][:count, :, 1] = dof_vel[:, order]

    def read(self, arrays: Arrays, half: int, offsets: Floats, frame: Frame) -> None:
        """All environments as the engine left them in ``half``.

        ``frame`` is that half's of `frames`; ``offsets`` (3, N) m.
        """
        root, to = arrays["root"], frame.arrays
        if self._pairs.shape[1] != root.shape[1]:
            self._pairs = np.empty((_PAIRS, root.shape[1]), dtype=np.float32)
        sign = np.copysign(_ONE, root[6])
        moved = cross(root[10:13], self._arm(root[3:7], self._pairs))
        for axis in range(3):
            np.subtract(root[axis], offsets[axis], out=to["root_pos"][:, axis])
            np.subtract(root[7 + axis], moved[axis], out=to["root_lin_vel"][:, axis])
            to["root_ang_vel"][:, axis] = root[10 + axis]
        for axis in range(4):
            np.multiply(root[3 + axis], sign, out=to["root_rot"][:, axis])
        if self.dofs is not None:
            for name in ("dof_pos", "dof_vel"):
                to[name][:] = arrays[name][half][:, self.dofs]
        if self.bodies is not None:
            to["contact_force"][:] = arrays["force"][half][:, self.bodies]

    def touched(self, arrays: Arrays) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
        """Environment and body (K,) that forces act on, and their poses (K, 7) in the mesh."""
        count = int(arrays["touch_count"][0])
        ids = arrays["touch_ids"][:count].astype(np.intp)
        env, body = np.divmod(ids, arrays["force"].shape[2])
        if self._to_bodies is not None:
            body = self._to_bodies[body]
        return env, body, arrays["touch_pose"][:count].copy()

    def _arm(self, quat: Floats, pairs: Floats) -> Floats:
        """From the origin to the centre of mass (3, K) at quaternions xyzw (4, K)."""
        at = 0
        for i in range(4):
            np.multiply(quat[i], quat[i:], out=pairs[at : at + 4 - i])
            at += 4 - i
        return self._lever @ pairs


def cross(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    """Cross products of (3, K) and (3, K), by component."""
    (ax, ay, az), (bx, by, bz) = a, b
    return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


def _lever(vector: Floats) -> Floats:
    """(3, 10): times the products xx, xy, xz, xw, yy, yz, yw, zz, zw, ww it is ``vector`` turned.

    Args:
        vector: (3,) in the body's frame.
    """
    x, y, z = (float(v) for v in vector)
    rows = [
        [x, 2 * y, 2 * z, 0, -x, 0, 2 * z, -x, -2 * y, x],
        [-y, 2 * x, 0, -2 * z, y, 2 * z, 0, -y, 2 * x, y],
        [-z, 0, 2 * x, 2 * y, -z, 2 * y, -2 * x, z, 0, z],
    ]
    return np.array(rows, dtype=np.float32)


def blank_frame(num_envs: int, num_bodies: int, num_dofs: int) -> Frame:
    """Everything zero, upright."""
    sizes = {
        "root_pos": (3,),
        "root_rot": (4,),
        "root_lin_vel": (3,),
        "root_ang_vel": (3,),
        "dof_pos": (num_dofs,),
        "dof_vel": (num_dofs,),
        "contact_force": (num_bodies, 3),
    }
    arrays = {k: np.zeros((num_envs, *size), dtype=np.float32) for k, size in sizes.items()}
    arrays["root_rot"][:, 3] = 1.0
    return Frame(arrays)


def _places(wanted: Sequence[str], given: Sequence[str]) -> NDArray[np.intp] | None:
    """Where each of ``wanted`` stands in ``given``; None where the order is the same."""
    if list(wanted) == list(given):
        return None
    return np.array([list(given).index(name) for name in wanted], dtype=np.intp)
