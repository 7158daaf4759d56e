"""MimicKit motion pickles: one dict with ``loop_mode``, ``fps`` and ``frames``.

A frame is root position, root exponential map, then the degrees of freedom in the order of the
character's skeleton, z up.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.data.importers.raw import RawMotion, brief, field_of, finite, frame_rate
from parc_ray.data.unpickle import safe_load
from parc_ray.errors import InputError

NAME = "mimickit"
DESCRIPTION = "MimicKit motion pickle (loop_mode, fps, frames)"


def sniff(head: bytes, path: Path) -> bool:
    """Whether the first bytes look like this format."""
    return head[:1] == b"\x80" and any(k in head for k in (b"loop_mode", b"frames"))


def load(path: Path, character: Character) -> RawMotion:
    """Read one file.

    Raises:
        InputError: not readable, hostile, fields missing, wrong column count, NaN.
    """
    data = safe_load(path.read_bytes(), str(path))
    num_dofs = character.skeleton.num_dofs
    frames = finite(
        field_of(data, "frames", str(path)),
        f"{path}: frames",
        (None, 6 + num_dofs),
        f"frames by 6 root numbers + {num_dofs} joint angles of character {character.name!r}",
    )
    mode = data.get("loop_mode", 0)
    if not isinstance(mode, int | float | np.number) or mode not in (0, 1):
        raise InputError(
            f"{path}: loop_mode: {brief(mode)}; 0 (clamp) or 1 (wrap) is allowed; fix it"
        )
    return RawMotion(
        root_pos=frames[:, :3],
        root_rot=rot.quat_positive(rot.quat_from_exp(frames[:, 3:6])),
        dof=frames[:, 6:].clone(),
        fps=frame_rate(field_of(data, "fps", str(path)), f"{path}: fps"),
        loop="wrap" if mode == 1 else "clamp",
        source="MimicKit motion pickle",
        contacts=_contacts(data, path, len(frames), character),
    )


def _contacts(data: dict, path: Path, frames: int, character: Character) -> torch.Tensor | None:
    if data.get("contacts") is None:
        return None
    shape = (frames, character.skeleton.num_bodies)
    return finite(data["contacts"], f"{path}: contacts", shape, "frames by bodies").clamp(0.0, 1.0)
