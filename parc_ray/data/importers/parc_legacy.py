"""PARC's older motion pickles (v0.1): one dict whose terrain is an object of the published code.

``frames`` (T, 6 + D) root position, root exponential map and degrees of freedom, ``contacts``
(T, B), ``fps``, ``loop_mode`` and ``terrain``. Objects are read as inert records, whatever their
class is called; the terrain is the one that has a height field (``hf``), its ``min_point`` and its
cell size (``dxdy`` or ``dx``). Stored bounds and masks are not trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.data.importers.raw import (
    RawMotion,
    brief,
    field_of,
    finite,
    frame_rate,
    numeric,
)
from parc_ray.data.unpickle import Record, safe_load
from parc_ray.errors import InputError
from parc_ray.motion.clip import LoopMode
from parc_ray.terrain.heightfield import Heightfield

NAME = "parc_legacy"
DESCRIPTION = "PARC motion pickle of v0.1 (frames, contacts, terrain object)"

_LOOPS: dict[Any, LoopMode] = {0: "clamp", 1: "wrap", "CLAMP": "clamp", "WRAP": "wrap"}
_HEIGHTS = "hf"
_SAME_SIZE_M = 1e-6


def sniff(head: bytes, path: Path) -> bool:
    """Whether it is a pickle with frames and a terrain; the terrain stands behind the frames."""
    if head[:1] != b"\x80" or b"motion_data" in head or b"terrain_data" in head:
        return False
    content = path.read_bytes()
    return b"frames" in content and b"terrain" in content


def load(path: Path, character: Character) -> RawMotion:
    """Read one file.

    Raises:
        InputError: not readable, hostile, fields missing, wrong column count, NaN, or a terrain
            that is no height field.
    """
    name = str(path)
    data = safe_load(path.read_bytes(), name, records=lambda *_: True)
    num_dofs, num_bodies = character.skeleton.num_dofs, character.skeleton.num_bodies
    hint = f"frames by 6 root numbers + {num_dofs} joint angles of character {character.name!r}"
    frames = finite(field_of(data, "frames", name), f"{name}: frames", (None, 6 + num_dofs), hint)
    contacts = data.get("contacts")
    if contacts is not None:
        shape = (len(frames), num_bodies)
        contacts = finite(contacts, f"{name}: contacts", shape, "frames by bodies").clamp(0.0, 1.0)
    nodes = data.get("path_nodes")
    return RawMotion(
        root_pos=frames[:, :3],
        root_rot=rot.quat_positive(rot.quat_from_exp(frames[:, 3:6])),
        dof=frames[:, 6:].clone(),
        fps=frame_rate(field_of(data, "fps", name), f"{name}: fps"),
        loop=_loop(data.get("loop_mode", 0), name),
        contacts=contacts,
        terrain=_terrain(data.get("terrain"), f"{name}: terrain"),
        path_nodes=None
        if nodes is None
        else finite(nodes, f"{name}: path_nodes", (None, 3)).float(),
        source="PARC motion pickle v0.1",
    )


def _loop(value: Any, name: str) -> LoopMode:
    """The loop mode as a number, a name, or an enumeration's record that holds one of them."""
    if isinstance(value, Record) and len(value.args) == 1:
        value = value.args[0]
    word = value.rsplit(".", 1)[-1].upper() if isinstance(value, str) else value
    if not isinstance(word, str | int | np.integer) or word not in _LOOPS:
        raise InputError(
            f"{name}: loop_mode: {brief(value)}; 0 or CLAMP, or 1 or WRAP is allowed; fix it"
        )
    return _LOOPS[word]


def _terrain(value: Any, where: str) -> Heightfield | None:
    """The height field of a terrain object, by what it holds and not by what it is called."""
    if value is None:
        return None
    fields = value.fields if isinstance(value, Record) else value
    if not isinstance(fields, dict) or _HEIGHTS not in fields:
        raise InputError(
            f"{where}: {brief(value)} without a height field; an object with hf, min_point and "
            "dxdy is needed; export the motion again"
        )
    heights = numeric(fields[_HEIGHTS], f"{where}.hf").astype(np.float32)
    origin = finite(field_of(fields, "min_point", where), f"{where}.min_point", (2,))
    field = Heightfield(
        heights=torch.from_numpy(np.ascontiguousarray(heights)),
        origin=origin.float(),
        cell_size=_cell_size(fields, where),
    )
    return field.validate(where)


def _cell_size(fields: dict, where: str) -> float:
    key = "dxdy" if "dxdy" in fields else "dx"
    sizes = numeric(field_of(fields, key, where), f"{where}.{key}").reshape(-1)
    if not 1 <= len(sizes) <= 2 or not np.isfinite(sizes).all():
        raise InputError(f"{where}.{key}: one or two finite cell sizes in m are needed; correct it")
    if abs(sizes[0] - sizes[-1]) > _SAME_SIZE_M:
        raise InputError(
            f"{where}.{key}: cells of {sizes[0]:g} x {sizes[-1]:g} m; square cells are needed; "
            "resample the height field"
        )
    # the size without the noise of single precision: 0.4000000059604645 is meant as 0.4
    return float(np.format_float_positional(np.float32(sizes[0]), unique=True))
