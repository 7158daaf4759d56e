"""What an importer hands on: a motion as the file has it, in this project's conventions.

Importers only convert layout, axes and joint order; resampling, terrain inference, placing on the
floor and contact labels are the same for every format (``pipeline.py``). T frames, B bodies,
J = B - 1 joints, D degrees of freedom; metres, radians, z up, quaternions xyzw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

FPS_RANGE = (1.0, 1000.0)
NORM_TOLERANCE = 0.01
UNKNOWN_LICENCE = "unknown"
MAX_NUMBERS = 50_000_000
"""Most numbers of one field; an hour at 120 frames per second has a third of it."""
_TINY_NORM = 1e-6
_SERIES_DIMS = 2

_reading_to_repair: ContextVar[list[str] | None] = ContextVar("reading_to_repair", default=None)


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
    licence: str = UNKNOWN_LICENCE
    """Licence of the data where the format implies one."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the conversion by name (``retarget_...`` in m), stored with the clip."""
    notes: str = ""
    """What the conversion did that is worth knowing, for the provenance."""


@contextmanager
def reading_to_repair() -> Iterator[list[str]]:
    """Within it, files are read leniently, for ``parc_ray.data.repair`` to mend what they hold.

    ``finite`` lets NaN pass in blocks of two or more dimensions, ``unit_quaternions`` normalises
    any quaternion and makes NaN of those that have no direction. Everything else that is wrong
    is refused as ever.

    Yields:
        A list to which a line is added for everything that was let pass or changed.
    """
    notes: list[str] = []
    token = _reading_to_repair.set(notes)
    try:
        yield notes
    finally:
        _reading_to_repair.reset(token)


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
        if isinstance(value, list | tuple):
            _count_numbers(value, {})
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{where}: not a block of numbers ({error}); "
            "rows of equal length are needed; export the file again"
        ) from error
    return array


def _count_numbers(value: list | tuple, known: dict[int, int]) -> int:
    """Numbers in nested lists; each list counts again wherever it stands.

    Raises:
        ValueError: more than a motion can have. A few lists that hold each other many times over
            would otherwise fill the memory.
    """
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = MAX_NUMBERS + 1  # for lists that hold themselves
    count = 0
    for item in value:
        count += _count_numbers(item, known) if isinstance(item, list | tuple) else 1
        if count > MAX_NUMBERS:
            raise ValueError(f"more than {MAX_NUMBERS} numbers")
    known[id(value)] = count
    return count


def brief(value: Any) -> str:
    """A value from a file, for messages: short, whatever it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | float | complex):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**12 else "a huge number"
    if isinstance(value, str | bytes):
        return repr(value[:40])
    return f"a {type(value).__name__}"


def finite(value: Any, where: str, shape: tuple[int | None, ...], hint: str = "") -> Tensor:
    """A float64 tensor of a given shape without NaN or infinity (but see ``reading_to_repair``).

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
    if bad.any() and array.ndim > 1 and _reading_to_repair.get() is not None:
        array = np.where(bad, np.nan, array)
    elif bad.any():
        if array.ndim == 0:
            raise InputError(
                f"{where}: {float(array)}; a finite number is needed; correct the file"
            )
        rows = np.unique(np.nonzero(bad)[0])
        columns = np.unique(np.nonzero(bad.reshape(len(array), -1))[1]) if array.ndim > 1 else [0]
        raise InputError(
            f"{where}: NaN or infinite in {len(rows)} of {len(array)} frames (first {rows[0]}, "
            f"columns {', '.join(map(str, columns[:6]))}); finite numbers are needed; "
            "repair or leave out the file (parc import --repair mends what it can)"
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
    notes = _reading_to_repair.get()
    if notes is not None:
        return _normalised(value, where, tolerance, notes)
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


def _normalised(value: Tensor, where: str, tolerance: float, notes: list[str]) -> Tensor:
    """Unit quaternions with w >= 0, NaN where one has no direction; says what was changed."""
    norm = value.norm(dim=-1)
    field_name = where.rsplit(": ", maxsplit=1)[-1]
    off = int(((norm - 1.0).abs() > tolerance).sum())
    if off:
        notes.append(f"{off} quaternions of {field_name} normalised")
    if value.ndim >= _SERIES_DIMS:
        flips = int(((value[1:] * value[:-1]).sum(-1) < 0.0).sum())
        if flips:
            notes.append(f"{flips} sign flips of {field_name} undone")
    norm = torch.where(norm > _TINY_NORM, norm, torch.nan)
    unit = value / norm[..., None]
    return torch.where(unit[..., 3:] < 0.0, -unit, unit)


def frame_rate(value: Any, where: str) -> float:
    """Frames per second as a float.

    Raises:
        InputError: not a number within 1..1000.
    """
    try:
        fps = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        fps = math.nan
    if not FPS_RANGE[0] <= fps <= FPS_RANGE[1]:
        raise InputError(
            f"{where}: {brief(value)} is no frame rate; {FPS_RANGE[0]:g} to {FPS_RANGE[1]:g} "
            "frames per second are allowed; correct the file"
        )
    return fps


def field_of(data: Any, key: str, where: str) -> Any:
    """``data[key]`` of a mapping from a file.

    Raises:
        InputError: not a mapping, or the key is missing.
    """
    if not isinstance(data, dict) or key not in data:
        has = (
            ", ".join(map(brief, list(data)[:8])) if isinstance(data, dict) else type(data).__name__
        )
        raise InputError(
            f"{where}: field {key!r} is missing (it has: {has}); a complete file is needed; "
            "export it again"
        )
    return data[key]
