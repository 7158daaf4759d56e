"""BVH motions (hierarchy and motion in one text) of any skeleton that a joint map knows.

Packaged maps: CMU (the conversions of its database), LAFAN1, Mixamo and others of its names; a
``joint_map.yaml`` beside the file takes their place. Channels may come in any order, at any joint;
angles are degrees, rotations apply in the order of the channels, each about the axes as turned so
far. Lengths are scaled by the legs; which axis is up is seen from where the feet are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.data.importers.raw import MAX_NUMBERS, RawMotion, brief
from parc_ray.data.retarget.joint_map import FILE_NAME, JointMap, load_joint_map
from parc_ray.data.retarget.retarget import retarget_raw
from parc_ray.data.retarget.source import SourceMotion, UpAxis
from parc_ray.errors import InputError

NAME = "bvh"
DESCRIPTION = "BVH motion text (HIERARCHY and MOTION)"

_MAX_BYTES = 256 << 20
_MAX_JOINTS = 1000
_POSITIONS = ("xposition", "yposition", "zposition")
_ROTATIONS = ("xrotation", "yrotation", "zrotation")
_ADDED = 1e-3
"""Positions of a joint that stay below this share of its offset are meant on top of it."""
_STRETCH = 0.05
"""Share of the skeleton's size by which a bone may change its length."""
_CLEARLY = 1.5
_STILL_DEG = 1e-6
_ROUNDED = 2e-4
"""Share by which a frame time of a few digits may miss that of a whole rate (0.03333 is 1/30)."""


@dataclass
class Joint:
    """One joint of the hierarchy, or the end of a bone."""

    name: str
    parent: int
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    channels: tuple[str, ...] = ()
    first: int = 0
    """Column of its first channel."""


@dataclass
class _Reader:
    """Words of a text, with the line that each stands in."""

    name: str
    lines: list[list[str]]
    at: int = 0
    joints: list[Joint] = field(default_factory=list)

    def fail(self, problem: str, needed: str) -> InputError:
        """An error that names the line."""
        return InputError(
            f"{self.name}: line {self.at}: {problem}; {needed}; correct the file or fetch it again"
        )

    def next(self) -> list[str]:
        """Words of the next line that is not empty."""
        while self.at < len(self.lines):
            words = self.lines[self.at]
            self.at += 1
            if words:
                return words
        raise self.fail("the file ends here", "a whole file is needed")


