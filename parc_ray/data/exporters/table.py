"""CSV and NPZ in our own columns; ``parc_ray.data.importers.table`` reads them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from parc_ray.character.character import Character
from parc_ray.data.importers.table import CONTACT_PREFIX, POSITION, ROTATION, TERRAIN_LAYERS
from parc_ray.motion.clip import MotionClip


def encode_csv(clip: MotionClip, character: Character) -> bytes:
    """One row per frame, nine digits, which hold single precision; no terrain, no path."""
    skeleton, frames = character.skeleton, clip.frames
    contacts = [f"{CONTACT_PREFIX}{body}" for body in skeleton.body_names]
    names = (*POSITION, *ROTATION, *skeleton.dof_names, *contacts)
    parts = (frames.root_pos, frames.root_rot, frames.dof, frames.contacts)
    block = np.concatenate([part.detach().cpu().numpy() for part in parts], axis=-1)
    remarks = {"fps": f"{clip.fps:.12g}", "loop": clip.loop, "angles": "radians"}
    if clip.provenance.licence:
        remarks["licence"] = " ".join(clip.provenance.licence.split())
    head = [f"# {key}: {value}" for key, value in remarks.items()]
    sink = io.StringIO()
    np.savetxt(sink, block, fmt="%.9g", delimiter=",", newline="\n")
    return "\n".join([*head, ",".join(names), sink.getvalue()]).encode()


def encode_npz(clip: MotionClip, character: Character) -> bytes:
    """Everything but provenance, metrics and replay, in arrays of their natural shapes."""
    frames, terrain = clip.frames, clip.terrain
    arrays: dict[str, Any] = {
        "root_pos": frames.root_pos,
        "root_rot": frames.root_rot,
        "dof": frames.dof,
        "contacts": frames.contacts,
        "terrain_heights": terrain.heights,
        "terrain_origin": terrain.origin,
        **{f"terrain_{layer}": getattr(terrain, layer) for layer in TERRAIN_LAYERS},
        "path_nodes": clip.path_nodes,
    }
    content = {
        key: value.detach().cpu().numpy().astype(np.float32)
        for key, value in arrays.items()
        if value is not None
    }
    sink = io.BytesIO()
    np.savez_compressed(
        sink,
        allow_pickle=False,
        **content,
        fps=np.float64(clip.fps),
        loop=np.array(clip.loop),
        terrain_cell_size=np.float64(terrain.cell_size),
        dof_names=np.array(character.skeleton.dof_names),
        body_names=np.array(character.skeleton.body_names),
    )
    return sink.getvalue()
