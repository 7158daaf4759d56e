"""The Arrow schema of stored clips and the way from clips to rows and back.

One row is one clip. Arrays are flattened row-major into lists of float32 (nested lists are slow to
read); their shapes follow from ``num_frames``, ``num_dofs``, ``num_bodies``, ``terrain_rows`` and
``terrain_cols``. Everything is bit-exact: what was written as float32 comes back as the same
float32. The schema version stands in the table's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from parc_ray.data.migrations import (
    SCHEMA_VERSION,
    VERSION_KEY,
    migrate,
    provenance_columns,
    stored_version,
)
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip, Provenance, Replay
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield

_FLOATS = pa.large_list(pa.field("item", pa.float32(), nullable=False))
_REPLAY_ARRAYS = (
    "root_pos",
    "root_rot",
    "root_lin_vel",
    "root_ang_vel",
    "dof_pos",
    "dof_vel",
    "pd_targets",
    "boxes",
    "offset",
)
_LAYERS = ("upper", "lower", "confidence")


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


CLIP_SCHEMA = pa.schema(
    [
        _required("clip_id", pa.string()),
        _required("iteration", pa.int32()),
        _required("class_name", pa.string()),
        _required("source", pa.string()),
        _required("fps", pa.float64()),
        _required("loop", pa.string()),
        _required("weight", pa.float64()),
        _required("num_frames", pa.int32()),
        _required("num_dofs", pa.int32()),
        _required("num_bodies", pa.int32()),
        _required("root_pos", _FLOATS),
        _required("root_rot", _FLOATS),
        _required("dof", _FLOATS),
        _required("contacts", _FLOATS),
        _required("terrain_rows", pa.int32()),
        _required("terrain_cols", pa.int32()),
        _required("terrain_cell_size", pa.float64()),
        _required("terrain_origin", _FLOATS),
        _required("terrain_heights", _FLOATS),
        *[pa.field(f"terrain_{name}", _FLOATS) for name in _LAYERS],
        pa.field("path_nodes", _FLOATS),
        _required("provenance", pa.string()),
        _required("metrics", pa.string()),
        *[pa.field(f"replay_{name}", _FLOATS) for name in _REPLAY_ARRAYS],
        pa.field("replay_backend", pa.string()),
        pa.field("replay_model_hash", pa.string()),
        _required("licence", pa.string()),
        _required("take", pa.string()),
        _required("maker", pa.string()),
        _required("terrain_inferred", pa.bool_()),
    ],
    metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()},
)
"""Columns of the present schema version; see the module docstring and ``migrations.py``."""


def _flat(value: Tensor) -> np.ndarray:
    return value.detach().cpu().to(torch.float32).contiguous().numpy().reshape(-1)


def _flat_exact(value: Tensor, where: str) -> np.ndarray:
    flat = _flat(value)
    if value.dtype != torch.float32 and not torch.equal(
        torch.from_numpy(flat.copy()).to(value.dtype), value.detach().cpu().reshape(-1)
    ):
        raise ValueError(f"{where} does not fit float32; round it before it is simulated")
    return flat


def clip_to_row(clip: MotionClip) -> dict[str, Any]:
    """One row of ``CLIP_SCHEMA``: numbers, strings, None and flat float32 arrays.

    Raises:
        ValueError: a replay array that float32 does not hold exactly (replay would drift).
    """
    frames, terrain = clip.frames, clip.terrain
    provenance = clip.provenance.to_dict()
    row: dict[str, Any] = {
        "clip_id": clip.clip_id,
        "iteration": clip.provenance.iteration,
        "class_name": clip.provenance.class_name,
        "source": clip.provenance.source,
        "fps": float(clip.fps),
        "loop": clip.loop,
        "weight": float(clip.weight),
        "num_frames": clip.num_frames,
        "num_dofs": frames.dof.shape[-1],
        "num_bodies": frames.contacts.shape[-1],
        "root_pos": _flat(frames.root_pos),
        "root_rot": _flat(frames.root_rot),
        "dof": _flat(frames.dof),
        "contacts": _flat(frames.contacts),
        "terrain_rows": terrain.shape[0],
        "terrain_cols": terrain.shape[1],
        "terrain_cell_size": float(terrain.cell_size),
        "terrain_origin": _flat(terrain.origin),
        "terrain_heights": _flat(terrain.heights),
        "path_nodes": None if clip.path_nodes is None else _flat(clip.path_nodes),
        "provenance": json.dumps(provenance, sort_keys=True),
        **provenance_columns(provenance),
        "metrics": json.dumps({k: float(v) for k, v in clip.metrics.items()}, sort_keys=True),
        "replay_backend": clip.replay.backend if clip.replay else None,
        "replay_model_hash": clip.replay.model_hash if clip.replay else None,
    }
    for name in _LAYERS:
        layer = getattr(terrain, name)
        row[f"terrain_{name}"] = None if layer is None else _flat(layer)
    for name in _REPLAY_ARRAYS:
        value = getattr(clip.replay, name) if clip.replay else None
        where = f"clip {clip.clip_id!r}: replay.{name}"
        row[f"replay_{name}"] = None if value is None else _flat_exact(value, where)
    return row


def row_to_clip(row: Mapping[str, Any]) -> MotionClip:
    """The inverse of ``clip_to_row``; list columns may be arrays or lists.

    Raises:
        InputError: an array whose length does not fit the row's shapes.
    """
    frames, dofs = int(row["num_frames"]), int(row["num_dofs"])
    cells = (int(row["terrain_rows"]), int(row["terrain_cols"]))
    layers = {name: _shaped(row, f"terrain_{name}", cells) for name in _LAYERS}
    return MotionClip(
        clip_id=row["clip_id"],
        frames=MotionFrames(
            root_pos=_array(row, "root_pos", (frames, 3)),
            root_rot=_array(row, "root_rot", (frames, 4)),
            dof=_array(row, "dof", (frames, dofs)),
            contacts=_array(row, "contacts", (frames, int(row["num_bodies"]))),
        ),
        fps=float(row["fps"]),
        terrain=Heightfield(
            heights=_array(row, "terrain_heights", cells),
            origin=_array(row, "terrain_origin", (2,)),
            cell_size=float(row["terrain_cell_size"]),
            **layers,
        ),
        loop=row["loop"],
        path_nodes=_shaped(row, "path_nodes", (-1, 3)),
        provenance=Provenance.from_dict(json.loads(row["provenance"])),
        replay=_replay(row, frames, dofs),
        metrics=json.loads(row["metrics"]),
        weight=float(row["weight"]),
    )


def _replay(row: Mapping[str, Any], frames: int, dofs: int) -> Replay | None:
    if row["replay_backend"] is None:
        return None
    vector = (3,)
    return Replay(
        root_pos=_array(row, "replay_root_pos", vector),
        root_rot=_array(row, "replay_root_rot", (4,)),
        root_lin_vel=_array(row, "replay_root_lin_vel", vector),
        root_ang_vel=_array(row, "replay_root_ang_vel", vector),
        dof_pos=_array(row, "replay_dof_pos", (dofs,)),
        dof_vel=_array(row, "replay_dof_vel", (dofs,)),
        pd_targets=_array(row, "replay_pd_targets", (-1, dofs)),
        boxes=_array(row, "replay_boxes", (-1, 6)),
        offset=_array(row, "replay_offset", vector),
        backend=row["replay_backend"],
        model_hash=row["replay_model_hash"],
    )


def _shaped(row: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor | None:
    return None if row[name] is None else _array(row, name, shape)


def _array(row: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    try:
        return torch.from_numpy(np.array(row[name], dtype=np.float32).reshape(shape))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"clip {row['clip_id']!r}: column {name} does not fit shape {shape} ({error}); "
            "the row is damaged; restore the part"
        ) from error


def clips_to_table(clips: Sequence[MotionClip]) -> pa.Table:
    """A table of ``CLIP_SCHEMA``, one row per clip in the given order."""
    rows = [clip_to_row(clip) for clip in clips]
    columns = [pa.array([row[f.name] for row in rows], type=f.type) for f in CLIP_SCHEMA]
    return pa.Table.from_arrays(columns, schema=CLIP_SCHEMA)


def table_to_clips(table: pa.Table, where: str = "table") -> list[MotionClip]:
    """The clips of a table of this or an older schema version.

    Args:
        table: rows of ``CLIP_SCHEMA``, or of an older version.
        where: what to call the table in messages.

    Raises:
        InputError: no or a newer schema version, missing columns, damaged rows.
    """
    table = migrate(table, where)
    check_schema(table.schema, where)
    return [row_to_clip(row) for row in iter_rows(table)]


def check_schema(schema: pa.Schema, where: str) -> None:
    """Refuse tables of other schema versions, or without all columns; see ``table_to_clips``."""
    version = stored_version(schema, where)
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{where}: clip schema version {version}; version {SCHEMA_VERSION} is needed here; "
            "write the data set anew with 'parc import OLD --out NEW'"
        )
    missing = [name for name in CLIP_SCHEMA.names if name not in schema.names]
    if missing:
        raise InputError(
            f"{where}: columns {', '.join(missing)} are missing; all columns of schema version "
            f"{SCHEMA_VERSION} are needed; restore the file"
        )


def iter_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as dicts; list columns as float32 array views, without Python floats in between."""
    columns = {f.name: _column(table.column(f.name)) for f in CLIP_SCHEMA}
    for index in range(table.num_rows):
        yield {name: values[index] for name, values in columns.items()}


def _column(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_large_list(column.type):
        return column.to_pylist()
    result: list[Any] = []
    for chunk in column.chunks:
        values = chunk.values.to_numpy(zero_copy_only=False)
        offsets = chunk.offsets.to_numpy()
        present = chunk.is_valid().to_numpy(zero_copy_only=False)
        result += [
            values[offsets[i] : offsets[i + 1]] if present[i] else None for i in range(len(chunk))
        ]
    return result
