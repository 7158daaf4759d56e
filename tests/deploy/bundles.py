"""Bundles of models that have learnt nothing, for tests of export and runner."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from algorithms.diffusion.checkpoint import GeneratorFile, save_generator
from algorithms.diffusion.denoiser import Denoiser
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from envs.tracking.config import preset
from envs.tracking.motion_bank import TerrainBank
from envs.tracking.observations import ObservationBuilder
from parc_ray.character.character import character_files, load_character
from parc_ray.deploy.bundle import Models, bundle_files
from parc_ray.motion.features import FeatureLayout, FeatureStats
from parc_ray.recipes import get_recipe
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import WADDLER


def make_policy(character, tracking, seed=0, gain=1.0):
    """Random weights and statistics; ``gain`` scales the actions."""
    builder = ObservationBuilder(
        character, tracking.observation, TerrainBank([Heightfield.flat((2, 2))])
    )
    blocks = builder.layout.blocks
    hidden = sum(block.size for block in blocks if block.critic_only)
    torch.manual_seed(seed)
    skip = [builder.layout.slices[b.name] for b in blocks if not b.normalise]
    spec = NetSpec(
        obs_dim=builder.layout.size,
        action_dim=character.skeleton.num_dofs,
        hidden=(64, 32),
        activation="elu",
        privileged_dims=hidden,
        normaliser_skip=tuple((s.start, s.stop) for s in skip),
        normaliser_clip=5.0,
    )
    policy = MlpPolicy(spec)
    policy.normaliser.mean.copy_(0.3 * torch.randn(spec.obs_dim))
    policy.normaliser.var.copy_(0.3 + torch.rand(spec.obs_dim))
    policy.normaliser.refresh()
    with torch.no_grad():
        policy.actor.out.weight *= gain
    return policy.eval(), builder


def save_random_generator(path, character, config):
    """A generator file of random weights."""
    torch.manual_seed(1)
    size = FeatureLayout(character.skeleton, config.rotations).size
    weights = Denoiser(config, size, config.grid.shape).state_dict()
    stats = FeatureStats(
        mean=0.2 * torch.randn(config.num_frames, size),
        std=0.5 + torch.rand(config.num_frames, size),
    )
    file = GeneratorFile(
        config=config,
        character={"name": character.name, "digest": character.digest},
        stats=stats,
        ema=weights,
        model=weights,
        step=0,
    )
    save_generator(file, path)


@lru_cache(maxsize=8)
def make_bundle(name="humanoid", tracking="quick"):
    """Files of a bundle without a generator, its policy and its config; made once per process."""
    path = name if name == "humanoid" else WADDLER
    character = load_character(path)
    config = replace(get_recipe("smoke"), tracking=preset(tracking), character=str(path))
    policy, _ = make_policy(character, config.tracking, gain=0.02)
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder) / "tracker.pt")
        models = Models(
            generator=None,
            tracker=Path(folder) / "tracker.pt",
            labels={"tracker": "it_01/train-tracker"},
            iterations={"tracker": 1},
        )
        files = bundle_files(config, character, character_files(path), models)
    return files, policy, config
