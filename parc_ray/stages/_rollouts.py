"""Motions on random terrains by a trained generator: shared by generation and evaluation."""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from algorithms.diffusion.generator import DiffusionGenerator
from parc_ray.character.character import Character
from parc_ray.data.schema import table_to_clips
from parc_ray.data.store import encode_part
from parc_ray.motion.clip import MotionClip
from parc_ray.synthesis.config import SynthesisConfig
from parc_ray.synthesis.planning import PathResult, PlannedTerrain, plan_on_terrain
from parc_ray.synthesis.rollout import Candidate, generate_candidates
from parc_ray.terrain.generators import drawn_spec, make_terrain
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec


def mix(seed: int, *numbers: int) -> int:
    """A seed in [0, 2^31) decided by a seed and some numbers."""
    return int(np.random.SeedSequence([seed, *numbers]).generate_state(1)[0]) >> 1


def load_generator_bytes(
    content: bytes,
    character: Character,
    blend: float,
    device: str = "cpu",
    stride: int | None = None,
) -> tuple[DiffusionGenerator, str]:
    """A generator from the bytes of its file, on ``device``, and their digest.

    ``stride`` replaces the DDIM stride of the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generator.pt"
        path.write_bytes(content)
        generator = DiffusionGenerator.load(
            path, character, blend=blend, stride=stride, device=device
        )
    return generator, hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """Terrains of one item that have a path.

    Attributes:
        numbers: numbers of the terrains in the stage.
        planned: terrains and paths.
        refused: number of a terrain without a path, and why.
    """

    numbers: list[int]
    planned: list[PlannedTerrain]
    refused: dict[int, str]


def families(spec: TerrainSpec, numbers: Sequence[int], seed: int) -> dict[str, str]:
    """Family of the terrain of each number: of those that are mixed, the one drawn."""
    return {str(k): drawn_spec(spec, np.random.default_rng(mix(seed, 1, k))).kind for k in numbers}


def plan_terrains(
    spec: TerrainSpec, synthesis: SynthesisConfig, numbers: Sequence[int], seed: int
) -> PlannedBatch:
    """Make the terrains of these numbers and plan a path over each."""
    found, planned, refused = [], [], {}
    for number in numbers:
        terrain = make_terrain(spec, np.random.default_rng(mix(seed, 1, number)))
        result = plan_on_terrain(terrain, synthesis.planner, mix(seed, 2, number))
        if result.path.points is None:
            refused[number] = result.path.reason
            continue
        found.append(number)
        planned.append(result)
    return PlannedBatch(numbers=found, planned=planned, refused=refused)


def roll_out(
    generator: DiffusionGenerator,
    batch: PlannedBatch,
    character: Character,
    synthesis: SynthesisConfig,
    candidates: int,
    seed: int,
) -> list[Candidate]:
    """Candidates on every planned terrain of a batch; none where nothing was planned."""
    if not batch.planned:
        return []
    return generate_candidates(
        generator,
        [p.terrain for p in batch.planned],
        [p.path.points for p in batch.planned if p.path.points is not None],
        character,
        replace(synthesis.rollout, candidates=candidates),
        mix(seed, 3, *batch.numbers),
    )


def pack_plans(batch: PlannedBatch) -> bytes:
    """Terrains and paths as bytes, every number to the bit."""
    planned = [
        {
            "terrain": _plain(p.terrain),
            "path": _plain(p.path),
            "attempts": p.attempts,
            "reasons": p.reasons,
        }
        for p in batch.planned
    ]
    stream = io.BytesIO()
    torch.save(
        {"numbers": list(batch.numbers), "planned": planned, "refused": batch.refused}, stream
    )
    return stream.getvalue()


def unpack_plans(data: bytes) -> PlannedBatch:
    """The inverse of ``pack_plans``."""
    stored = torch.load(io.BytesIO(data), weights_only=True)
    planned = [
        PlannedTerrain(
            terrain=Heightfield(**p["terrain"]),
            path=PathResult(**{**p["path"], "jumps": p["path"]["jumps"].numpy()}),
            attempts=p["attempts"],
            reasons=tuple(p["reasons"]),
        )
        for p in stored["planned"]
    ]
    return PlannedBatch(numbers=stored["numbers"], planned=planned, refused=stored["refused"])


def pack_clips(clips: Sequence[MotionClip]) -> bytes:
    """Clips as bytes, every number to the bit; nothing for no clip."""
    return encode_part(clips) if clips else b""


def unpack_clips(data: bytes) -> list[MotionClip]:
    """The inverse of ``pack_clips``."""
    if not data:
        return []
    table = pq.read_table(pa.BufferReader(data), use_threads=False)
    return table_to_clips(table, "clips between operators")


def _plain(value: Heightfield | PathResult) -> dict[str, Any]:
    """Fields by name; arrays as tensors that share no memory with larger ones."""
    out = {}
    for f in fields(value):
        item = getattr(value, f.name)
        item = torch.from_numpy(item) if isinstance(item, np.ndarray) else item
        out[f.name] = item.detach().cpu().clone() if isinstance(item, torch.Tensor) else item
    return out
