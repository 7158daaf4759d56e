"""``train-generator``: the diffusion model on D_{i-1}, warm-started from the last iteration's."""

from __future__ import annotations

from algorithms.diffusion.train import GENERATOR, train_generator
from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.data.bank import ClipBank
from parc_ray.data.storage import StoredFile
from parc_ray.data.store import iter_clips
from parc_ray.stages._curves import write_curve
from parc_ray.stages._datasets import read_manifest, require_clips
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.registry import StageSpec


def body(run: StageRun) -> StageOutputs:
    """Train on Ray Train workers."""
    config: ParcConfig = run.ctx.config
    character = load_character(config.character)
    bank = _load(run, config, character)
    resources = config.resources
    warm = None
    if "warm_start" in run.inputs:
        storage, path = run.open_input("warm_start")
        warm = StoredFile(storage=storage, path=path)
    result = train_generator(
        bank,
        character,
        config.generator_for(run.ctx.iteration, run.seed),
        run.dir,
        "train",
        warm_start=warm,
        num_workers=resources.generator_workers,
        use_gpu=resources.per_worker()["GPU"] > 0,
        resources=resources.per_worker(),
    )
    write_curve(run, "metrics.jsonl")
    metrics = {**result.metrics, "clips": float(len(bank))}
    return StageOutputs(
        paths={"generator": GENERATOR},
        rows={"generator": 1},
        metrics=metrics,
        worker_cpu_seconds=result.cpu_s * resources.generator_workers,
    )


def _load(run: StageRun, config: ParcConfig, character: Character) -> ClipBank:
    """The training set in memory, its clips read one after the other."""
    manifest = read_manifest(run, "dataset")
    manifest.check_character(character.digest, "input 'dataset'")
    what, remedy = "training set of the generator", "check what was recorded before"
    require_clips(manifest.parts, what, remedy)
    return ClipBank(
        iter_clips(run.ctx.run, manifest),
        character.skeleton,
        initial_share=config.data.initial_share,
        memory_mb=config.data.memory_mb,
    )


STAGE = StageSpec(
    section=lambda config, iteration: {
        "generator": config.generator_for(iteration, 0),
        "workers": config.resources.generator_workers,
        "character": config.character,
        "initial_share": config.data.initial_share,
        "memory_mb": config.data.memory_mb,
    },
    body=body,
)