def sniff(head: bytes, path: Path) -> bool:
    """Whether the text begins as this format does."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:9].upper() == b"HIERARCHY"


def load(path: Path, character: Character) -> RawMotion:
    """Read one file and retarget it.

    Raises:
        InputError: damaged hierarchy or motion, joints that the joint map lacks, bones that change
            their length.
    """
    source, notes = read_source(path)
    joint_map = choose_map(source, path)
    if not (path.parent / FILE_NAME).is_file():
        joint_map = replace(joint_map, up=find_up(source, joint_map, character))
    raw = retarget_raw(source, joint_map, character, format_name="BVH")
    return replace(raw, notes="; ".join(n for n in (raw.notes, *notes) if n))


def read_source(path: Path) -> tuple[SourceMotion, list[str]]:
    """The motion in unit and axes of the file, and notes on it. Errors as ``load``."""
    if path.stat().st_size > _MAX_BYTES:
        raise InputError(f"{path}: more than {_MAX_BYTES >> 20} MiB; split the motion")
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    reader = _Reader(str(path), [line.split() for line in text.splitlines()])
    _read_hierarchy(reader)
    fps, block = _read_motion(reader)
    return _source(reader.joints, block, fps, str(path))


# ---- text ----------------------------------------------------------------------------------


def _read_hierarchy(reader: _Reader) -> None:
    """Fill ``reader.joints``, parents first."""
    if [w.upper() for w in reader.next()] != ["HIERARCHY"]:
        raise reader.fail("no HIERARCHY", "a BVH begins with it")
    open_joints: list[int] = []
    columns = 0
    while True:
        words = reader.next()
        key = words[0].upper()
        if key in ("ROOT", "JOINT", "END"):
            if (key == "ROOT") == bool(open_joints) or (key == "ROOT" and reader.joints):
                raise reader.fail(f"{words[0]} in the wrong place", "one tree is needed")
            parent = open_joints[-1] if open_joints else -1
            _add_joint(reader, words, parent)
            if reader.next() != ["{"]:
                raise reader.fail("no opening bracket", "'{' follows the name of a joint")
            open_joints.append(len(reader.joints) - 1)
        elif key == "OFFSET" and open_joints:
            x, y, z = _numbers(reader, words[1:], 3)
            reader.joints[open_joints[-1]].offset = (x, y, z)
        elif key == "CHANNELS" and open_joints:
            channels = _channels(reader, words)
            joint = reader.joints[open_joints[-1]]
            if joint.channels:
                raise reader.fail(f"channels of {brief(joint.name)} again", "once is needed")
            joint.channels, joint.first = channels, columns
            columns += len(channels)
        elif key == "}" and open_joints:
            open_joints.pop()
        elif key == "MOTION" and not open_joints and reader.joints:
            return
        else:
            raise reader.fail(f"{brief(words[0])} is not expected", "a whole hierarchy is needed")


def _add_joint(reader: _Reader, words: Sequence[str], parent: int) -> None:
    end = words[0].upper() == "END"
    name = f"{reader.joints[parent].name}_end" if end else " ".join(words[1:])
    if not name or any(joint.name == name for joint in reader.joints):
        raise reader.fail(f"joint {brief(name)} without a name of its own", "names must differ")
    if len(reader.joints) >= _MAX_JOINTS:
        raise reader.fail(f"more than {_MAX_JOINTS} joints", "a skeleton is needed")
    reader.joints.append(Joint(name, parent))


def _channels(reader: _Reader, words: Sequence[str]) -> tuple[str, ...]:
    channels = tuple(word.lower() for word in words[2:])
    known = all(c in (*_POSITIONS, *_ROTATIONS) for c in channels)
    counted = len(words) > 1 and words[1] == str(len(channels))
    if not known or not counted or len(set(channels)) != len(channels):
        raise reader.fail(
            f"channels {brief(' '.join(words[1:]))}",
            "their number and different ones of Xposition .. Zrotation are needed",
        )
    return channels


def _numbers(reader: _Reader, words: Sequence[str], count: int) -> list[float]:
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != count or not all(math.isfinite(v) for v in values):
        raise reader.fail(brief(" ".join(words)), f"{count} finite numbers are needed")
    return values


def _read_motion(reader: _Reader) -> tuple[float, Tensor]:
    """Frames per second and channels (T, C)."""
    words = reader.next()
    if len(words) != 2 or words[0].lower() != "frames:" or not words[1].isdecimal():
        raise reader.fail("no 'Frames: N'", "the number of frames is needed here")
    count = int(words[1]) if len(words[1]) < 10 else MAX_NUMBERS
    words = reader.next()
    if [w.lower() for w in words[:2]] != ["frame", "time:"]:
        raise reader.fail("no 'Frame Time:'", "the duration of a frame is needed here")
    (step,) = _numbers(reader, words[2:], 1)
    if not 1e-3 <= step <= 1.0:
        raise reader.fail(f"frames of {step:g} s", "0.001 to 1 s are allowed")
    columns = sum(len(joint.channels) for joint in reader.joints)
    rows = [line for line in reader.lines[reader.at :] if line]
    if len(rows) != count or count < 2:
        raise reader.fail(
            f"{len(rows)} rows for {_said(count)} frames", "a row per frame, 2 or more are needed"
        )
    block = []
    for row in rows:
        reader.at += 1
        block.append(_numbers(reader, row, columns))
    rate, whole = 1.0 / step, round(1.0 / step)
    rate = float(whole) if abs(rate - whole) < _ROUNDED * rate else rate
    return rate, torch.from_numpy(np.array(block, dtype=np.float64).reshape(count, columns))


def _said(count: int) -> str:
    """A number of frames, for messages."""
    return str(count) if count < MAX_NUMBERS else "very many"


# ---- motion --------------------------------------------------------------------------------


def _source(
    joints: Sequence[Joint], block: Tensor, fps: float, name: str
) -> tuple[SourceMotion, list[str]]:
    notes = []
    turning = [
        joint.first + k
        for joint in joints
        for k, channel in enumerate(joint.channels)
        if channel in _ROTATIONS
    ]
    moved = block[:, turning].abs().amax(-1) > _STILL_DEG
    if len(block) > 2 and not bool(moved[0]) and bool(moved[1]):
        block = block[1:]  # the conversions of CMU's database put the rest pose in front
        notes.append("first frame left out: the rest pose")
    size = sum(math.dist(joint.offset, (0.0, 0.0, 0.0)) for joint in joints[1:])
    places = [_place(joint, block) for joint in joints]
    offsets = [
        _offset(joint, place, size, name) for joint, place in zip(joints, places, strict=True)
    ]
    source = SourceMotion(
        name=name,
        joint_names=tuple(joint.name for joint in joints),
        parents=tuple(joint.parent for joint in joints),
        offsets=torch.stack(offsets),
        root_pos=places[0],
        local_rot=torch.stack([_turn(joint, block) for joint in joints], dim=1),
        fps=fps,
    )
    return source, notes


def _place(joint: Joint, block: Tensor) -> Tensor:
    """(T, 3) place in the parent's frame: the offset, replaced by position channels."""
    place = block.new_tensor(joint.offset).repeat(len(block), 1)
    for k, channel in enumerate(joint.channels):
        if channel in _POSITIONS:
            place[:, _POSITIONS.index(channel)] = block[:, joint.first + k]
    return place


