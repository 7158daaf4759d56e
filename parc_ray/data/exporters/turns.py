"""Rotations as other programs interpolate them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def without_flips(quat: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same rotations (T, 4) with signs such that neighbours are near each other.

    q and -q are one rotation, but a program that interpolates between them turns all the way round.
    """
    flips = np.where((quat[1:] * quat[:-1]).sum(axis=1) < 0, -1.0, 1.0)
    signs = np.concatenate([[1.0], np.cumprod(flips)])
    return quat * signs[:, None]
