"""A finished run whose models learnt nothing: real clips, a generator and a policy, no training."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import torch

from algorithms.diffusion.checkpoint import save_generator
from algorithms.diffusion.profiles import profile
from algorithms.diffusion.trainer import Trainer, private_randomness
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from envs.tracking.rollouts import EpisodeRunner
from parc_ray import loop
from parc_ray.character.character import Character, load_character
from parc_ray.config import D0Config, EvaluationConfig, ParcConfig
from parc_ray.plan import plan
from parc_ray.recipes import get_recipe
from parc_ray.stages._datasets import save_manifest, write_clips
from parc_ray.stages._trackers import make_factory
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.registry import StageSpec, clear_overrides, override_stage
from parc_ray.terrain.spec import TerrainSpec
from tests.algorithms.diffusion.fakes import make_bank
from tests.envs.helpers import stand_clip, sway_clip

TEST = EvaluationConfig(
    terrain=TerrainSpec(
        kind="paths", cells=(12, 12), path_count=4, path_height_m=(-0.2, 0.2), path_floor_m=-0.2
    ),
    terrains=3,
    motions_per_terrain=2,
    max_duration_s=1.0,
    form="code",
    tracker_starts=1,
    tracker_random_starts=2,
)
_OUTPUTS = {
    "augment": ("dataset", "manifest.json"),
    "generate": ("motions", "manifest.json"),
    "train-generator": ("generator", "generator.pt"),
    "train-tracker": ("tracker", "policy.pt"),
    "record": ("recorded", "manifest.json"),
    "merge": ("dataset", "manifest.json"),
    "evaluate": ("metrics", "manifest.json"),
}


def tiny_config(storage: Path, iterations: int = 1, name: str = "r") -> ParcConfig:
    """The smoke recipe with a small test."""
    config = get_recipe("smoke").with_iterations(iterations)
    planner = replace(config.synthesis.planner, min_distance_m=1.5)
    return replace(
        config,
        name=name,
        storage=str(storage),
        d0=D0Config(correction="none"),
        generator=profile("tiny"),
        synthesis=replace(config.synthesis, planner=planner),
        evaluation=TEST,
        resources=replace(config.resources, address="local"),
    )


def make_run(config: ParcConfig, *, without: tuple[str, ...] = ()) -> Path:
    """Run all stages but the report, and but those named, with bodies that only leave files.

    Markers hold the real sections, so that the real program finds the stages done.
    """
    for name in _OUTPUTS:
        module = importlib.import_module(f"parc_ray.stages.{name.replace('-', '_')}")
        section = module.STAGE.section
        override_stage(name, StageSpec(section=section, body=_body, needs_ray=False))
    try:
        stages = [s for s in plan(config) if s.name != "report" and s.label not in without]
        loop.run_stages(config, stages)
    finally:
        clear_overrides()
    return Path(config.storage) / config.name


def _body(run: StageRun) -> StageOutputs:
    output, path = _OUTPUTS[run.name]
    character = load_character("humanoid")
    if path == "generator.pt":
        write_generator(run.dir.local_path(path), character, run.ctx.iteration)
    elif path == "policy.pt":
        write_policy(run.dir.local_path(path), character, run.ctx.config)
    else:
        clips = [stand_clip(character, 31), sway_clip(character, 31, speed=0.5)]
        save_manifest(run, run.name, write_clips(run, clips, "clips"), character)
    return StageOutputs(paths={output: path})


def write_generator(path: Path, character: Character, seed: int) -> None:
    """An untrained generator with the statistics of a few gliding motions."""
    with private_randomness(seed, 1):
        trainer = Trainer(make_bank(character), character, profile("tiny"))
        file = trainer.generator_file()
    save_generator(replace(file, optimizer=None), path)


class _Width:
    """A policy that only notes how wide observations are."""

    def __init__(self, actions: int) -> None:
        self.actions, self.width = actions, 0

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        self.width = obs.shape[-1]
        return torch.zeros(len(obs), self.actions)


def write_policy(path: Path, character: Character, config: ParcConfig) -> None:
    """An untrained policy of the width that the task's observations have."""
    factory = make_factory(character, config.sim, config.simulator)
    probe = _Width(character.skeleton.num_dofs)
    runner = EpisodeRunner(character, [stand_clip(character, 4)], config.tracking, factory, 1)
    runner.run_from_start(probe, 1)
    runner.close()
    torch.manual_seed(0)
    MlpPolicy(
        NetSpec(obs_dim=probe.width, action_dim=probe.actions, hidden=(8,), activation="elu")
    ).save(path)
