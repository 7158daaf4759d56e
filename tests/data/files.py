"""Motion files made on the spot, in each of the formats that are imported."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np


def mimickit(path, character, *, frames=40, fps=30, loop=0, change=None):
    """A character that glides forward at 1 m/s and bends every joint a little."""
    dofs = character.skeleton.num_dofs
    t = np.arange(frames) / fps
    block = np.zeros((frames, 6 + dofs))
    block[:, 0] = t
    block[:, 2] = character.stand_height
    block[:, 6:] = 0.1 * np.sin(2 * math.pi * t)[:, None] * np.arange(dofs) / dofs
    data = {"loop_mode": loop, "fps": fps, "frames": block.tolist()}
    if change:
        change(data)
    path.write_bytes(pickle.dumps(data, protocol=3))
    return block


def parc_ms(path, character, *, frames=40, change=None, **terrain):
    """A standing character on a terrain of its own: on its highest cell, or at 0.8 m on steps."""
    ground = float(np.nanmax(terrain["hf"])) if "hf" in terrain else 0.8
    skeleton = character.skeleton
    identity = np.array([0, 0, 0, 1], dtype=np.float32)
    motion = {
        "root_pos": np.tile(np.float32([0.1, 0.2, character.stand_height + ground]), (frames, 1)),
        "root_rot": np.tile(identity, (frames, 1)),
        "joint_rot": np.tile(identity, (frames, skeleton.num_joints, 1)),
        "body_contacts": np.full((frames, skeleton.num_bodies), 0.25, dtype=np.float32),
        "fps": 30,
        "loop_mode": "CLAMP",
    }
    terrain_data = {
        "hf": np.arange(12, dtype=np.float32).reshape(4, 3) / 10,
        "hf_maxmin": np.zeros((4, 3, 2), dtype=np.float32),
        "min_point": np.float32([-0.6, -0.4]),
        "dx": np.float32(0.4),
        **terrain,
    }
    misc = {"path_nodes": np.float32([[0, 0, 0], [1, 0, 0]])}
    parts = {"motion_data": motion, "terrain_data": terrain_data, "misc_data": misc}
    if change:
        change(parts)
    outer = {k: None if v is None else pickle.dumps(v) for k, v in parts.items()}
    path.write_bytes(pickle.dumps(outer))
    return parts


# columns of a DeepMimic frame after the duration
DM = {"root_pos": 1, "root_rot": 4, "chest": 8, "neck": 12, "right_hip": 16, "right_knee": 20}
DM |= {"right_ankle": 21, "right_shoulder": 25, "right_elbow": 29, "left_hip": 30}
DM |= {"left_knee": 34, "left_ankle": 35, "left_shoulder": 39, "left_elbow": 43}
_QUATS = ("root_rot", "chest", "neck", "right_hip", "right_ankle", "right_shoulder", "left_hip")
_QUATS += ("left_ankle", "left_shoulder")


def deepmimic_rows(frames=20, duration=1 / 30):
    """Rows (frames, 44) of the neutral pose: standing, arms down."""
    rows = np.zeros((frames, 44))
    rows[:, 0] = duration
    rows[:, 2] = 0.9
    for name in _QUATS:
        rows[:, DM[name]] = 1.0
    return rows


def deepmimic(path, rows, loop="none"):
    path.write_text(json.dumps({"Loop": loop, "Frames": rows.tolist()}))