def _offset(joint: Joint, place: Tensor, size: float, name: str) -> Tensor:
    """(3,) constant offset of a joint, whose position channels may repeat it or add to it."""
    offset = place.new_tensor(joint.offset)
    if joint.parent < 0 or not any(channel in _POSITIONS for channel in joint.channels):
        return offset
    middle = place.median(dim=0).values
    if float(middle.norm()) < _ADDED * float(offset.norm()):
        middle, place = middle + offset, place + offset
    if float((place - middle).norm(dim=-1).max()) > _STRETCH * max(size, 1e-9):
        raise InputError(
            f"{name}: joint {brief(joint.name)} moves away from its parent; bones of constant "
            "length are needed; export the motion without positions of joints but the root's"
        )
    return middle


def _turn(joint: Joint, block: Tensor) -> Tensor:
    """(T, 4) rotation of a joint, its channels applied in their order."""
    turn = block.new_tensor([0.0, 0.0, 0.0, 1.0]).repeat(len(block), 1)
    for k, channel in enumerate(joint.channels):
        if channel in _ROTATIONS:
            axis = block.new_zeros(3)
            axis[_ROTATIONS.index(channel)] = 1.0
            angle = torch.deg2rad(block[:, joint.first + k])
            turn = rot.quat_mul(turn, rot.quat_from_axis_angle(axis, angle))
    return turn


# ---- skeleton ------------------------------------------------------------------------------


def choose_map(source: SourceMotion, path: Path) -> JointMap:
    """The joint map beside the file, else the packaged one that the joints' names speak for."""
    names = {name.lower() for name in source.joint_names}
    kind = "bvh_mixamo"
    if {"lhipjoint", "rhipjoint"} <= names:
        kind = "bvh_cmu"
    elif {"lefttoe", "righttoe", "spine2", "hips"} <= names:
        kind = "bvh_lafan1"
    return load_joint_map(kind, beside=path)


def find_up(source: SourceMotion, joint_map: JointMap, character: Character) -> UpAxis:
    """The axis of the file that points up: from the feet to the root, over the whole motion.

    Where the motion does not tell (lying, upside down) the rest pose does, and else the map.
    """
    mapped = joint_map.resolve(source.joint_names, character, source.name)
    feet = [mapped[foot] for foot in character.feet if foot in mapped]
    if not feet:
        return joint_map.up
    place, _ = source.forward()
    rest, _ = source.rest()
    for way in (place[:, 0].mean(0) - place[:, feet].mean((0, 1)), rest[0] - rest[feet].mean(0)):
        order = way.abs().argsort(descending=True)
        first, second = float(way[order[0]]), float(way[order[1]].abs())
        if first > _CLEARLY * second:
            return ("x", "y", "z")[int(order[0])]
    return joint_map.up
