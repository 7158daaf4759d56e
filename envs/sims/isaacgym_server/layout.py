"""The shared memory of the bridge: which buffers there are, their shapes, and where they lie.

Both sides compute it from the sizes in the hello and compare, so that neither can write where the
other does not read. N environments, B bodies, D degrees of freedom; C-contiguous, little-endian.
What the client keeps as it is has two halves that are filled in turn, so that the state before a
step stays whole while the server writes the next, whatever happens to it.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

PROTOCOL = 2
"""Version of hello, layout and messages; both sides must have the same."""
_ALIGN = 64


def buffer_table(
    num_envs: int, num_bodies: int, num_dofs: int, with_bodies: bool
) -> tuple[list[dict[str, Any]], int]:
    """Buffers in order and the size in bytes of the memory that holds them.

    Args:
        num_envs: N.
        num_bodies: B.
        num_dofs: D.
        with_bodies: whether the poses of bodies that a force acts on are sent, too.

    Returns:
        Rows of ``name``, ``dtype``, ``shape`` and ``offset``; JSON as they are.
    """
    n, b, d = num_envs, num_bodies, num_dofs
    wanted = [
        ("count", "<i8", (1,)),  # rows to set before the next step
        ("half", "<i8", (1,)),  # which half of the doubled buffers the next step fills
        ("sim_seconds", "<f8", (1,)),  # in the engine's calls during the last step
        ("sim_cpu_seconds", "<f8", (1,)),  # processor time of that
        ("set_ids", "<i4", (n,)),  # environments to set
        ("set_root", "<f4", (n, 13)),  # their root states, a row of `root` each
        ("set_dof", "<f4", (n, d, 2)),  # their dof positions and velocities
        ("targets", "<f4", (n, d)),  # PD targets, rad
        ("root", "<f4", (13, n)),  # position, quaternion xyzw, velocity of the centre of mass, spin
        ("dof_pos", "<f4", (2, n, d)),  # rad, doubled
        ("dof_vel", "<f4", (2, n, d)),  # rad/s, doubled
        ("force", "<f4", (2, n, b, 3)),  # net contact force, N, self-contacts included, doubled
        ("touch_count", "<i8", (1,)),  # bodies with a force on them, where they are sent
        ("touch_ids", "<i4", (n * b if with_bodies else 0,)),  # environment times B plus body
        ("touch_pose", "<f4", (n * b if with_bodies else 0, 7)),  # position, quaternion xyzw
    ]
    rows, offset = [], 0
    for name, dtype, shape in wanted:
        rows.append({"name": name, "dtype": dtype, "shape": list(shape), "offset": offset})
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        offset += -(-size // _ALIGN) * _ALIGN
    return rows, offset


def map_buffers(
    descriptor: int, rows: list[dict[str, Any]], size: int
) -> tuple[mmap.mmap, dict[str, np.ndarray]]:
    """Map the memory behind a file descriptor and view its buffers as arrays."""
    memory = mmap.mmap(descriptor, size)
    arrays = {}
    for row in rows:
        shape = tuple(row["shape"])
        count = int(np.prod(shape))
        flat = np.frombuffer(memory, dtype=row["dtype"], count=count, offset=row["offset"])
        arrays[row["name"]] = flat.reshape(shape)
    return memory, arrays
