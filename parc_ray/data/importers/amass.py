"""AMASS motions (npz) of SMPL, SMPL-H and SMPL-X, without a body model.

Wanted are ``trans`` (T, 3) m, the rate ``mocap_framerate`` or ``mocap_frame_rate``, and the joints'
rotation vectors: all in ``poses``, or ``root_orient`` and ``pose_body``. Fingers, face and soft
tissue are not used, ``gender`` and ``surface_model_type`` not even read (they are pickles in some
files). The body is the mean one; as ``betas`` mean nothing without the model, the subject's size
is taken from the motion: feet that stand do not slide.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.data.importers.raw import RawMotion, finite, frame_rate
from parc_ray.data.npz import array_names, read_arrays
from parc_ray.data.retarget.joint_map import load_joint_map
from parc_ray.data.retarget.retarget import retarget_raw
from parc_ray.data.retarget.source import TO_Z_UP, SourceMotion, UpAxis
from parc_ray.errors import InputError

NAME = "amass"
DESCRIPTION = "AMASS archive (NPZ with trans and poses of SMPL, SMPL-H or SMPL-X)"
LICENCE = "AMASS: for research, not for redistribution; see amass.is.tue.mpg.de"

# joint, parent, offset from it in m: forward, left, up. Mean of SMPL's neutral body, both sides
# averaged, to the millimetre.
_MIDDLE = (
    ("pelvis", "", (0.0, 0.0, 0.0)),
    ("spine1", "pelvis", (-0.027, 0.0, 0.109)),
    ("spine2", "spine1", (0.001, 0.0, 0.135)),
    ("spine3", "spine2", (0.025, 0.0, 0.053)),
    ("neck", "spine3", (-0.043, 0.0, 0.214)),
    ("head", "neck", (0.051, 0.0, 0.065)),
)
_SIDE = (
    ("hip", "pelvis", (-0.006, 0.069, -0.091)),
    ("knee", "hip", (-0.007, 0.036, -0.379)),
    ("ankle", "knee", (-0.043, -0.015, -0.398)),
    ("foot", "ankle", (0.121, 0.026, -0.052)),
    ("collar", "spine3", (-0.036, 0.080, 0.120)),
    ("shoulder", "collar", (-0.009, 0.093, 0.032)),
    ("elbow", "shoulder", (-0.024, 0.257, -0.013)),
    ("wrist", "elbow", (-0.003, 0.252, 0.008)),
)
_ROOT_SHIFT = (-0.002, -0.223, 0.028)
"""m, where the pelvis is at ``trans`` zero, in SMPL's own axes (the translation adds to it)."""
JOINTS = (
    *("pelvis", "left_hip", "right_hip", "spine1", "left_knee", "right_knee", "spine2"),
    *("left_ankle", "right_ankle", "spine3", "left_foot", "right_foot", "neck"),
    *("left_collar", "right_collar", "head", "left_shoulder", "right_shoulder"),
    *("left_elbow", "right_elbow", "left_wrist", "right_wrist"),
)
"""Joints in the order of the files; those of hands and face come after them."""
_WIDTHS = (66, 72, 156, 165)
_RATES = ("mocap_framerate", "mocap_frame_rate", "mocap_fps", "fps")
_ARRAYS = ("trans", "poses", "root_orient", "pose_body", *_RATES)
_FORWARD_UP = (0.5, 0.5, 0.5, 0.5)  # SMPL's axes (left, up, forward) to (forward, left, up)

_SLIDING_M_S = 0.2
_PRIOR_M_S = 0.01
_SIZE_RANGE = (0.7, 1.4)


def sniff(head: bytes, path: Path) -> bool:
    """Whether it is an archive with a translation and poses."""
    if not head.startswith(b"PK"):
        return False
    names = set(array_names(path))
    return "trans" in names and bool({"poses", "root_orient", "pose_body"} & names)


def load(path: Path, character: Character) -> RawMotion:
    """Read one file and retarget it.

    Raises:
        InputError: damaged, arrays missing or of the wrong shape, NaN, an absurd rate.
    """
    joint_map = load_joint_map("smpl", beside=path)
    source = sized(read_source(path, joint_map.up, joint_map.fps))
    upright = replace(joint_map, up="z")
    return retarget_raw(source, upright, character, format_name="AMASS archive", licence=LICENCE)


