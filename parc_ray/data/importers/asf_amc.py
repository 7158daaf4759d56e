"""Acclaim skeletons and motions (ASF/AMC), as the CMU motion capture database has them.

A motion (.amc) needs its skeleton (.asf) in the same directory: the one of the same name or of the
same subject ("02_01.amc" has "02.asf"), else the only one there. Bones become joints at their
beginnings; the ends of the last bones are joints named "..._end". A bone turns by C M C^-1 relative
to its parent, with its axis frame C and its channels M; the first named axis turns first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.data.importers.raw import RawMotion
from parc_ray.data.retarget.joint_map import load_joint_map
from parc_ray.data.retarget.retarget import retarget_raw
from parc_ray.data.retarget.source import SourceMotion
from parc_ray.errors import InputError

NAME = "asf_amc"
DESCRIPTION = "Acclaim motion text (.amc beside its .asf)"
LICENCE = "CMU free use (no direct resale of the data), mocap.cs.cmu.edu"

CMU_FPS = 120.0
"""Hz, rate of the CMU database; the format itself does not tell (``fps`` in a joint map does)."""
_INCH_M = 0.0254
_MAX_BYTES = 64 << 20
_MAX_BONES = 256
_LONGEST_NAME = 80
_ANGLES = ("rx", "ry", "rz")
_ROOT_COLUMNS = {"tx", "ty", "tz", *_ANGLES}
_ORDERS = ("xyz", "xzy", "yxz", "yzx", "zxy", "zyx")
_OPENING = re.compile(
    rb"\A\s*(?:#[^\n]*\n\s*)*(?::[A-Za-z-]+[^\n]*\n\s*)*\d+[ \t\r]*\n\s*[A-Za-z]\w*[ \t]+[-+.\d]"
)


@dataclass(frozen=True, kw_only=True)
class Bone:
    """One bone of an ASF file, or its root (of no length)."""

    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """From its beginning to its end at rest, unit and axes of the file."""
    axis: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Angles of its axis frame, in the order of ``axis_order``."""
    axis_order: str = "xyz"
    """Axes in the order in which they turn."""
    channels: tuple[str, ...] = ()
    """Names of its columns."""


@dataclass(frozen=True, kw_only=True)
class AsfSkeleton:
    """What an ASF file says."""

    bones: dict[str, Bone]
    """By name, "root" included."""
    parents: dict[str, str]
    """Parent of each bone, parents first; without the root."""
    unit_m: float
    """Metres per unit of length."""
    degrees: bool
    """Whether angles are degrees."""
    root_position: tuple[float, float, float]
    """Rest position of the root."""


def sniff(head: bytes, path: Path) -> bool:
    """Whether the first bytes look like the beginning of an AMC file: a frame and its root."""
    return b"\0" not in head and _OPENING.match(head) is not None


def load(path: Path, character: Character) -> RawMotion:
    """Read one motion and its skeleton and retarget it.

    Raises:
        InputError: no skeleton, unknown bones, wrong counts, numbers that are none, or joints that
            the joint map lacks.
    """
    joint_map = load_joint_map("cmu", beside=path)
    source = read_source(path, joint_map.fps or CMU_FPS)
    return retarget_raw(
        source, joint_map, character, format_name="Acclaim ASF/AMC", licence=LICENCE
    )


def read_source(path: Path, fps: float = CMU_FPS) -> SourceMotion:
    """The motion with its own skeleton in metres, y up as in the file. Errors as ``load``."""
    asf = skeleton_file(path)
    skeleton = parse_asf(_text(asf), str(asf))
    return build_source(skeleton, parse_amc(_text(path), skeleton, str(path)), str(path), fps)


def skeleton_file(path: Path) -> Path:
    """The .asf that belongs to an .amc: of the same name or subject, else the only one there."""
    found = sorted(p for p in path.parent.iterdir() if p.suffix.lower() == ".asf" and p.is_file())
    stem = path.stem.lower()
    for wanted in (stem, stem.split("_")[0]):
        for candidate in found:
            if candidate.stem.lower() == wanted:
                return candidate
    if len(found) == 1:
        return found[0]
    there = ", ".join(p.name for p in found[:6]) or "none"
    raise InputError(
        f"{path}: no skeleton for it (.asf files there: {there}); "
        f"{stem.split('_')[0]}.asf is needed beside it; copy it there"
    )


