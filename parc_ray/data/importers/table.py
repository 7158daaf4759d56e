"""Motions as tables in columns of our own: CSV and NPZ; docs/data.md shows both.

A CSV has one row per frame and names its columns: ``root_pos_x`` .. ``z`` (m), ``root_rot_x`` ..
``w``, one per degree of freedom, and if wanted ``time`` (s) and ``contact_<body>``. Lines that
begin with ``#`` before the names may say ``fps: 50``, ``loop: wrap`` or ``angles: degrees``. As
columns are found by name, files of robots differ in names only; the usual short ones are known.
An NPZ has arrays named as the columns of stored data sets, in their natural shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.data.importers.raw import RawMotion, brief, finite, frame_rate, unit_quaternions
from parc_ray.data.npz import array_names, read_arrays
from parc_ray.errors import InputError
from parc_ray.motion.clip import LoopMode
from parc_ray.terrain.heightfield import Heightfield

NAME = "table"
DESCRIPTION = "table of our columns (CSV or NPZ with root_pos, root_rot, degrees of freedom)"

CONTACT_PREFIX = "contact_"
POSITION = ("root_pos_x", "root_pos_y", "root_pos_z")
ROTATION = ("root_rot_x", "root_rot_y", "root_rot_z", "root_rot_w")
TERRAIN_LAYERS = ("upper", "lower", "confidence")
_ALIASES = {
    **{f"{word}{axis}": f"root_pos_{axis}" for axis in "xyz" for word in ("", "root_", "pos_")},
    **{
        f"{word}{axis}": f"root_rot_{axis}"
        for axis in "xyzw"
        for word in ("q", "root_q", "quat_", "root_quat_")
    },
    "t": "time",
}
_NPZ_NAMES = (
    *("root_pos", "root_rot", "dof", "contacts", "fps", "loop", "path_nodes"),
    *("dof_names", "body_names", "terrain_heights", "terrain_origin", "terrain_cell_size"),
    *(f"terrain_{layer}" for layer in TERRAIN_LAYERS),
)
_NORM_TOLERANCE = 0.01
_UNEVEN = 0.02
"""Share of a frame by which times may leave an even rate."""


def sniff(head: bytes, path: Path) -> bool:
    """Whether it is an archive or a text with the columns of a root."""
    if head.startswith(b"PK"):
        return {"root_pos", "root_rot"} <= set(array_names(path))
    names = _names_of(head.decode("utf-8-sig", errors="replace"))
    return {*POSITION, *ROTATION} <= set(names)


def load(path: Path, character: Character) -> RawMotion:
    """Read one file.

    Raises:
        InputError: columns missing, unknown or twice, no frame rate, rows of different lengths,
            NaN, bad quaternions.
    """
    with path.open("rb") as file:
        archive = file.read(2) == b"PK"
    return _load_npz(path, character) if archive else _load_csv(path, character)


# ---- CSV -----------------------------------------------------------------------------------


def _load_csv(path: Path, character: Character) -> RawMotion:
    name = str(path)
    said, names, block = _read_csv(path)
    columns = {column: block[:, k] for k, column in enumerate(names)}
    dofs, bodies = character.skeleton.dof_names, character.skeleton.body_names
    contacts = [f"{CONTACT_PREFIX}{body}" for body in bodies]
    _check_columns(names, (*POSITION, *ROTATION, *dofs), ("time", *contacts), character, name)

    def pick(wanted: Sequence[str]) -> Tensor:
        return torch.stack([columns[column] for column in wanted], dim=-1)

    labels = None
    if any(column in columns for column in contacts):
        none = torch.zeros(len(block), dtype=torch.float64)
        labels = torch.stack([columns.get(column, none) for column in contacts], dim=-1)
    turn = math.pi / 180.0 if _one_of(said, "angles", ("radians", "degrees"), name) else 1.0
    where = f"{name}: root_rot"
    return RawMotion(
        root_pos=pick(POSITION),
        root_rot=unit_quaternions(pick(ROTATION), where, _NORM_TOLERANCE),
        dof=pick(dofs) * turn if dofs else block.new_zeros(len(block), 0),
        fps=_rate(said, columns.get("time"), name),
        loop="wrap" if _one_of(said, "loop", ("clamp", "wrap"), name) else "clamp",
        contacts=None if labels is None else labels.clamp(0.0, 1.0),
        source="CSV table",
        licence=said.get("licence", "unknown"),
    )


def _read_csv(path: Path) -> tuple[dict[str, str], list[str], Tensor]:
    """What the comments say, names of the columns, and the numbers (T, columns)."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); a table of numbers is "
            "needed; save it as CSV in UTF-8"
        ) from error
    lines = text.splitlines()
    at = next((k for k, line in enumerate(lines) if line.strip() and line[0] != "#"), 0)
    names = _names_of(text)
    rows = []
    for number, line in enumerate(lines[at + 1 :], start=at + 2):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != len(names):
            raise InputError(
                f"{path}: line {number} has {len(cells)} cells; {len(names)} are needed, as many "
                "as names; correct the file"
            )
        try:
            rows.append([float(cell) for cell in cells])
        except ValueError as error:
            raise InputError(
                f"{path}: line {number}: {str(error)[:80]}; numbers are needed; correct the file"
            ) from error
    if not rows:
        raise InputError(f"{path}: no rows of numbers; a row per frame is needed; export it again")
    said = dict(_remark(line) for line in lines[:at] if ":" in line)
    block = finite(rows, f"{path}: table", (None, len(names)), f"columns {', '.join(names[:3])} ..")
    return said, names, block


