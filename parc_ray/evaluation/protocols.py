"""Versioned test protocols: which terrains, which paths, how many motions, which seeds.

A protocol never changes once results were published under its name: another set of terrains is
another version. The digest of terrains and paths is stored with every result and compared with the
protocol's own, so that figures of different sets cannot be mistaken for each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from parc_ray.config import EvaluationConfig, ParcConfig
from parc_ray.config_io import unknown_name
from parc_ray.errors import InputError
from parc_ray.synthesis.config import PlannerConfig, SynthesisConfig
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.terrain.spec import TerrainSpec

_NEVER_M = 1000.0


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A generator test and a tracker test.

    Attributes:
        name: name on the command line.
        version: raised whenever anything below changes.
        evaluation: terrains, counts, s, longest motion, seed.
        planner: how the paths are planned.
        digest: of terrains and paths (``set_digest``); empty for a run's own settings.
    """

    name: str
    version: int
    evaluation: EvaluationConfig
    planner: PlannerConfig
    digest: str = ""

    @property
    def label(self) -> str:
        """Name of result directories: ``small-1``."""
        return f"{self.name}-{self.version}"

    def synthesis(self, base: SynthesisConfig) -> SynthesisConfig:
        """A run's synthesis settings under this protocol.

        How a generator is rolled out is the run's own; the paths, the longest motion and that
        nothing is given up early, as in PARC, are the protocol's.
        """
        rollout = replace(
            base.rollout,
            max_duration_s=self.evaluation.max_duration_s,
            stall_s=None,
            lost_margin_m=_NEVER_M,
            fall_depth_m=_NEVER_M,
        )
        return replace(base, rollout=rollout, planner=self.planner)


PROTOCOLS = {
    "small": Protocol(
        name="small",
        version=1,
        evaluation=EvaluationConfig(
            terrain=TerrainSpec(
                kind="paths",
                cells=(16, 16),
                path_count=8,
                path_height_m=(-0.3, 0.3),
                path_floor_m=-0.3,
            ),
            terrains=10,
            motions_per_terrain=8,
            s=0.65,
            max_duration_s=4.0,
            form="code",
            tracker_starts=8,
            tracker_random_starts=16,
            seed=7101,
        ),
        planner=PlannerConfig(min_distance_m=2.5),
        digest="de0f9e4bbc8aff2f",
    ),
    "paper": Protocol(
        name="paper",
        version=1,
        evaluation=EvaluationConfig(
            terrain=TerrainSpec(
                kind="paths",
                cells=(32, 32),
                path_count=10,
                path_height_m=(-1.6, 2.0),
                path_floor_m=-2.0,
            ),
            terrains=100,
            motions_per_terrain=32,
            s=0.65,
            max_duration_s=10.0,
            form="code",
            tracker_starts=32,
            tracker_random_starts=64,
            seed=7201,
        ),
        planner=PlannerConfig(),
        digest="cba14b48731328d5",
    ),
}
"""small: 10 low terrains of 16 x 16 cells, 8 motions each, for two CPU cores. paper: 100 terrains
of 32 x 32 cells with 10 random walks, 32 motions each (the paper states neither the range of
heights nor the longest motion; these are the published code's). ``tracker_random_starts`` is per
motion here; the paper's 2048 is ``--random-starts 2048``."""

OWN = "run"
"""Name of the protocol that takes a run's own evaluation settings."""


def get_protocol(name: str, config: ParcConfig) -> Protocol:
    """Protocol ``name``; ``run`` makes one of the run's own settings.

    Raises:
        InputError: no such protocol; the nearest is named.
    """
    if name == OWN:
        own = config.evaluation
        planner = config.synthesis.planner
        return Protocol(name=OWN, version=0, evaluation=own, planner=planner)
    if name not in PROTOCOLS:
        known = [*PROTOCOLS, OWN]
        raise InputError(unknown_name(f"--protocol {name}", name, known, "protocol"))
    return PROTOCOLS[name]


def terrain_digest(terrain: Heightfield, path: Tensor) -> str:
    """Short digest of a terrain and its path to the millimetre."""
    digest = hashlib.sha256(f"{tuple(terrain.heights.shape)} {terrain.cell_size:.6f}".encode())
    for part in (terrain.heights, terrain.origin, path):
        digest.update((part.double() * 1000.0).round().long().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def set_digest(digests: Sequence[str]) -> str:
    """Digest of a whole set from its terrains', in order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
