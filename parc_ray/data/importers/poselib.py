"""Poselib motions (AMP, ASE, IsaacGym): one dict in a numpy file, which is a pickle inside.

``rotation`` (T, B, 4) xyzw and ``root_translation`` (T, 3) m, z up, with a ``skeleton_tree`` of
``node_names``, ``parent_indices`` and ``local_translation``. Joints are mapped by body name. Where
the file's limbs point another way at rest (its arms hang down, here they point sideways) the
rotations are turned by the angle between the two (docs/design/data.md, File formats).
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import joint_rot_to_dof
from parc_ray.character.skeleton import Skeleton
from parc_ray.data.importers.raw import RawMotion, field_of, finite, frame_rate, unit_quaternions
from parc_ray.data.npz import read_header
from parc_ray.data.unpickle import check_not_pointer, safe_load
from parc_ray.errors import InputError

NAME = "poselib"
DESCRIPTION = "poselib motion (numpy file with rotation, root_translation, skeleton_tree)"

_MAGIC = b"\x93NUMPY"
_SAME_DIRECTION = math.cos(math.radians(30.0))
"""Limbs that differ by less at rest differ in proportion, not in pose."""


def sniff(head: bytes, path: Path) -> bool:
    """Whether the first bytes are a numpy file that holds one object."""
    return head.startswith(_MAGIC) and b"|O" in head[:128]


def load(path: Path, character: Character) -> RawMotion:
    """Read one file.

    Raises:
        InputError: not readable, hostile, fields missing, NaN, bad quaternions, or a character
            whose bodies the file does not name.
    """
    name = str(path)
    data = _content(path.read_bytes(), name)
    tree = field_of(data, "skeleton_tree", name)
    names = _node_names(tree, name)
    count = len(names)
    hint = f"frames by {count} bodies of the skeleton_tree by xyzw"
    rotation = finite(_array(data, "rotation", name), f"{name}: rotation", (None, count, 4), hint)
    local = unit_quaternions(rotation, f"{name}: rotation")
    parents = _parents(tree, count, name)
    if not _flag(data.get("is_local", True), f"{name}: is_local"):
        local = _to_local(local, parents)
    offsets = finite(
        _array(tree, "local_translation", name),
        f"{name}: skeleton_tree.local_translation",
        (count, 3),
    )
    where = f"{name}: root_translation"
    order = _order(names, parents, character.skeleton, character.name, name)
    root_rot, joint_rot = _turned(local[:, order], offsets[order], character.skeleton)
    return RawMotion(
        root_pos=finite(_array(data, "root_translation", name), where, (len(rotation), 3)),
        root_rot=root_rot,
        dof=joint_rot_to_dof(character.skeleton, joint_rot),
        fps=frame_rate(field_of(data, "fps", name), f"{name}: fps"),
        loop="clamp",
        source="poselib motion",
    )


def _content(data: bytes, name: str) -> Any:
    """The dict inside the file, through the restricted reader and never through numpy's own."""
    check_not_pointer(data[:128], name)
    stream = io.BytesIO(data)
    shape, _, dtype = read_header(stream, name)
    if dtype != np.dtype(object) or shape != ():
        raise InputError(
            f"{name}: numpy array of {dtype} with shape {shape}; one object with rotation, "
            "root_translation and skeleton_tree is needed; export the motion with poselib"
        )
    content = safe_load(data[stream.tell() :], name, objects=True)
    return content.item() if isinstance(content, np.ndarray) and content.size == 1 else content


def _array(data: Any, key: str, name: str) -> Any:
    """A field, which poselib wraps as ``{"arr": ..., "context": ...}``."""
    value = field_of(data, key, name)
    return field_of(value, "arr", f"{name}: {key}") if isinstance(value, dict) else value


def _flag(value: Any, where: str) -> bool:
    return bool(finite(value, where, ()).item())


def _node_names(tree: Any, name: str) -> list[str]:
    names = field_of(tree, "node_names", f"{name}: skeleton_tree")
    names = names.tolist() if isinstance(names, np.ndarray) else names
    good = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)
    if not good or len(set(names)) != len(names) or not names:
        raise InputError(
            f"{name}: skeleton_tree.node_names is no list of different body names; a complete file "
            "is needed; export it again"
        )
    return list(names)