def read_source(path: Path, up: UpAxis = "z", fps: float | None = None) -> SourceMotion:
    """The motion on the mean body, z up.

    Args:
        path: the archive.
        up: upward axis of the file's world (AMASS: z).
        fps: rate where the file has none.
    """
    arrays = {name: array.copy() for name, array in read_arrays(path, _ARRAYS).items()}
    vectors = _rotation_vectors(arrays, path)
    shift = finite(_need(arrays, "trans", path), f"{path}: trans", (len(vectors), 3), "frames by 3")
    rate = next((arrays[name] for name in _RATES if name in arrays), fps)
    if rate is None:
        raise InputError(
            f"{path}: no {' or '.join(_RATES[:2])} in it; frames per second are needed; add the "
            "array, or fps to a joint_map.yaml beside the file"
        )
    if isinstance(rate, np.ndarray):
        rate = rate.item() if rate.size == 1 else rate.tolist()
    names, parents, offsets = _skeleton()
    turn, world = (torch.tensor(q, dtype=torch.float64) for q in (_FORWARD_UP, TO_Z_UP[up]))
    turned = rot.quat_from_exp(rot.quat_rotate(turn, vectors))
    local = torch.zeros(len(vectors), len(names), 4, dtype=torch.float64)
    local[..., 3] = 1.0
    for column, joint in enumerate(JOINTS):
        local[:, names.index(joint)] = turned[:, column]
    # the world's axes are the file's, not those of SMPL's rest pose
    axes = rot.quat_mul(world, rot.quat_conj(turn))
    local[:, 0] = rot.quat_mul(axes.expand_as(local[:, 0]), local[:, 0])
    place = shift + torch.tensor(_ROOT_SHIFT, dtype=torch.float64)
    return SourceMotion(
        name=str(path),
        joint_names=names,
        parents=parents,
        offsets=offsets,
        root_pos=rot.quat_rotate(world, place),
        local_rot=local,
        fps=frame_rate(rate, f"{path}: frame rate"),
    )


def _need(arrays: dict[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in arrays:
        raise InputError(
            f"{path}: no array {name}; trans and poses (or root_orient and pose_body) are needed; "
            "fetch the motion file, not the shape file"
        )
    return arrays[name]


def _rotation_vectors(arrays: dict[str, np.ndarray], path: Path) -> Tensor:
    """Rotation vectors (T, joints of the body, 3) rad, SMPL's axes."""
    count = 3 * len(JOINTS)
    if "poses" in arrays:
        poses = finite(arrays["poses"], f"{path}: poses", (None, None), "frames by joints by 3")
        if poses.shape[1] not in _WIDTHS:
            raise InputError(
                f"{path}: poses: {poses.shape[1]} columns; {', '.join(map(str, _WIDTHS))} are "
                "known (body, SMPL, SMPL-H, SMPL-X); convert the file"
            )
    else:
        root = finite(_need(arrays, "root_orient", path), f"{path}: root_orient", (None, 3))
        body = _need(arrays, "pose_body", path)
        body = finite(body, f"{path}: pose_body", (len(root), count - 3), "frames by joints by 3")
        poses = torch.cat((root, body), dim=1)
    return poses[:, :count].unflatten(1, (len(JOINTS), 3))


def _skeleton() -> tuple[tuple[str, ...], tuple[int, ...], Tensor]:
    """Names, parents and offsets of the mean body, parents first."""
    bones = list(_MIDDLE)
    for side, sign in (("left", 1.0), ("right", -1.0)):
        sided = {name for name, _, _ in _SIDE}
        for name, parent, (x, y, z) in _SIDE:
            above = f"{side}_{parent}" if parent in sided else parent
            bones.append((f"{side}_{name}", above, (x, sign * y, z)))
    names = tuple(name for name, _, _ in bones)
    parents = tuple(names.index(parent) if parent else -1 for _, parent, _ in bones)
    return names, parents, torch.tensor([o for _, _, o in bones], dtype=torch.float64)


def sized(source: SourceMotion) -> SourceMotion:
    """``source`` with the bones scaled so that the foot that stands slides least.

    Least squares, each frame weighted by how still its stiller foot is; a weak prior keeps the
    mean size where nothing walks.
    """
    place, _ = source.forward()
    feet = [source.index("left_foot"), source.index("right_foot")]
    shift = source.root_pos.diff(dim=0)
    swing = (place[:, feet] - place[:, :1]).diff(dim=0)
    limit = _SLIDING_M_S / source.fps
    prior = len(shift) * (_PRIOR_M_S / source.fps) ** 2 / 0.1**2
    size = 1.0
    for _ in range(20):
        speed = (shift[:, None] + size * swing).norm(dim=-1)
        weight = 1.0 / (1.0 + (speed / limit).square()).square()
        weight = weight * (speed <= speed.amin(-1, keepdim=True))
        dot = (weight * (shift[:, None] * swing).sum(-1)).sum()
        square = (weight * swing.square().sum(-1)).sum()
        size = float((prior - dot) / (prior + square))
        size = min(max(size, _SIZE_RANGE[0]), _SIZE_RANGE[1])
    return replace(source, offsets=source.offsets * size)
