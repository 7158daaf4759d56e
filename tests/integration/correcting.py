"""The stage ``record`` by MPC alone on short motions.

``python -m tests.integration.correcting ROOT`` runs it on a Ray of its own with two actors. All
else is the real stage.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from algorithms.mpc.config import MpcConfig
from parc_ray.character.character import load_character
from parc_ray.config import ParcConfig, ResourcesConfig
from parc_ray.correction.config import CorrectionConfig
from parc_ray.data.storage import Storage
from parc_ray.recipes import get_recipe
from parc_ray.stages.base import Artifact, StageResult, hash_path
from parc_ray.stages.record import STAGE
from tests.envs.helpers import sway_clip
from tests.stages.helpers import put_clips, run_body

LABEL = "it_01/record"
MOTIONS = "it_01/generate"
COUNT = 6


def config(actors: int) -> ParcConfig:
    """A weak controller; the last motion runs away from it."""
    correction = CorrectionConfig(
        strategy="mpc",
        mpc=MpcConfig(samples=16, horizon=6, knots=2, iterations=1, rewinds=1),
        mpc_retries=0,
        mpc_stronger_retry=False,
        mpc_backoff_s=0.1,
        min_segment_s=0.5,
    )
    return replace(
        get_recipe("smoke"),
        correction=correction,
        resources=ResourcesConfig(cpus_per_worker=0.5, record_actors=actors),
    )


def correct(root: Path, actors: int) -> StageResult:
    """The stage, in a run directory that is new or was left by a killed attempt."""
    character = load_character("humanoid")
    manifest = f"{MOTIONS}/manifest.json"
    if not (root / manifest).exists():
        clips = [sway_clip(character, 46, f"sway{n}", amplitude=0.03 * n) for n in range(COUNT - 1)]
        clips.append(sway_clip(character, 46, "flee", speed=8.0))
        put_clips(root, MOTIONS, clips, character)
    digest = hash_path(Storage.from_uri(root), manifest)
    inputs = {"motions": Artifact(path=manifest, sha256=digest, rows=COUNT)}
    return run_body(root, "record", STAGE.body, inputs, config(actors), 1)


if __name__ == "__main__":
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    correct(Path(sys.argv[1]), actors=2)