def _parents(tree: Any, count: int, name: str) -> list[int]:
    where = f"{name}: skeleton_tree.parent_indices"
    values = finite(_array(tree, "parent_indices", name), where, (count,)).tolist()
    for body, parent in enumerate(values):
        if parent != int(parent) or not (parent == -1 if body == 0 else 0 <= parent < body):
            raise InputError(
                f"{where}: body {body} has parent {parent:g}; parents must stand before their "
                "children and the first body be the root (-1); correct the file"
            )
    return [int(parent) for parent in values]


def _to_local(world: Tensor, parents: list[int]) -> Tensor:
    """Rotations (T, B, 4) relative to the parents from rotations in the world."""
    local = world.clone()
    for body, parent in enumerate(parents):
        if parent >= 0:
            local[:, body] = rot.quat_mul(rot.quat_conj(world[:, parent]), world[:, body])
    return local


def _order(
    names: list[str], parents: list[int], skeleton: Skeleton, character: str, name: str
) -> list[int]:
    """Where each body of the character stands in the file."""
    missing = [body for body in skeleton.body_names if body not in names]
    if missing:
        raise InputError(
            f"{name}: skeleton_tree has no bodies {', '.join(missing)} of character {character!r}; "
            "poselib motions fit characters with the same body names; retarget the motion first"
        )
    order = [names.index(body) for body in skeleton.body_names]
    for body, parent in zip(order, skeleton.parents, strict=True):
        wanted = order[parent] if parent >= 0 else -1
        if parents[body] != wanted:
            raise InputError(
                f"{name}: skeleton_tree hangs {names[body]!r} on another body than character "
                f"{character!r} does; the same tree is needed; retarget the motion first"
            )
    return order


def _turned(local: Tensor, offsets: Tensor, skeleton: Skeleton) -> tuple[Tensor, Tensor]:
    """Root (T, 4) and joint rotations (T, J, 4) in the character's own rest pose.

    Args:
        local: (T, B, 4) rotations relative to the parents in the file's rest pose.
        offsets: (B, 3) m, the file's bodies in their parents' frames.
        skeleton: the character's.
    """
    turn = _rest_turns(offsets, skeleton)
    parents = list(skeleton.parents[1:])
    inner = rot.quat_mul(rot.quat_conj(turn[parents]), rot.quat_mul(local[:, 1:], turn[1:]))
    joints = rot.quat_mul(rot.quat_conj(skeleton.rest_rot[1:].to(inner)), inner)
    root = rot.quat_mul(local[:, 0], turn[0].expand_as(local[:, 0]))
    return rot.quat_positive(root), rot.quat_positive(joints)


def _rest_turns(offsets: Tensor, skeleton: Skeleton) -> Tensor:
    """(B, 4) rotation of each body at the file's rest pose, seen from the character's.

    Bodies with one child take the rotation between the two directions to it, where these differ by
    more than 30 degrees; ends take their parent's, others none.
    """
    own = skeleton.offsets.double()
    turns = [own.new_tensor([0.0, 0.0, 0.0, 1.0]) for _ in skeleton.parents]
    for body, parent in enumerate(skeleton.parents):
        children = [b for b, p in enumerate(skeleton.parents) if p == body]
        if not children and parent >= 0:
            turns[body] = turns[parent]
        elif len(children) == 1:
            turns[body] = _between(own[children[0]], offsets[children[0]], turns[body])
    return torch.stack(turns)


def _between(start: Tensor, end: Tensor, none: Tensor) -> Tensor:
    """Shortest rotation (4,) that turns direction ``start`` (3,) to ``end`` (3,)."""
    length = start.norm() * end.norm()
    if float(length) < 1e-9 or float(start @ end / length) > _SAME_DIRECTION:
        return none
    axis = torch.linalg.cross(start, end)
    if float(axis.norm()) < 1e-6 * float(length):  # opposite: any axis across
        axis = torch.linalg.cross(start, start.roll(1) + start.new_tensor([0.0, 1.0, 2.0]))
    angle = torch.atan2(torch.linalg.cross(start, end).norm(), start @ end)
    return rot.quat_from_axis_angle(axis / axis.norm(), angle)
