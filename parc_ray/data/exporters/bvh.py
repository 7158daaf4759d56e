"""BVH: hierarchy, six channels of the root and three of every joint, in metres with y up.

World axes are turned to BVH's habit (x forward, y up, z right); each joint keeps the axes of its
body, turned likewise, so that a T-pose has zero angles. Rotations are intrinsic, in the order of
the channels: Zrotation Xrotation Yrotation, degrees.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot
from parc_ray.character.skeleton import Skeleton
from parc_ray.motion.clip import MotionClip

SUFFIX = ".bvh"
Y_UP = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
"""Turns a vector of ours (z up) into one with y up."""
_ORDER = "ZXY"
_CHANNELS = "Zrotation Xrotation Yrotation"
_TIP_M = 0.05


def encode(clip: MotionClip, character: Character) -> bytes:
    """The file of one clip."""
    skeleton, frames = character.skeleton, clip.frames
    joints = dof_to_joint_rot(skeleton, frames.dof.double()).numpy()
    rest = Rotation.from_quat(skeleton.rest_rot.double().numpy())
    turn = Rotation.from_matrix(Y_UP)
    columns: dict[int, NDArray] = {}
    for body in range(skeleton.num_bodies):
        if body:
            local = rest[body] * Rotation.from_quat(joints[:, body - 1])
        else:
            local = Rotation.from_quat(frames.root_rot.double().numpy())
        turned = turn * local * turn.inv()
        columns[body] = turned.as_euler(_ORDER, degrees=True)
    order = list(_depth_first(skeleton))
    place = frames.root_pos.double().numpy() @ Y_UP.T
    table = np.concatenate([place, *(columns[body] for body in order)], axis=1)
    sink = io.StringIO()
    sink.write("HIERARCHY\n")
    _write_joint(sink, skeleton, 0, 0)
    sink.write(f"MOTION\nFrames: {len(table)}\nFrame Time: {1.0 / clip.fps:.9g}\n")
    np.savetxt(sink, table, fmt="%.6f", delimiter=" ", newline="\n")
    return sink.getvalue().encode()


def _children(skeleton: Skeleton, body: int) -> list[int]:
    return [b for b, parent in enumerate(skeleton.parents) if parent == body]


def _depth_first(skeleton: Skeleton, body: int = 0) -> list[int]:
    """Bodies in the order in which a reader meets them."""
    found = [body]
    for child in _children(skeleton, body):
        found += _depth_first(skeleton, child)
    return found


def _write_joint(sink: io.StringIO, skeleton: Skeleton, body: int, depth: int) -> None:
    """One joint and those below it."""
    pad, inner = "\t" * depth, "\t" * (depth + 1)
    offset = Y_UP @ skeleton.offsets[body].double().numpy()
    head, channels = ("JOINT", f"3 {_CHANNELS}")
    if body == 0:
        head, channels = "ROOT", f"6 Xposition Yposition Zposition {_CHANNELS}"
    sink.write(f"{pad}{head} {skeleton.body_names[body]}\n{pad}{{\n")
    sink.write(f"{inner}OFFSET {_numbers(offset)}\n{inner}CHANNELS {channels}\n")
    below = _children(skeleton, body)
    for child in below:
        _write_joint(sink, skeleton, child, depth + 1)
    if not below:
        length = float(np.linalg.norm(offset))
        tip = offset / length * _TIP_M if length > 1e-6 else np.array([0.0, _TIP_M, 0.0])
        sink.write(f"{inner}End Site\n{inner}{{\n{inner}\tOFFSET {_numbers(tip)}\n{inner}}}\n")
    sink.write(f"{pad}}}\n")


def _numbers(vector: NDArray) -> str:
    return " ".join(f"{value + 0.0:.6f}" for value in vector)
