"""The body of the training loop: one process's share of it, with all of its state.

Everything that decides the next step is in ``Trainer.state_dict``: weights, their average, the
optimiser, statistics, random states and counters. A run that is cut off and continued from a
checkpoint therefore equals an undisturbed one bit for bit (one worker, same machine and versions).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from algorithms.diffusion.batch import BatchMaker, TrainingBatch, WindowSource, estimate_stats
from algorithms.diffusion.checkpoint import GeneratorFile, write_atomically
from algorithms.diffusion.config import DiffusionConfig, TrainConfig
from algorithms.diffusion.denoiser import Denoiser, insert_past
from algorithms.diffusion.ema import make_ema, update_ema
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
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureLayout, FeatureStats

log = logging.getLogger(__name__)

_BUDGET_KEYS = frozenset(
    {"steps", "max_seconds", "report_every", "log_every", "torch_threads", "compile"}
)


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
        self.step, self.elapsed_s, self._since = 0, 0.0, time.monotonic()
        self.rng = torch.Generator().manual_seed(_mix(cfg.seed, 0, rank))
        if warm_start is not None:
            _check_fits(warm_start, character, config)
        self.stats = warm_start.stats if warm_start else self._first_stats(source)
        size = FeatureLayout(character.skeleton).size
        self.denoiser = Denoiser(config, size, config.grid.shape)
        if warm_start is not None:
            self.denoiser.load_state_dict(warm_start.model)
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
        self.schedule = NoiseSchedule(config.diffusion_steps).to(self.device)
        self.points = surface_points(character, "minimal")
        self.batches = BatchMaker(source, character, config, self.stats)
        self.device_stats = self.stats.to(self.device)

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
        config, cfg = self.config, self.config.loss
        past = batch.x0[:, : config.num_past]
        clean = batch.cond.clean_past
        x = insert_past(self.schedule.add_noise(batch.x0, batch.noise, batch.t), past, clean)
        with self._autocast():
            predicted = self.net(x, batch.t, batch.cond)
        predicted = predicted.float()
        if not cfg.score_clean_past:
            predicted = insert_past(predicted, past, clean)
        skeleton = self.character.skeleton
        pose = decode_pose(skeleton, self.device_stats.denormalise(predicted))
        with torch.no_grad():
            truth = decode_pose(skeleton, batch.features)
        terms = pose_terms(pose, truth, cfg, 1.0 / config.fps)
        if cfg.penetration:
            terms["penetration"] = penetration_term(pose, self.points, batch.terrain, cfg)
        if cfg.target:
            seen = batch.cond.target * batch.cond.target_visible[:, None]
            terms["target"] = target_term(pose.root_pos, seen, config.reference, cfg.target_reach)
        weight = torch.ones(len(batch.t), device=self.device)
        if cfg.min_snr_gamma:
            snr = self.schedule.snr(batch.t).float()
            weight = snr.clamp_max(cfg.min_snr_gamma) / cfg.min_snr_gamma
        return weigh_terms(terms, cfg, batch.ood, weight)

    def _autocast(self) -> Any:
        if self.config.train.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _spent(self) -> float:
        cfg = self.config.train
        spent = self.step / max(1, cfg.steps)
        if cfg.max_seconds:
            spent = max(spent, self.seconds() / cfg.max_seconds)
        return spent

    def seconds(self) -> float:
        """Wall time spent in training so far, earlier runs of the same training included."""
        return self.elapsed_s + time.monotonic() - self._since

    def finished(self) -> bool:
        """Whether the budget of steps or seconds is used up (agreed upon by all workers)."""
        cfg = self.config.train
        done = self.step >= cfg.steps
        if not done and cfg.max_seconds is not None:
            over = torch.tensor(float(self.seconds() >= cfg.max_seconds), device=self.device)
            if self.world > 1:
                dist.broadcast(over, 0)
            done = bool(over)
        return done

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides how training goes on; called by all workers together."""
        state: dict[str, Any] = {
            "config": self.config.to_dict(),
            "digest": self.character.digest,
            "step": self.step,
            "elapsed_s": self.seconds(),
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
        _check_same(state, self.config, self.character)
        self.step, self.elapsed_s = int(state["step"]), float(state["elapsed_s"])
        self._since = time.monotonic()
        self.stats = FeatureStats(mean=state["mean"], std=state["std"])
        self.device_stats = self.stats.to(self.device)
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
        )

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
    return (seed * 1_000_003 + step) * 65_537 + rank


def _check_fits(file: GeneratorFile, character: Character, config: DiffusionConfig) -> None:
    if file.character["digest"] != character.digest:
        raise InputError(
            f"warm start: was trained for character {file.character['name']!r} "
            f"({file.character['digest'][:12]}), this is {character.name!r} "
            f"({character.digest[:12]}); use a generator of the same character."
        )
    for name in ("num_frames", "num_past", "fps", "diffusion_steps", "grid", "terrain"):
        _demand_equal(name, getattr(file.config, name), getattr(config, name))
    for name in ("width", "heads", "layers", "feedforward", "frame_hidden", "target_hidden"):
        old, new = getattr(file.config.denoiser, name), getattr(config.denoiser, name)
        _demand_equal(f"denoiser.{name}", old, new)


def _demand_equal(name: str, old: object, new: object) -> None:
    if old != new:
        raise InputError(
            f"{name}: is {new!r}, but the generator to start from has {old!r}; "
            "use the same, or start without it."
        )


def _check_same(state: dict[str, Any], config: DiffusionConfig, character: Character) -> None:
    if state["digest"] != character.digest:
        raise InputError("checkpoint: belongs to another character; use another run directory.")
    old, new = dict(state["config"]), config.to_dict()
    old_train, new_train = dict(old.pop("train")), dict(new.pop("train"))
    for key in _BUDGET_KEYS:
        old_train.pop(key, None)
        new_train.pop(key, None)
    for name, before, now in [
        *((k, old.get(k), v) for k, v in new.items() if k != "sampling"),
        *((f"train.{k}", old_train.get(k), v) for k, v in new_train.items()),
    ]:
        if before != now:
            raise InputError(
                f"{name}: is {now!r}, but the checkpoint was made with {before!r}; "
                "use another run directory."
            )
