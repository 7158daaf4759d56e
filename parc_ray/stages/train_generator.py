"""``train-generator``: the diffusion model on D_{i-1}, warm-started from the last iteration's."""

from __future__ import annotations

from algorithms.diffusion.train import GENERATOR, train_generator
from parc_ray.character.character import load_character
from parc_ray.config import ParcConfig
from parc_ray.data.bank import ClipBank
from parc_ray.stages._curves import write_curve
from parc_ray.stages._datasets import read_input, require_clips
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.registry import StageSpec


def body(run: StageRun) -> StageOutputs:
    """Train on Ray Train workers."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    clips = read_input(run, "dataset", character)
    require_clips(clips, "training set of the generator", "check what was recorded before")
    resources = config.resources
    out = run.dir.local_path()
    warm = None
    if "warm_start" in run.inputs:
        storage, path = run.open_input("warm_start")
        warm = storage.local_path(path)
    result = train_generator(
        ClipBank(clips, character.skeleton, initial_share=config.data.initial_share),
        character,
        config.generator_for(run.ctx.iteration, run.seed),
        out,
        "train",
        warm_start=warm,
        num_workers=resources.generator_workers,
        use_gpu=resources.gpus_per_worker > 0,
        resources=resources.per_worker(),
    )
    write_curve(run, "metrics.jsonl")
    metrics = {**result.metrics, "clips": float(len(clips))}
    return StageOutputs(
        paths={"generator": GENERATOR},
        rows={"generator": 1},
        metrics=metrics,
        worker_cpu_seconds=result.cpu_s * resources.generator_workers,
    )


STAGE = StageSpec(
    section=lambda config, iteration: {
        "generator": config.generator_for(iteration, 0),
        "workers": config.resources.generator_workers,
        "character": config.character,
        "initial_share": config.data.initial_share,
    },
    body=body,
)
