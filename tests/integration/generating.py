"""The stage ``generate`` with a generator that learnt nothing and a few steps of the optimiser.

``python -m tests.integration.generating ROOT GENERATOR`` runs it on a Ray of its own, operators
apart. All else is the real stage.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from parc_ray.config import ParcConfig, ResourcesConfig
from parc_ray.data.storage import Storage
from parc_ray.recipes import get_recipe
from parc_ray.stages.base import Artifact, StageResult, hash_path
from parc_ray.stages.generate import STAGE
from tests.stages.helpers import run_body

LABEL = "it_01/generate"
GENERATOR = "it_01/train-generator/generator.pt"
APART = {"generate_operators": "apart", "generate_actors": 2, "optimize_actors": 1}


def config(**resources: object) -> ParcConfig:
    """Three items of three terrains with two candidates each."""
    smoke = get_recipe("smoke")
    row = replace(smoke.iterations[0], motions=7, max_terrains=9, candidates=2, mirror=True)
    synthesis = replace(
        smoke.synthesis,
        rollout=replace(smoke.synthesis.rollout, max_duration_s=1.3),
        optimizer=replace(smoke.synthesis.optimizer, iterations=15),
    )
    return replace(
        smoke,
        iterations=(row,),
        synthesis=synthesis,
        resources=ResourcesConfig(cpus_per_worker=0.5, **resources),
    )


def generate(root: Path, generator: Path, settings: ParcConfig) -> StageResult:
    """The stage, in a run directory that is new or was left by a killed attempt."""
    file = root / GENERATOR
    if not file.exists():
        file.parent.mkdir(parents=True)
        shutil.copy(generator, file)
    digest = hash_path(Storage.from_uri(root), GENERATOR)
    inputs = {"generator": Artifact(path=GENERATOR, sha256=digest)}
    return run_body(root, "generate", STAGE.body, inputs, settings, 1)


if __name__ == "__main__":
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    generate(Path(sys.argv[1]), Path(sys.argv[2]), config(**APART))
