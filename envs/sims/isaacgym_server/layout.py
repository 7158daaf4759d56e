"""The shared memory of the bridge: which buffers there are, their shapes, and where they lie.

Both sides compute it from the sizes in the hello and compare, so that neither can write where the
other does not read. N environments, B bodies, D degrees of freedom; C-contiguous, little-endian.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

PROTOCOL = 1
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
        with_bodies: whether the states of all bodies are sent, too.

    Returns:
        Rows of ``name``, ``dtype``, ``shape`` and ``offset``; JSON as they are.
    """
    n, b, d = num_envs, num_bodies, num_dofs
    wanted = [
        ("count", "<i8", (1,)),  # rows to set before the next step
        ("sim_seconds", "<f8", (1,)),  # spent in the engine during the last step
        ("set_ids", "<i4", (n,)),  # environments to set
        ("set_root", "<f4", (n, 13)),  # their root states, as in `root`
        ("set_dof", "<f4", (n, d, 2)),  # their dof states, as in `dof`
        ("targets", "<f4", (n, d)),  # PD targets, rad
        ("root", "<f4", (n, 13)),  # position, quaternion xyzw, velocity of the centre of mass, w
        ("dof", "<f4", (n, d, 2)),  # position and velocity
        ("force", "<f4", (n, b, 3)),  # net contact force, N, self-contacts included
        ("bodies", "<f4", (n if with_bodies else 0, b, 13)),  # as `root`, of every body
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