def _names_of(text: str) -> list[str]:
    """Column names of the first line that is no comment, short ones written out."""
    line = next((row for row in text.splitlines() if row.strip() and row[0] != "#"), "")
    names = [cell.strip().strip('"').strip() for cell in line.split(",")]
    return [_ALIASES.get(name.lower(), name) for name in names]


def _remark(line: str) -> tuple[str, str]:
    key, _, value = line.lstrip("#").partition(":")
    return key.strip().lower(), value.strip()


def _one_of(said: dict[str, str], key: str, allowed: tuple[str, str], name: str) -> bool:
    """Whether a remark says the second of two words; the first is understood where it is absent."""
    value = said.get(key, allowed[0]).lower()
    if value not in allowed:
        raise InputError(
            f"{name}: # {key}: {brief(value)}; {' or '.join(allowed)} is allowed; correct the line"
        )
    return value == allowed[1]


def _check_columns(
    names: Sequence[str],
    needed: Sequence[str],
    optional: Sequence[str],
    character: Character,
    name: str,
) -> None:
    twice = sorted({column for column in names if list(names).count(column) > 1})
    missing = [column for column in needed if column not in names]
    unknown = [column for column in names if column not in needed and column not in optional]
    for problem, columns in (("twice", twice), ("missing", missing), ("unknown", unknown)):
        if columns:
            raise InputError(
                f"{name}: {len(columns)} columns {problem} ({', '.join(map(brief, columns[:4]))}); "
                f"root_pos_x .. z, root_rot_x .. w and the degrees of freedom of character "
                f"{character.name!r} are needed, time and contact_<body> are allowed; rename them"
            )


def _rate(said: dict[str, str], times: Tensor | None, name: str) -> float:
    """Frames per second, from the remark or from the times."""
    if "fps" in said or times is None:
        if "fps" not in said:
            raise InputError(
                f"{name}: no frame rate; a line '# fps: 30' above the names, or a column 'time' in "
                "s is needed; add one"
            )
        return frame_rate(said["fps"], f"{name}: # fps")
    if len(times) < 2:
        raise InputError(f"{name}: 1 frame; 2 or more are needed; use a longer motion")
    step = float(times[-1] - times[0]) / (len(times) - 1)
    even = times[0] + step * torch.arange(len(times), dtype=times.dtype)
    if not step > 0.0 or float((times - even).abs().max()) > _UNEVEN * step:
        raise InputError(
            f"{name}: column time is not even; frames of one distance are needed; resample it"
        )
    return frame_rate(1.0 / step, f"{name}: time")


# ---- NPZ -----------------------------------------------------------------------------------


