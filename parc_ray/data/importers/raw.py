"""What an importer hands on: a motion as the file has it, in this project's conventions.

Importers only convert layout, axes and joint order; resampling, terrain inference, placing on the
floor and contact labels are the same for every format (``pipeline.py``). T frames, B bodies,
J = B - 1 joints, D degrees of freedom; metres, radians, z up, quaternions xyzw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

FPS_RANGE = (1.0, 1000.0)
NORM_TOLERANCE = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class RawMotion:
    """One motion at the file's own frame rate."""

    root_pos: Tensor
    """(T, 3) float64 m."""
    root_rot: Tensor
    """(T, 4) float64 xyzw, unit."""
    dof: Tensor
    """(T, D) float64 rad."""
    fps: float
    """Frames per second of the file."""
    loop: Literal["clamp", "wrap"]
    """Whether the motion ends or repeats."""
    contacts: Tensor | None = None
    """(T, B) in [0, 1] where the file has labels."""
    terrain: Heightfield | None = None
    """Terrain where the file has one."""
    path_nodes: Tensor | None = None
    """(M, 3) m, path that the motion was generated along."""
    source: str
    """Format, for the provenance."""
    licence: str = "unknown"
    """Licence of the data where the format implies one."""


def numeric(value: Any, where: str) -> np.ndarray:
    """A float64 array from nested lists, an array or a tensor.

    Args:
        value: what the file has.
        where: file and field, for messages.

    Raises:
        InputError: ragged lists, text or anything else that is not a block of numbers.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where}: not a block of numbers ({error}); "
            "rows of equal length are needed; export the file again"
        ) from error
    return array


def finite(value: Any, where: str, shape: tuple[int | None, ...], hint: str = "") -> Tensor:
    """A float64 tensor of a given shape without NaN or infinity.

    Args:
        value: what the file has.
        where: file and field, for messages.
        shape: expected size per dimension, None for any.
        hint: what the sizes mean, added to the message on a wrong shape.

    Raises:
        InputError: wrong shape or non-finite numbers.
    """
    array = numeric(value, where)
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = " x ".join("any" if s is None else str(s) for s in shape)
        raise InputError(
            f"{where}: shape {' x '.join(map(str, array.shape))}; {wanted} is needed"
            f"{' (' + hint + ')' if hint else ''}; convert the file for this character"
        )
    bad = ~np.isfinite(array)
    if bad.any():
        if array.ndim == 0:
            raise InputError(
                f"{where}: {float(array)}; a finite number is needed; correct the file"
            )
        rows = np.unique(np.nonzero(bad)[0])
        columns = np.unique(np.nonzero(bad.reshape(len(array), -1))[1]) if array.ndim > 1 else [0]
        raise InputError(
            f"{where}: NaN or infinite in {len(rows)} of {len(array)} frames (first {rows[0]}, "
            f"columns {', '.join(map(str, columns[:6]))}); finite numbers are needed; "
            "repair or leave out the file"
        )
    return torch.from_numpy(np.ascontiguousarray(array))


def unit_quaternions(value: Tensor, where: str, tolerance: float = NORM_TOLERANCE) -> Tensor:
    """Normalised quaternions (..., 4) with w >= 0.

    Args:
        value: (..., 4) xyzw.
        where: file and field, for messages.
        tolerance: largest allowed deviation of a norm from 1.

    Raises:
        InputError: a norm deviates by more than ``tolerance``.
    """
    norm = value.norm(dim=-1)
    worst = float((norm - 1.0).abs().max()) if norm.numel() else 0.0
    if worst > tolerance:
        index = int((norm - 1.0).abs().reshape(-1).argmax())
        raise InputError(
            f"{where}: quaternion {index} has norm {float(norm.reshape(-1)[index]):.4g}; unit "
            f"quaternions (to {tolerance:g}) are needed; normalise or repair the file"
        )
    unit = value / norm[..., None]
    return torch.where(unit[..., 3:] < 0.0, -unit, unit)


def frame_rate(value: Any, where: str) -> float:
    """Frames per second as a float.

    Raises:
        InputError: not a number within 1..1000.
    """
    try:
        fps = float(value)
    except (TypeError, ValueError):
        fps = math.nan
    if not FPS_RANGE[0] <= fps <= FPS_RANGE[1]:
        raise InputError(
            f"{where}: {value!r} is no frame rate; {FPS_RANGE[0]:g} to {FPS_RANGE[1]:g} frames per "
            "second are allowed; correct the file"
        )
    return fps


def field_of(data: Any, key: str, where: str) -> Any:
    """``data[key]`` of a mapping from a file.

    Raises:
        InputError: not a mapping, or the key is missing.
    """
    if not isinstance(data, dict) or key not in data:
        has = ", ".join(map(str, list(data)[:8])) if isinstance(data, dict) else type(data).__name__
        raise InputError(
            f"{where}: field {key!r} is missing (it has: {has}); a complete file is needed; "
            "export it again"
        )
    return data[key]