def _text(path: Path) -> str:
    if path.stat().st_size > _MAX_BYTES:
        raise InputError(f"{path}: more than {_MAX_BYTES >> 20} MiB; split the motion")
    return path.read_bytes().decode("latin-1")


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number and words of each line that is neither empty nor a comment."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if words:
            yield number, words


def _numbers(words: Sequence[str], count: int, where: str) -> tuple[float, ...]:
    """``count`` finite numbers from words."""
    try:
        values = tuple(float(w) for w in words)
    except ValueError:
        values = ()
    if len(values) != count or not all(math.isfinite(v) for v in values):
        shown = " ".join(words)[:60]
        raise InputError(f"{where}: {shown!r}; {count} finite numbers are needed; correct the file")
    return values


# ---- skeleton ------------------------------------------------------------------------------


def parse_asf(text: str, name: str) -> AsfSkeleton:
    """The skeleton that an ASF text describes; ``name`` is what messages call it."""
    sections: dict[str, list[tuple[int, list[str]]]] = {}
    current: list[tuple[int, list[str]]] = []
    for number, words in _lines(text):
        if words[0].startswith(":"):
            current = sections.setdefault(words[0].lower(), [])
        else:
            current.append((number, words))
    for needed in (":root", ":bonedata", ":hierarchy"):
        if needed not in sections:
            raise InputError(
                f"{name}: no section {needed}; a complete ASF is needed; fetch it again"
            )
    units = {w[0].lower(): w[1] for _, w in sections.get(":units", []) if len(w) == 2}
    (length,) = _numbers([units.get("length", "1.0")], 1, f"{name}: units: length")
    if not length > 0.0:
        raise InputError(f"{name}: units: length: {length:g}; a number > 0 is needed; correct it")
    bones = dict(_bones(sections[":bonedata"], name))
    root, position = _root(sections[":root"], name)
    bones["root"] = root
    if len(bones) > _MAX_BONES:
        raise InputError(f"{name}: {len(bones)} bones; up to {_MAX_BONES} are allowed; check it")
    return AsfSkeleton(
        bones=bones,
        parents=_hierarchy(sections[":hierarchy"], bones, name),
        unit_m=_INCH_M / length,
        degrees=not units.get("angle", "deg").lower().startswith("rad"),
        root_position=position,
    )


def _root(lines: list[tuple[int, list[str]]], name: str) -> tuple[Bone, tuple[float, float, float]]:
    table = {words[0].lower(): words[1:] for _, words in lines}
    order = tuple(w.lower() for w in table.get("order", []))
    if len(order) != len(_ROOT_COLUMNS) or set(order) != _ROOT_COLUMNS:
        raise InputError(
            f"{name}: root: order: {' '.join(order)!r}; each of TX TY TZ RX RY RZ once is needed; "
            "correct the file"
        )
    position = _triple(table.get("position", ["0"] * 3), f"{name}: root: position")
    axis_order = _order(table.get("axis", ["XYZ"])[:1], f"{name}: root: axis")
    axis = _triple(table.get("orientation", ["0"] * 3), f"{name}: root: orientation")
    return Bone(axis=axis, axis_order=axis_order, channels=order), position


def _triple(words: Sequence[str], where: str) -> tuple[float, float, float]:
    x, y, z = _numbers(words, 3, where)
    return x, y, z


def _order(words: Sequence[str], where: str) -> str:
    order = "".join(words).lower()
    if order not in _ORDERS:
        raise InputError(
            f"{where}: order {order[:40]!r}; XYZ in any order is allowed; correct the file"
        )
    return order