def _load_npz(path: Path, character: Character) -> RawMotion:
    name = str(path)
    arrays = read_arrays(path, _NPZ_NAMES)
    missing = [key for key in ("root_pos", "root_rot", "dof", "fps") if key not in arrays]
    if missing:
        raise InputError(
            f"{name}: arrays {', '.join(missing)} are missing; root_pos, root_rot, dof and fps are "
            "needed; add them"
        )
    skeleton = character.skeleton
    root_pos = finite(arrays["root_pos"], f"{name}: root_pos", (None, 3), "frames by xyz")
    count = len(root_pos)
    root_rot = finite(arrays["root_rot"], f"{name}: root_rot", (count, 4), "frames by xyzw")
    hint = f"frames by degrees of freedom of character {character.name!r}"
    dof = finite(arrays["dof"], f"{name}: dof", (count, skeleton.num_dofs), hint)
    contacts = None
    if "contacts" in arrays:
        shape = (count, skeleton.num_bodies)
        contacts = finite(arrays["contacts"], f"{name}: contacts", shape, "frames by bodies")
        contacts = contacts[:, _order(arrays, "body_names", skeleton.body_names, name)]
    nodes = arrays.get("path_nodes")
    return RawMotion(
        root_pos=root_pos,
        root_rot=unit_quaternions(root_rot, f"{name}: root_rot", _NORM_TOLERANCE),
        dof=dof[:, _order(arrays, "dof_names", skeleton.dof_names, name)],
        fps=frame_rate(_single(arrays["fps"], f"{name}: fps"), f"{name}: fps"),
        loop=_loop(arrays, name),
        contacts=None if contacts is None else contacts.clamp(0.0, 1.0),
        terrain=_terrain(arrays, name),
        path_nodes=None
        if nodes is None
        else finite(nodes, f"{name}: path_nodes", (None, 3)).float(),
        source="NPZ table",
    )


def _single(value: np.ndarray, where: str) -> Any:
    if value.size != 1:
        raise InputError(f"{where}: {value.size} values; one is needed; correct the file")
    return value.reshape(-1)[0].item()


def _loop(arrays: dict[str, np.ndarray], name: str) -> LoopMode:
    value = "clamp"
    if "loop" in arrays:
        value = str(_single(arrays["loop"], f"{name}: loop")).lower()
    if value not in ("clamp", "wrap"):
        raise InputError(
            f"{name}: loop: {brief(value)}; clamp or wrap is allowed; correct the file"
        )
    return "wrap" if value == "wrap" else "clamp"


def _order(arrays: dict[str, np.ndarray], key: str, wanted: Sequence[str], name: str) -> list[int]:
    """Where each name stands in the file; as the character has them where the file has no names."""
    if key not in arrays:
        return list(range(len(wanted)))
    found = [str(value) for value in arrays[key].reshape(-1)]
    if sorted(found) != sorted(wanted):
        odd = sorted(set(found) ^ set(wanted)) or sorted({n for n in found if found.count(n) > 1})
        raise InputError(
            f"{name}: {key} differ from the character's ({', '.join(map(brief, odd[:4]))}); the "
            "same names in any order are needed; rename them or leave the array out"
        )
    return [found.index(value) for value in wanted]


def _terrain(arrays: dict[str, np.ndarray], name: str) -> Heightfield | None:
    if "terrain_heights" not in arrays:
        return None
    missing = [k for k in ("terrain_origin", "terrain_cell_size") if k not in arrays]
    if missing:
        raise InputError(
            f"{name}: arrays {', '.join(missing)} are missing; a terrain needs its origin and cell "
            "size; add them"
        )
    heights = finite(arrays["terrain_heights"], f"{name}: terrain_heights", (None, None), "x by y")
    shape = tuple(heights.shape)
    layers = {
        layer: finite(arrays[f"terrain_{layer}"], f"{name}: terrain_{layer}", shape).float()
        for layer in TERRAIN_LAYERS
        if f"terrain_{layer}" in arrays
    }
    cell = arrays["terrain_cell_size"]
    field = Heightfield(
        heights=heights.float(),
        origin=finite(arrays["terrain_origin"], f"{name}: terrain_origin", (2,)).float(),
        cell_size=float(finite(_single(cell, f"{name}: terrain_cell_size"), name, ())),
        **layers,
    )
    return field.validate(f"{name}: terrain")
