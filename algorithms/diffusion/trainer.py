"""The body of the training loop: one process's share of it, with all of its state.

Everything that decides the next step is in ``Trainer.state_dict``: weights, their average, the
optimiser, statistics, random states and counters. A run that is cut off and continued from a
checkpoint therefore equals an undisturbed one bit for bit (one worker, same machine and versions).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from algorithms.diffusion.batch import (
    BatchMaker,
    TrainingBatch,
    WindowSource,
    estimate_stats,
    sample_features,
)
from algorithms.diffusion.budget import Clock
from algorithms.diffusion.checkpoint import GeneratorFile, write_atomically
from algorithms.diffusion.compatibility import check_same_run, check_warm_start
from algorithms.diffusion.config import DiffusionConfig, TrainConfig
from algorithms.diffusion.denoiser import Denoiser
from algorithms.diffusion.ema import make_ema, update_ema
from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.objective import Objective
from algorithms.diffusion.probe import probe
from algorithms.diffusion.starts import Starts, collect_starts
from parc_ray.character.character import Character
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureLayout, FeatureStats

log = logging.getLogger(__name__)


def learning_rate(cfg: TrainConfig, progress_steps: int, spent: float) -> float:
    """Learning rate after ``progress_steps`` steps with the share ``spent`` of the budget used.

    Linear warm-up, then half a cosine from the peak to ``final_lr_fraction`` of it.
    """
    warm = min(1.0, (progress_steps + 1) / (cfg.warmup_steps + 1))
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, spent)))
    fraction = cfg.final_lr_fraction + (1 - cfg.final_lr_fraction) * cosine
    return cfg.learning_rate * warm * fraction


@contextmanager
def private_randomness(seed: int, threads: int | None) -> Iterator[None]:
    """Seed PyTorch's global generators (dropout) and set its threads; both are put back."""
    devices = list(range(torch.cuda.device_count()))
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        torch.set_num_threads(threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Trainer:
    """Trains a denoiser on windows; use inside ``private_randomness``."""

    def __init__(
        self,
        source: WindowSource,
        character: Character,
        config: DiffusionConfig,
        *,
        warm_start: GeneratorFile | None = None,
        device: torch.device | None = None,
        rank: int = 0,
        world: int = 1,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        """Build the network and its optimiser.

        Args:
            source: where windows come from.
            character: whose motions they are.
            config: the whole generator configuration.
            warm_start: generator of the previous PARC iteration; its weights, statistics and, if
                kept, optimiser state are continued.
            device: of the network; CPU by default. Sampling of windows stays on the CPU.
            rank: of this process.
            world: number of processes; each takes an equal share of the batch.
            wrap: makes the network distributed, for example ``ray.train.torch.prepare_model``.

        Raises:
            InputError: if the batch cannot be shared out, or the warm start does not fit.
        """
        cfg = config.train
        if cfg.batch_size % world:
            raise InputError(
                f"train.batch_size: {cfg.batch_size} is not divisible by {world} workers; "
                "choose a multiple."
            )
        self.config, self.character, self.rank, self.world = config, character, rank, world
        self.device = device or torch.device("cpu")
        self.share = cfg.batch_size // world
        self.step, self.clock = 0, Clock()
        self.rng = torch.Generator().manual_seed(_mix(cfg.seed, 0, rank))
        if warm_start is not None:
            check_warm_start(warm_start, character, config)
        self.stats = warm_start.stats if warm_start else self._first_stats(source)
        size = FeatureLayout(character.skeleton, config.rotations).size
        self.denoiser = Denoiser(config, size, config.grid.shape)
        if warm_start is not None:
            self.denoiser.load_state_dict(warm_start.model)
        elif self.denoiser.anchor is not None:
            self.denoiser.anchor.fit(sample_features(source, character, config), self.stats)
        self.starts: Starts | None = None
        if cfg.start_windows > 0:
            self.starts = collect_starts(source, character, config)
        self.denoiser.to(self.device)
        self.ema = make_ema(self.denoiser, cfg)
        if warm_start is not None:
            self.ema.module.load_state_dict(warm_start.ema)
            self.ema.n_averaged.fill_(1)
        net = wrap(self.denoiser) if wrap else self.denoiser
        self.net = torch.compile(net) if cfg.compile else net
        self.optimizer = torch.optim.AdamW(
            self.denoiser.parameters(),
            lr=cfg.learning_rate,
            weight_decay=cfg.weight_decay,
            fused=True,
        )
        if warm_start is not None and warm_start.optimizer is not None and cfg.keep_optimizer:
            self.optimizer.load_state_dict(warm_start.optimizer)
        self.batches = BatchMaker(source, character, config, self.stats)
        self.objective = Objective(character, config, self.stats, self.device)

    def _first_stats(self, source: WindowSource) -> FeatureStats:
        stats = estimate_stats(source, self.character, self.config)
        if self.world > 1:
            mean, std = stats.mean.to(self.device), stats.std.to(self.device)
            dist.broadcast(mean, 0)
            dist.broadcast(std, 0)
            stats = FeatureStats(mean=mean.cpu(), std=std.cpu())
        return stats

    def train_step(self) -> dict[str, Tensor]:
        """One optimiser step; detached scalars of the loss, its terms and the gradient norm.

        Raises:
            FloatingPointError: if loss or gradient are not finite; the weights are untouched.
        """
        cfg = self.config.train
        self.denoiser.train()
        batch = self.batches.draw(self.rng, self.share).to(self.device)
        loss, shares = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.denoiser.parameters(), cfg.clip_norm)
        if not bool(torch.isfinite(loss.detach() + norm)):
            self.last_bad = (batch, shares)
            raise FloatingPointError("loss or gradient is not finite")
        rate = learning_rate(cfg, self.step, self._spent())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.step += 1
        update_ema(self.ema, self.denoiser, self.step, cfg)
        row = {"loss": loss.detach(), **shares, "grad_norm": norm.detach()}
        return {**row, "learning_rate": torch.tensor(rate)}

    def loss(self, batch: TrainingBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Total loss of a batch and the shares of its terms."""
        return self.objective(self.net, batch)

    def _spent(self) -> float:
        cfg = self.config.train
        return max(self.step / max(1, cfg.steps), self.clock.spent(cfg))

    def seconds(self) -> float:
        """Wall time spent in training so far, earlier runs of the same training included."""
        return self.clock.seconds()

    def finished(self) -> bool:
        """Whether the budget of steps or seconds is used up (agreed upon by all workers)."""
        cfg = self.config.train
        done = self.step >= cfg.steps
        if not done and (cfg.max_seconds is not None or cfg.max_cpu_s is not None):
            done = self.agree(self.clock.spent(cfg) >= 1.0)
        return done

    def agree(self, yes: bool) -> bool:
        """Whether any worker says yes; called by all workers together."""
        if self.world == 1:
            return yes
        said = torch.tensor(float(yes), device=self.device)
        dist.all_reduce(said, op=dist.ReduceOp.MAX)
        return bool(said)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides how training goes on; called by all workers together."""
        state: dict[str, Any] = {
            "config": self.config.to_dict(),
            "digest": self.character.digest,
            "step": self.step,
            "elapsed_s": self.clock.seconds(),
            "cpu_s": self.clock.cpu_s(),
            "mean": self.stats.mean,
            "std": self.stats.std,
            "model": self.denoiser.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self._gather(self.rng.get_state()),
            "torch_rng": self._gather(torch.get_rng_state()),
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = self._gather(torch.cuda.get_rng_state(self.device))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``.

        With another number of workers the random states are seeded anew from seed, step and rank.

        Raises:
            InputError: if the checkpoint was made with another configuration or character.
        """
        check_same_run(state, self.config, self.character)
        self.step = int(state["step"])
        self.clock = Clock(float(state["elapsed_s"]), float(state.get("cpu_s", 0.0)))
        self.stats = FeatureStats(mean=state["mean"], std=state["std"])
        self.objective.stats = self.stats.to(self.device)
        self.batches.stats = self.stats
        self.denoiser.load_state_dict(state["model"])
        self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        if len(state["rng"]) == self.world:
            self.rng.set_state(state["rng"][self.rank])
            torch.set_rng_state(state["torch_rng"][self.rank])
            if self.device.type == "cuda" and "cuda_rng" in state:
                torch.cuda.set_rng_state(state["cuda_rng"][self.rank], self.device)
        else:
            self.rng.manual_seed(_mix(self.config.train.seed, self.step, self.rank))
            torch.manual_seed(_mix(self.config.train.seed, self.step, self.rank) + 1)

    def _gather(self, value: Tensor) -> list[Tensor]:
        if self.world == 1:
            return [value]
        here = value.to(self.device)
        parts = [torch.empty_like(here) for _ in range(self.world)]
        dist.all_gather(parts, here)
        return [p.cpu() for p in parts]

    def generator_file(self) -> GeneratorFile:
        """What the next stages need of this training."""
        cpu = torch.device("cpu")
        return GeneratorFile(
            config=self.config,
            character={"name": self.character.name, "digest": self.character.digest},
            stats=self.stats,
            ema={k: v.to(cpu) for k, v in self.ema.module.state_dict().items()},
            model={k: v.to(cpu) for k, v in self.denoiser.state_dict().items()},
            step=self.step,
            optimizer=self.optimizer.state_dict() if self.config.train.keep_optimizer else None,
            starts=self.starts,
        )

    def probe(self) -> tuple[dict[str, float], NDArray[np.uint8] | None]:
        """How samples of the averaged weights compare with the data, and a picture of some."""
        generator = DiffusionGenerator(self.generator_file(), self.character)
        found = probe(generator, self.batches.source)
        count = self.config.train.pictures
        return found.figures, found.picture(generator, count) if count else None

    def dump_bad_step(self, directory: Path) -> Path:
        """Write the batch and the terms of a step that was not finite."""
        batch, shares = self.last_bad
        path = directory / f"nonfinite_step_{self.step:07d}.pt"
        tensors = {"x0": batch.x0, "noise": batch.noise, "t": batch.t, "features": batch.features}
        cond = {"heights": batch.cond.heights, "target": batch.cond.target}
        content = {**tensors, **cond, "terms": shares, "model": self.denoiser.state_dict()}
        write_atomically(content, path)
        return path


def _mix(seed: int, step: int, rank: int) -> int:
    """Distinct seeds for distinct (seed, step, rank)."""
    return ((seed * 1_000_003 + step) * 65_537 + rank) % (1 << 63)
