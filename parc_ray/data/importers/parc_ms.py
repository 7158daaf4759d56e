"""PARC motion-terrain pickles; see docs/design/data.md, File formats.

The outer dict holds up to three byte strings, each a pickle of its own: ``motion_data``,
``terrain_data`` and ``misc_data``. Stored augmentation bounds and masks are not trusted; they are
recomputed where they are needed. Only the path nodes are taken from ``misc_data``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from parc_ray.character.character import Character
from parc_ray.character.kinematics import joint_rot_to_dof
from parc_ray.data.importers.raw import (
    RawMotion,
    brief,
    field_of,
    finite,
    frame_rate,
    numeric,
    unit_quaternions,
)
from parc_ray.data.unpickle import safe_load
from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield

NAME = "parc_ms"
DESCRIPTION = "PARC motion-terrain pickle (motion_data, terrain_data, misc_data)"


def sniff(head: bytes, path: Path) -> bool:
    """Whether the first bytes look like this format."""
    return b"motion_data" in head or b"terrain_data" in head


def load(path: Path, character: Character) -> RawMotion:
    """Read one file.

    Raises:
        InputError: not readable, hostile, fields missing, wrong joint count, NaN, bad quaternions.
    """
    outer = safe_load(path.read_bytes(), str(path))
    motion = _inner(outer, "motion_data", path)
    if motion is None:
        raise InputError(
            f"{path}: motion_data is missing or empty; a motion is needed here; "
            "use a file that holds one"
        )
    root_pos = finite(
        field_of(motion, "root_pos", str(path)), f"{path}: motion_data.root_pos", (None, 3)
    )
    count, joints = len(root_pos), character.skeleton.num_joints
    root_rot = _quaternions(motion, "root_rot", path, (count, 4), "frames by xyzw")
    hint = f"frames by {joints} joints of character {character.name!r} by xyzw"
    joint_rot = _quaternions(motion, "joint_rot", path, (count, joints, 4), hint)
    stored = motion.get("loop_mode", "CLAMP")
    mode = stored.upper().rsplit(".", maxsplit=1)[-1] if isinstance(stored, str) else None
    if mode not in ("CLAMP", "WRAP"):
        raise InputError(
            f"{path}: motion_data.loop_mode: {brief(stored)}; CLAMP or WRAP is allowed; fix it"
        )
    return RawMotion(
        root_pos=root_pos,
        root_rot=root_rot,
        dof=joint_rot_to_dof(character.skeleton, joint_rot),
        fps=frame_rate(field_of(motion, "fps", str(path)), f"{path}: motion_data.fps"),
        loop="wrap" if mode == "WRAP" else "clamp",
        contacts=_contacts(motion, path, count, character),
        terrain=_terrain(_inner(outer, "terrain_data", path), path),
        path_nodes=_path_nodes(_inner(outer, "misc_data", path, opaque=True), path),
        source="PARC motion-terrain pickle",
    )


def _inner(outer: Any, key: str, path: Path, *, opaque: bool = False) -> Any:
    blob = outer.get(key) if isinstance(outer, dict) else None
    if not isinstance(blob, (bytes, bytearray)):
        return blob
    return safe_load(bytes(blob), f"{path}: {key}", opaque=opaque)


def _quaternions(
    motion: dict, key: str, path: Path, shape: tuple[int | None, ...], hint: str
) -> torch.Tensor:
    where = f"{path}: motion_data.{key}"
    return unit_quaternions(finite(field_of(motion, key, str(path)), where, shape, hint), where)


def _contacts(motion: dict, path: Path, count: int, character: Character) -> torch.Tensor | None:
    value = motion.get("body_contacts")
    if value is None:
        return None
    shape = (count, character.skeleton.num_bodies)
    where = f"{path}: motion_data.body_contacts"
    return finite(value, where, shape, "frames by bodies").clamp(0.0, 1.0)


def _terrain(data: Any, path: Path) -> Heightfield | None:
    if data is None:
        return None
    where = f"{path}: terrain_data"
    heights = numeric(field_of(data, "hf", where), f"{where}.hf").astype(np.float32)
    origin = finite(field_of(data, "min_point", where), f"{where}.min_point", (2,))
    cell = finite(field_of(data, "dx", where), f"{where}.dx", ())
    field = Heightfield(
        heights=torch.from_numpy(heights), origin=origin.float(), cell_size=_round(cell)
    )
    return field.validate(where)


def _round(cell: torch.Tensor) -> float:
    """Cell size without the noise of single precision (0.4000000059604645 is meant as 0.4)."""
    return float(np.format_float_positional(np.float32(float(cell)), unique=True))


def _path_nodes(data: Any, path: Path) -> torch.Tensor | None:
    value = data.get("path_nodes") if isinstance(data, dict) else None
    if value is None:
        return None
    return finite(value, f"{path}: misc_data.path_nodes", (None, 3)).float()