def _bones(lines: list[tuple[int, list[str]]], name: str) -> Iterator[tuple[str, Bone]]:
    """Names and bones between ``begin`` and ``end``."""
    table: dict[str, list[str]] | None = None
    seen = {"root"}
    for number, words in lines:
        key = words[0].lower()
        if key == "begin":
            table = {}
        elif table is None:
            raise InputError(
                f"{name}: line {number}: {key[:40]!r} outside begin and end; correct it"
            )
        elif key == "end":
            bone_name = " ".join(table.get("name", []))
            if not bone_name or bone_name in seen or len(bone_name) > _LONGEST_NAME:
                raise InputError(
                    f"{name}: line {number}: bone name {bone_name[:40]!r} is missing, used twice "
                    f"or longer than {_LONGEST_NAME}; every bone needs one; correct the file"
                )
            seen.add(bone_name)
            yield bone_name, _bone(table, f"{name}: bone {bone_name!r}")
            table = None
        else:
            table.setdefault(key, words[1:])
    if table is not None:
        raise InputError(f"{name}: bonedata ends within a bone; the file is cut; fetch it again")


def _bone(table: dict[str, list[str]], where: str) -> Bone:
    direction = np.array(_numbers(table.get("direction", []), 3, f"{where}: direction"))
    (length,) = _numbers(table.get("length", []), 1, f"{where}: length")
    norm = float(np.linalg.norm(direction))
    if length < 0.0 or (length > 0.0 and norm < 1e-9):
        raise InputError(f"{where}: length {length:g} along nothing or backwards; correct the file")
    axis = table.get("axis", ["0", "0", "0", "XYZ"])
    channels = tuple(w.lower() for w in table.get("dof", []))
    if len(set(channels)) != len(channels) or not set(channels) <= set(_ANGLES):
        raise InputError(
            f"{where}: dof: {' '.join(channels)!r}; rx, ry and rz are allowed; bones that shift or "
            "stretch are not supported, export the motion with rigid bones"
        )
    x, y, z = (direction * (length / norm if norm else 0.0)).tolist()
    return Bone(
        offset=(x, y, z),
        axis=_triple(axis[:3], f"{where}: axis"),
        axis_order=_order(axis[3:], f"{where}: axis"),
        channels=channels,
    )


def _hierarchy(
    lines: list[tuple[int, list[str]]], bones: dict[str, Bone], name: str
) -> dict[str, str]:
    """Parent of each bone, parents before children."""
    parents: dict[str, str] = {}
    reached = {"root"}
    for number, words in lines:
        if words[0].lower() in ("begin", "end"):
            continue
        for word in words:
            if word not in bones:
                raise InputError(
                    f"{name}: line {number}: bone {word[:40]!r} is not in bonedata; bones are "
                    f"{', '.join(list(bones)[:8])}, ...; correct the file"
                )
        for child in words[1:]:
            if words[0] not in reached or child in reached:
                raise InputError(
                    f"{name}: line {number}: {words[0]!r} has no parent yet or {child!r} has two; "
                    "the hierarchy must be one tree from the root; correct the file"
                )
            parents[child] = words[0]
            reached.add(child)
    if len(reached) < 2:
        raise InputError(f"{name}: hierarchy: nothing below the root; correct the file")
    return parents


# ---- motion --------------------------------------------------------------------------------


