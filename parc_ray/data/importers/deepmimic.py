"""DeepMimic motion files: JSON with ``Loop`` and ``Frames``; see docs/design/data.md.

A frame is its duration, root position, root quaternion (wxyz), then the joints below; y up. The
arms hang down at zero rotation there and point sideways here. Joints are mapped by body name.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import joint_rot_to_dof
from parc_ray.data.importers.raw import RawMotion, field_of, finite, frame_rate, unit_quaternions
from parc_ray.errors import InputError
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.resample import blend_frames

NAME = "deepmimic"
DESCRIPTION = "DeepMimic motion text (JSON with Loop and Frames)"
LICENCE = "MIT (DeepMimic)"

# joint order of the format: body that the joint moves here, number of values
LAYOUT: tuple[tuple[str, int], ...] = (
    ("torso", 4),
    ("head", 4),
    ("right_thigh", 4),
    ("right_shin", 1),
    ("right_foot", 4),
    ("right_upper_arm", 4),
    ("right_lower_arm", 1),
    ("left_thigh", 4),
    ("left_shin", 1),
    ("left_foot", 4),
    ("left_upper_arm", 4),
    ("left_lower_arm", 1),
)
_WIDTH = 8 + sum(width for _, width in LAYOUT)
# published files hold linearly blended rows whose norms go down to 0.58 (kick)
_NORM_TOLERANCE = 0.5
_UNEVEN_S = 0.002
_HINGE_SIGN = {"right_shin": -1.0, "left_shin": -1.0, "left_lower_arm": -1.0}
_ARM_TURN = {"right_upper_arm": math.pi / 2, "left_upper_arm": -math.pi / 2}


def sniff(head: bytes, path: Path) -> bool:
    """Whether the first bytes look like this format."""
    return head.lstrip()[:1] == b"{" and b'"Frames"' in head


def load(path: Path, character: Character) -> RawMotion:
    """Read one file.

    Raises:
        InputError: not JSON, wrong number of columns, NaN, bad quaternions, or a character that
            lacks the bodies of this format.
    """
    return parse(path.read_bytes(), str(path), character)


def parse(data: bytes, name: str, character: Character) -> RawMotion:
    """Read the content of one file; ``name`` is what messages call it. Errors as ``load``."""
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{name}: not JSON ({error}); a complete file is needed; fetch the file again"
        ) from error
    frames = finite(
        field_of(content, "Frames", name),
        f"{name}: Frames",
        (None, _WIDTH),
        "frames by duration, root, joints of the DeepMimic humanoid",
    )
    if len(frames) < 2:
        raise InputError(f"{name}: {len(frames)} frame; 2 or more are needed; use a longer motion")
    joint_rot = _joint_rotations(frames[:, 8:], name, character)
    loop = content.get("Loop", "none")
    times, fps = _times(frames[:, 0], name)
    raw = RawMotion(
        root_pos=_to_z_up(frames[:, 1:4]),
        root_rot=_quaternion(frames[:, 4:8], f"{name}: root rotation"),
        dof=joint_rot_to_dof(character.skeleton, joint_rot),
        fps=fps,
        loop="wrap" if isinstance(loop, str) and loop.lower() == "wrap" else "clamp",
        source="DeepMimic motion text",
        licence=LICENCE,
    )
    return _even(raw, times, character)


def _times(durations: Tensor, name: str) -> tuple[Tensor, float]:
    """Times (T,) s of the frames and their typical rate in Hz.

    The last duration has no meaning and is often zero.
    """
    steps = durations[:-1]
    if float(steps.min()) <= 0.0:
        at = int(steps.argmin())
        raise InputError(
            f"{name}: Frames: duration of frame {at} is {float(steps[at]):g} s; durations > 0 are "
            "needed (but for the last); correct the file"
        )
    times = torch.cat((steps.new_zeros(1), steps.cumsum(0)))
    rate = 1.0 / float(np.median(steps.numpy()))
    return times, frame_rate(rate, f"{name}: Frames: duration")


def _even(raw: RawMotion, times: Tensor, character: Character) -> RawMotion:
    """``raw`` interpolated to its even rate where its frames lie at uneven ``times`` (T,) s."""
    even = torch.arange(len(times), dtype=times.dtype) / raw.fps
    if float((times - even).abs().max()) <= _UNEVEN_S:
        return raw
    count = int(float(times[-1]) * raw.fps + 1e-6) + 1
    even = torch.arange(count, dtype=times.dtype) / raw.fps
    upper = torch.searchsorted(times, even).clamp(1, len(times) - 1)
    weight = (even - times[upper - 1]) / (times[upper] - times[upper - 1])
    none = raw.dof.new_zeros(len(times), 0)
    frames = MotionFrames(raw.root_pos, raw.root_rot, raw.dof, none)
    mixed = blend_frames(character.skeleton, frames[upper - 1], frames[upper], weight.clamp(0, 1))
    return replace(raw, root_pos=mixed.root_pos, root_rot=mixed.root_rot, dof=mixed.dof)


def _to_z_up(v: Tensor) -> Tensor:
    """Vectors (..., 3) from y up to z up: (x, y, z) becomes (x, -z, y)."""
    return torch.stack((v[..., 0], -v[..., 2], v[..., 1]), dim=-1)


def _quaternion(wxyz: Tensor, where: str) -> Tensor:
    xyzw = torch.cat((_to_z_up(wxyz[..., 1:]), wxyz[..., :1]), dim=-1)
    return unit_quaternions(xyzw, where, _NORM_TOLERANCE)


def _joint_rotations(columns: Tensor, name: str, character: Character) -> Tensor:
    """Joint rotations (T, J, 4) by the character's body names."""
    skeleton = character.skeleton
    missing = [body for body, _ in LAYOUT if body not in skeleton.body_names]
    if missing:
        raise InputError(
            f"{name}: character {character.name!r} has no bodies {', '.join(missing)}; DeepMimic "
            "files fit characters with the humanoid's body names; retarget the motion first"
        )
    result = columns.new_zeros(len(columns), skeleton.num_joints, 4)
    result[..., 3] = 1.0
    at = 0
    for body, width in LAYOUT:
        index = skeleton.body_index(body)
        values = columns[:, at : at + width]
        at += width
        if width == 1:
            axis = skeleton.hinge_axes[index].to(columns)
            quat = rot.quat_from_axis_angle(axis, values[:, 0] * _HINGE_SIGN.get(body, 1.0))
        else:
            quat = _quaternion(values, f"{name}: Frames: {body}")
            if body in _ARM_TURN:
                turn = quat.new_tensor([1.0, 0.0, 0.0])
                angle = quat.new_tensor(_ARM_TURN[body])
                quat = rot.quat_mul(quat, rot.quat_from_axis_angle(turn, angle))
        result[:, index - 1] = rot.quat_positive(quat)
    return result
