"""The training objective: noise a batch, predict it back, score the prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algorithms.diffusion.batch import TrainingBatch
from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.config import DiffusionConfig
from algorithms.diffusion.denoiser import insert_past
from algorithms.diffusion.losses import (
    decode_pose,
    penetration_term,
    pose_terms,
    target_term,
    weigh_terms,
)
from algorithms.diffusion.schedule import NoiseSchedule
from parc_ray.character.character import Character
from parc_ray.character.surface import surface_points
from parc_ray.motion.features import FeatureStats
from parc_ray.precision import low_precision

Network = Callable[[Tensor, Tensor, Conditions], Tensor]
"""Predicts normalised x0 (N, T, F) from (x, t, conditions)."""


class Objective:
    """Loss of a network on a batch; holds constants only."""

    def __init__(
        self,
        character: Character,
        config: DiffusionConfig,
        stats: FeatureStats,
        device: torch.device,
    ) -> None:
        """Put schedule and statistics on ``device``."""
        self.character, self.config, self.device = character, config, device
        self.schedule = NoiseSchedule(config.diffusion_steps).to(device)
        self.points = surface_points(character, "minimal")
        self.stats = stats.to(device)

    def __call__(self, network: Network, batch: TrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Total loss (scalar) and the share of each term in it (detached scalars)."""
        config, cfg = self.config, self.config.loss
        past = batch.x0[:, : config.num_past]
        clean = batch.cond.clean_past
        x = insert_past(self.schedule.add_noise(batch.x0, batch.noise, batch.t), past, clean)
        with self._arithmetic():
            predicted = network(x, batch.t, batch.cond)
        predicted = predicted.float()
        if not cfg.score_clean_past:
            predicted = insert_past(predicted, past, clean)
        skeleton = self.character.skeleton
        pose = decode_pose(skeleton, self.stats.denormalise(predicted), config.rotations)
        with torch.no_grad():
            truth = decode_pose(skeleton, batch.features, config.rotations)
        terms = pose_terms(pose, truth, cfg, 1.0 / config.fps)
        if cfg.penetration:
            terms["penetration"] = penetration_term(pose, self.points, batch.terrain, cfg)
        if cfg.target:
            seen = batch.cond.target[:, :2] * batch.cond.target_visible[:, None]
            reach = cfg.target_reach
            terms["target"] = target_term(pose.root_pos, seen, config.reference, reach)
        return weigh_terms(terms, cfg, batch.ood, self._sample_weight(batch.t))

    def _sample_weight(self, t: Tensor) -> Tensor:
        gamma = self.config.loss.min_snr_gamma
        if not gamma:
            return torch.ones(len(t), device=self.device)
        return self.schedule.snr(t).float().clamp_max(gamma) / gamma

    def _arithmetic(self) -> Any:
        low = low_precision(self.config.train.precision, self.device)
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=low)