def parse_amc(text: str, skeleton: AsfSkeleton, name: str) -> dict[str, np.ndarray]:
    """Channels (T, n) of every bone that has some, in the units of the file.

    Raises:
        InputError: a bone that the skeleton lacks, a wrong number of values, a bone missing from a
            frame, frames that do not count up by one.
    """
    used = {b: bone for b, bone in skeleton.bones.items() if bone.channels}
    used = {b: bone for b, bone in used.items() if b == "root" or b in skeleton.parents}
    frames: dict[str, list[tuple[float, ...]]] = {bone: [] for bone in used}
    count, first = 0, 0
    for number, words in _lines(text):
        where = f"{name}: line {number}"
        if words[0].startswith(":"):
            continue
        if len(words) == 1 and words[0].isdecimal() and words[0].isascii():
            frame = int(words[0][:12])
            first = first if count else frame
            if frame != first + count:
                raise InputError(f"{where}: frame {frame} after {first + count - 1}; correct it")
            _complete(frames, count, name)
            count += 1
            continue
        if words[0] not in used:
            raise InputError(
                f"{where}: bone {words[0][:40]!r} has no channels in the skeleton; bones are "
                f"{', '.join(list(used)[:8])}, ...; use the .asf of this subject"
            )
        rows = frames[words[0]]
        if len(rows) != count - 1:
            raise InputError(
                f"{where}: bone {words[0]!r} twice in frame {count} or before the first frame; "
                "correct the file"
            )
        channels = used[words[0]].channels
        rows.append(_numbers(words[1:], len(channels), f"{where}: {words[0]}"))
    _complete(frames, count, name)
    return {
        bone: np.array(rows).reshape(count, len(used[bone].channels))
        for bone, rows in frames.items()
    }


def _complete(frames: dict[str, list[tuple[float, ...]]], count: int, name: str) -> None:
    for bone, rows in frames.items():
        if len(rows) < count:
            raise InputError(
                f"{name}: frame {count}: no line for bone {bone!r}; every frame needs all of the "
                "skeleton's bones that move; the file may be cut, fetch it again"
            )


def build_source(
    skeleton: AsfSkeleton, channels: dict[str, np.ndarray], name: str, fps: float
) -> SourceMotion:
    """Joints at the beginnings of bones, rotations C M C^-1; metres, axes of the file."""
    names, parents, offsets = ["root"], [-1], [(0.0, 0.0, 0.0)]
    for bone, parent in skeleton.parents.items():
        names.append(bone)
        parents.append(names.index(parent))
        offsets.append(skeleton.bones[parent].offset)
    has_child = set(skeleton.parents.values())
    for bone in [b for b in skeleton.parents if b not in has_child]:
        parents.append(names.index(bone))
        names.append(f"{bone}_end")
        offsets.append(skeleton.bones[bone].offset)
    count = len(channels["root"])
    local = torch.zeros(count, len(names), 4, dtype=torch.float64)
    local[..., 3] = 1.0
    unit = math.pi / 180.0 if skeleton.degrees else 1.0
    for bone, values in channels.items():
        local[:, names.index(bone)] = _rotation(skeleton.bones[bone], values, unit)
    root = channels["root"]
    shift = [skeleton.bones["root"].channels.index(c) for c in ("tx", "ty", "tz")]
    position = root[:, shift] + np.array(skeleton.root_position)
    return SourceMotion(
        name=name,
        joint_names=tuple(names),
        parents=tuple(parents),
        offsets=torch.tensor(offsets, dtype=torch.float64) * skeleton.unit_m,
        root_pos=torch.from_numpy(position * skeleton.unit_m),
        local_rot=local,
        fps=fps,
    )


def _rotation(bone: Bone, values: np.ndarray, unit: float) -> Tensor:
    """(T, 4) of the channels of one bone, relative to its parent."""
    axis = np.array(bone.axis)[None] * unit
    frame = _turns({c: axis[:, i] for i, c in enumerate(bone.axis_order)}, bone.axis_order)
    angles = {c[1]: values[:, i] * unit for i, c in enumerate(bone.channels) if c in _ANGLES}
    order = bone.axis_order if len(angles) == len(_ANGLES) else "".join(angles)
    turn = _turns(angles, order)
    frame = frame.expand_as(turn)
    return rot.quat_mul(frame, rot.quat_mul(turn, rot.quat_conj(frame)))


def _turns(angles: dict[str, np.ndarray], order: str) -> Tensor:
    """Rotation (T, 4) about the axes of ``order`` one after another, all of them fixed."""
    count = len(next(iter(angles.values())))
    result = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64).expand(count, 4)
    for letter in order:
        axis = torch.eye(3, dtype=torch.float64)["xyz".index(letter)]
        turn = rot.quat_from_axis_angle(axis, torch.from_numpy(angles[letter].copy()))
        result = rot.quat_mul(turn, result)
    return result
