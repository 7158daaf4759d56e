"""MimicKit's motion pickle: ``loop_mode``, ``fps`` and ``frames``, z up, exponential maps.

A frame is root position, exponential map of the root, and the degrees of freedom in the order of
the skeleton. MimicKit's own files hold nested lists, and so do these; they need no numpy to read.
"""

from __future__ import annotations

import pickle

import torch

from parc_ray.character.character import Character
from parc_ray.character.rotations import quat_to_exp
from parc_ray.motion.clip import MotionClip

SUFFIX = ".pkl"
_PROTOCOL = 3
"""Read by every Python 3."""


def encode(clip: MotionClip, character: Character) -> bytes:
    """The file of one clip."""
    frames = clip.frames
    root = quat_to_exp(frames.root_rot.double())
    rows = torch.cat((frames.root_pos.double(), root, frames.dof.double()), dim=-1)
    content = {
        "loop_mode": 1 if clip.loop == "wrap" else 0,
        "fps": int(clip.fps) if float(clip.fps).is_integer() else float(clip.fps),
        "frames": rows.tolist(),
    }
    return pickle.dumps(content, protocol=_PROTOCOL)
