"""PARC's own motion-terrain pickle, as the published tools read it.

Three pickles in a pickle; arrays of single precision, ``fps`` a whole number where it is one,
``dx`` a plain float. Names inside are those of numpy 1, which every numpy can read (files that
numpy 2 writes by itself cannot be read by numpy 1). What the format has no place for is left out:
provenance, weights, metrics, confidence, replay.
"""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot, fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.motion.clip import MotionClip
from parc_ray.terrain.augment import compute_bounds
from parc_ray.terrain.heightfield import Heightfield

NAME = "parc"
SUFFIX = ".pkl"

_PROTOCOL = 3
"""Highest protocol in which names stand as text; Python 3.8 of the published tools reads it."""
_NUMPY_2, _NUMPY_1 = b"numpy._core.", b"numpy.core."


def encode(clip: MotionClip, character: Character) -> bytes:
    """The file of one clip."""
    points = _surface(clip, character)
    outer = {
        "motion_data": _dump(_motion(clip, character)),
        "terrain_data": _dump(_terrain(clip, points)),
        "misc_data": _dump(_misc(clip, points)),
    }
    return pickle.dumps(outer, protocol=_PROTOCOL)


def _motion(clip: MotionClip, character: Character) -> dict[str, Any]:
    frames = clip.frames
    joint_rot = dof_to_joint_rot(character.skeleton, frames.dof.double())
    return {
        "root_pos": _single(frames.root_pos),
        "root_rot": _single(frames.root_rot),
        "joint_rot": _single(joint_rot),
        "body_contacts": _single(frames.contacts),
        "fps": int(clip.fps) if float(clip.fps).is_integer() else float(clip.fps),
        "loop_mode": clip.loop.upper(),
    }


def _terrain(clip: MotionClip, points: Tensor) -> dict[str, Any]:
    """Height field and bounds; channel 0 of the bounds is the greatest height, 1 the least."""
    terrain = clip.terrain
    if terrain.upper is None or terrain.lower is None:
        terrain = compute_bounds(terrain, points, clip.frames.root_pos[:, 2])
    assert terrain.upper is not None
    assert terrain.lower is not None
    return {
        "hf": _single(terrain.heights),
        "hf_maxmin": _single(torch.stack((terrain.upper, terrain.lower), dim=-1)),
        "min_point": _single(terrain.origin),
        "dx": float(terrain.cell_size),
    }


def _misc(clip: MotionClip, points: Tensor) -> dict[str, Any]:
    misc: dict[str, Any] = {"hf_mask_inds": touched_by_frame(clip.terrain, points)}
    if clip.path_nodes is not None:
        misc["path_nodes"] = _single(clip.path_nodes)
    return misc


def touched_by_frame(terrain: Heightfield, points: Tensor) -> list[np.ndarray]:
    """Cells over or under the body in each frame.

    Args:
        terrain: X by Y cells.
        points: (T, P, 3) world surface points.

    Returns:
        T arrays (k, 2) of int64 cell indices, sorted.
    """
    columns = terrain.shape[1]
    ij = terrain.index_of(points[..., :2])
    cells = (ij[..., 0] * columns + ij[..., 1]).numpy()
    inside = terrain.contains(points[..., :2]).numpy()
    touched = [np.unique(row[ok]) for row, ok in zip(cells, inside, strict=True)]
    return [np.stack((k // columns, k % columns), axis=-1).astype(np.int64) for k in touched]


def _surface(clip: MotionClip, character: Character) -> Tensor:
    frames = clip.frames
    pos, quat = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    return place_points(surface_points(character), pos, quat)


def _single(value: Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.detach().cpu().numpy(), dtype=np.float32)


def _dump(value: Any) -> bytes:
    """A pickle whose names numpy 1 knows."""
    data = pickle.dumps(value, protocol=_PROTOCOL)
    parts, start = [], 0
    for opcode, argument, position in pickletools.genops(data):
        if opcode.name == "GLOBAL" and str(argument).startswith(_NUMPY_2.decode()):
            assert position is not None
            begin = position + 1  # behind the opcode itself
            parts += [data[start:begin], _NUMPY_1]
            start = begin + len(_NUMPY_2)
    return b"".join((*parts, data[start:]))
