"""The formats that data sets are exported to, and how their files are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parc_ray.character.character import Character
from parc_ray.data.exporters import bvh, gltf, mimickit, parc_ms, table, usd
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """One format with a file per clip."""

    suffix: str
    """Ending of its files."""
    encode: Callable[[MotionClip, Character], bytes]
    """The whole file of a clip."""
    left_out: str
    """What a clip may have that the format does not hold."""


EXPORTERS: dict[str, Exporter] = {
    "parc": Exporter(
        suffix=parc_ms.SUFFIX,
        encode=parc_ms.encode,
        left_out="provenance, metrics, confidence of terrain, replay",
    ),
    "csv": Exporter(
        suffix=".csv",
        encode=table.encode_csv,
        left_out="terrain, path, provenance but for the licence, metrics, replay",
    ),
    "npz": Exporter(suffix=".npz", encode=table.encode_npz, left_out="provenance, metrics, replay"),
    "mimickit": Exporter(
        suffix=mimickit.SUFFIX,
        encode=mimickit.encode,
        left_out="terrain, contacts, path, provenance, metrics, replay",
    ),
    "bvh": Exporter(
        suffix=bvh.SUFFIX,
        encode=bvh.encode,
        left_out="shapes, terrain, contacts, path, provenance, metrics, replay",
    ),
    "gltf": Exporter(
        suffix=gltf.SUFFIX,
        encode=gltf.encode,
        left_out="contacts, path, provenance, metrics, replay",
    ),
    "usd": Exporter(
        suffix=usd.SUFFIX,
        encode=usd.encode,
        left_out="contacts, path, provenance, metrics, replay",
    ),
}
"""Formats by name; ``parquet``, our own, holds everything and is written by the store."""

_LONGEST_NAME = 200
"""Bytes of one name; file systems allow 255, with suffix and temporary name."""


def file_name(clip: MotionClip, suffix: str) -> str:
    """Path of a clip's file below the target, such that its import gives the same id.

    Raises:
        InputError: an id that is no path below a directory.
    """
    parts = clip.clip_id.split("/")
    bad = any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts)
    if bad or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise InputError(
            f"clip {clip.clip_id[:60]!r}: its id is no path below a directory; names joined by "
            "'/' are needed; export it as parquet or rename it"
        )
    return clip.clip_id + suffix
