"""Runs of single stages in a temporary run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parc_ray.character.character import Character
from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import write_part
from parc_ray.motion.clip import MotionClip
from parc_ray.stages.base import (
    Artifact,
    StageBody,
    StageContext,
    StageResult,
    hash_path,
    run_stage,
)


def put_clips(
    root: Path, stage_path: str, clips: Sequence[MotionClip], character: Character
) -> Artifact:
    """A stage's data set of one part, as an input of another stage."""
    storage = Storage.from_uri(root)
    parts = [write_part(storage, f"{stage_path}/clips.parquet", clips)] if clips else []
    manifest = Manifest(
        name=stage_path.replace("/", "-"),
        iteration=int(stage_path[3:5]),
        parts=tuple(parts),
        character_digest=character.digest,
    )
    path = f"{stage_path}/{FILE_NAME}"
    manifest.save(storage, path)
    return Artifact(path=path, sha256=hash_path(storage, path), rows=len(clips))


def run_body(
    root: Path,
    name: str,
    body: StageBody,
    inputs: Mapping[str, Artifact],
    config: Any,
    iteration: int,
) -> StageResult:
    """Run a stage's body under its own rules."""
    context = StageContext(run=Storage.from_uri(root), iteration=iteration, config=config)
    return run_stage(context, name, {}, inputs, body)
