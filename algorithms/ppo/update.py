"""One PPO update on a fragment: targets, minibatch steps, learning-rate control, NaN guard.

Nothing of RLlib here. Several learner processes work in lock-step through ``Reducer``: one summed
flat vector per minibatch carries gradients, KL and the health flag, so that every process takes
the same decision. Legend: M = T * N samples, O observations, A actions.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from algorithms.ppo.batch import advantages, explained_variance, next_values
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.losses import adapt_lr, bound_loss, entropy, gaussian_kl, log_prob, surrogate
from algorithms.ppo.module import ActorCritic
from algorithms.ppo.policy import MlpPolicy
from algorithms.ppo.rollout import Rollout
from parc_ray.precision import bf16_is_native

logger = logging.getLogger(__name__)

_STATS = ("policy_loss", "value_loss", "bound_loss", "kl", "clip_fraction", "grad_norm")


class TrainingDivergedError(RuntimeError):
    """Too many updates in a row were not finite."""


@dataclass
class Batch:
    """What the minibatch steps need, flattened to (M, ...).

    Attributes:
        obs: (M, O) normalised observations, bfloat16 where hidden layers run in it.
        action: (M, A) sampled actions.
        mean: (M, A) means of the sampling policy.
        log_std: (A,) its log deviation.
        log_prob: (M,) log density of the actions under it.
        advantage: (M,) normalised, clipped.
        target: (M,) TD(lambda) returns of scaled rewards.
    """

    obs: Tensor
    action: Tensor
    mean: Tensor
    log_std: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor

    def take(self, ids: Tensor) -> Batch:
        """Select samples ``ids`` (m,)."""
        return Batch(
            obs=self.obs.index_select(0, ids),
            action=self.action.index_select(0, ids),
            mean=self.mean.index_select(0, ids),
            log_std=self.log_std,
            log_prob=self.log_prob.index_select(0, ids),
            advantage=self.advantage.index_select(0, ids),
            target=self.target.index_select(0, ids),
        )


class Reducer:
    """Sums over the learner processes (nothing to do for one)."""

    def __init__(self, world: int) -> None:
        """Remember the number of processes; the process group exists already."""
        self.world = world

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum ``tensor`` over all processes in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast_(self, tensors: list[Tensor]) -> None:
        """Overwrite tensors with those of process 0."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)


def make_optimiser(module: ActorCritic, config: TrackerConfig) -> torch.optim.Optimizer:
    """Fused Adam or momentum SGD with one group for the actor and one for the critic."""
    critic = list(module.critic.parameters())
    actor = [*module.actor.parameters()]
    if module.log_std.requires_grad:
        actor.append(module.log_std)
    groups = [
        {"params": actor, "lr": config.lr},
        {"params": critic, "lr": config.critic_lr or config.lr},
    ]
    if config.optimiser == "adam":
        return torch.optim.Adam(groups, lr=config.lr, fused=True)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)


class Updater:
    """Keeps what lives between updates: optimiser, learning rate, generator, counters."""

    def __init__(
        self,
        module: ActorCritic,
        optimiser: torch.optim.Optimizer,
        config: TrackerConfig,
        *,
        world: int = 1,
        rank: int = 0,
    ) -> None:
        """Bind a module and its optimiser; every process starts from process 0's weights."""
        self.module, self.optimiser, self.config = module, optimiser, config
        self.reducer = Reducer(world)
        self.device = module.log_std.device
        self.bf16 = config.bf16 and bf16_is_native(self.device.type)
        self.rng = torch.Generator().manual_seed(config.seed + 104_729 * (rank + 1))
        self.lr = config.lr
        self.iteration = 0
        self.bad_streak = 0
        self.bad_total = 0
        self.critic_only = config.critic_only_iterations
        self.warmup = config.normaliser_warmup if config.normaliser == "running" else 0
        self.params = [p for group in optimiser.param_groups for p in group["params"]]
        self.reducer.broadcast_(list(module.state_dict().values()))
        module.normaliser.refresh()

    def warm_start(self, policy: MlpPolicy) -> None:
        """Start from a policy's weights and normaliser; its statistics count as warmed up."""
        self.module.load_policy(policy)
        if self.config.warm_std is not None:
            with torch.no_grad():
                self.module.log_std.fill_(math.log(self.config.warm_std))
        self.warmup = 0

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from one fragment.

        Args:
            rollout: of this process; all processes must bring equally many samples.

        Returns:
            Losses, KL, learning rate, explained variance, skipped updates and so on.

        Raises:
            TrainingDivergedError: ``max_bad_updates`` updates in a row were not finite.
        """
        metrics = {"skipped_updates": 0.0}
        if not self._rollout_is_finite(rollout):
            self._bad(metrics)
        elif self.iteration < self.warmup:
            self._update_normaliser(rollout)
        else:
            batch, metrics_targets = self.prepare(rollout)
            metrics |= metrics_targets
            self._epochs(batch, metrics)
            self._update_normaliser(rollout)
        self.iteration += 1
        metrics["lr"] = self.lr
        metrics["std"] = float(self.module.log_std.detach().exp().mean())
        metrics["skipped_updates_total"] = float(self.bad_total)
        metrics["normaliser_count"] = float(self.module.normaliser.count)
        return metrics

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        """Values, advantages and targets of a fragment, flattened for the minibatch loop."""
        config, module = self.config, self.module
        steps, num_envs = rollout.reward.shape
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        obs = module.normaliser(rollout.obs).to(dtype)
        values = module.critic(obs, self.bf16).squeeze(-1)
        final_obs = module.normaliser(rollout.final_obs).to(dtype)
        final_values = module.critic(final_obs, self.bf16).squeeze(-1)
        scale = config.reward_scale
        bounds = config.value_bounds
        if bounds is not None:
            bounds = (bounds[0] * scale, bounds[1] * scale)
        follow = next_values(values, rollout.terminated, rollout.final_index, final_values, bounds)
        done = rollout.terminated | rollout.truncated
        reward = rollout.reward * scale
        adv = advantages(reward, values, follow, done, config.gamma, config.lam)
        target = adv + values[:steps]
        metrics = {
            "explained_variance": float(explained_variance(values[:steps], target)),
            "value_mean": float(values[:steps].mean()) / scale,
            "advantage_std": float(adv.std()) / scale,
        }
        samples = steps * num_envs
        batch = Batch(
            obs=obs[:steps].reshape(samples, -1),
            action=rollout.action.reshape(samples, -1),
            mean=rollout.mean.reshape(samples, -1),
            log_std=rollout.log_std,
            log_prob=rollout.log_prob.reshape(samples),
            advantage=self._normalise_advantage(adv.reshape(samples)),
            target=target.reshape(samples),
        )
        return batch, metrics

    def _normalise_advantage(self, adv: Tensor) -> Tensor:
        sums = torch.stack([adv.new_tensor(float(adv.numel())), adv.sum(), adv.square().sum()])
        count, first, second = self.reducer.sum_(sums.double()).unbind()
        mean = first / count
        std = (second / count - mean.square()).clamp_min(0.0).sqrt().clamp_min(1e-5)
        out = (adv - mean.to(adv.dtype)) / std.to(adv.dtype)
        limit = self.config.advantage_clip
        return out if limit is None else out.clamp_(-limit, limit)

    def _epochs(self, batch: Batch, metrics: dict[str, float]) -> None:
        samples = batch.target.numel()
        parts = max(1, round(samples / self.config.minibatch))
        totals: dict[str, float] = {key: 0.0 for key in _STATS}
        good, epoch_kl = 0, 0.0
        for epoch in range(self.config.epochs):
            order = torch.randperm(samples, generator=self.rng).to(self.device)
            kls = []
            for ids in order.tensor_split(parts):
                stats = self._step(batch.take(ids))
                if stats is None:
                    self._bad(metrics)
                    continue
                self.bad_streak = 0
                good += 1
                kls.append(stats["kl"])
                for key, value in stats.items():
                    totals[key] += value
            epoch_kl = sum(kls) / max(len(kls), 1)
            metrics["epochs"] = epoch + 1.0
            if self._per_iteration and epoch_kl > 2.0 * (self.config.kl_target or 0.0):
                break
        if self._per_iteration and good:
            self._steer(epoch_kl)
        metrics |= {key: value / max(good, 1) for key, value in totals.items()}
        metrics["kl_last_epoch"] = epoch_kl
        metrics["entropy"] = float(entropy(self.module.log_std.detach()))

    @property
    def _acting(self) -> bool:
        """Whether the actor is trained in this iteration."""
        return self.iteration >= self.warmup + self.critic_only

    @property
    def _per_iteration(self) -> bool:
        config = self.config
        steered = config.kl_target is not None and self._acting
        return steered and config.lr_control == "iteration"

    def _steer(self, kl: float) -> None:
        """Move the learning rate towards the KL target."""
        config = self.config
        if config.kl_target is not None and self._acting:
            self.lr = adapt_lr(self.lr, kl, config.kl_target, config.lr_min, config.lr_max)

    def _step(self, batch: Batch) -> dict[str, float] | None:
        """One gradient step; None where it was not finite and therefore left out."""
        config, module = self.config, self.module
        mean = module.actor(batch.obs, self.bf16)
        value = module.critic(batch.obs, self.bf16).squeeze(-1)
        log_ratio = log_prob(mean, module.log_std, batch.action) - batch.log_prob
        policy_loss = surrogate(log_ratio, batch.advantage, config.clip)
        value_loss = (value - batch.target).square().mean()
        bounds = bound_loss(mean)
        with torch.no_grad():
            kl = gaussian_kl(batch.mean, batch.log_std, mean, module.log_std).mean()
            clipped = (log_ratio.exp() - 1.0).abs().gt(config.clip).float().mean()
        loss = config.value_coef * value_loss
        if self._acting and not self._gated(value_loss):
            bonus = config.entropy_coef * entropy(module.log_std)
            loss = loss + policy_loss + config.bound_coef * bounds - bonus
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        stats = torch.stack([policy_loss, value_loss, bounds, kl, clipped]).detach()
        stats = self._reduce_gradients(stats)
        norm = nn.utils.clip_grad_norm_(self.params, config.max_grad_norm, foreach=True)
        values = [*stats.tolist(), float(norm)]
        if not all(map(_finite, values)):
            return None
        self._apply(values[3])
        return dict(zip(_STATS, values, strict=True))

    def _gated(self, value_loss: Tensor) -> bool:
        gate = self.config.critic_gate
        if gate is None:
            return False
        return float(self.reducer.sum_(value_loss.detach().clone())) / self.reducer.world > gate

    def _reduce_gradients(self, stats: Tensor) -> Tensor:
        """Average gradients and ``stats`` over the processes with one message."""
        if self.reducer.world == 1:
            return stats
        grads = [p.grad for p in self.params if p.grad is not None]
        flat = torch.cat([*(g.flatten() for g in grads), stats])
        self.reducer.sum_(flat).div_(self.reducer.world)
        pieces = flat.split([*(g.numel() for g in grads), stats.numel()])
        for grad, piece in zip(grads, pieces, strict=False):
            grad.copy_(piece.view_as(grad))
        return pieces[-1]

    def _apply(self, kl: float) -> None:
        config = self.config
        if config.lr_control == "minibatch":
            self._steer(kl)
        self.optimiser.param_groups[0]["lr"] = self.lr
        self.optimiser.param_groups[1]["lr"] = config.critic_lr or self.lr
        self.optimiser.step()
        if self.module.log_std.requires_grad:
            low, high = torch.tensor([config.std_floor, config.std_ceiling]).log().tolist()
            with torch.no_grad():
                self.module.log_std.clamp_(low, high)

    @torch.no_grad()
    def _update_normaliser(self, rollout: Rollout) -> None:
        config, normaliser = self.config, self.module.normaliser
        if config.normaliser == "frozen" or float(normaliser.count) >= config.normaliser_samples:
            return
        sums = self.reducer.sum_(normaliser.sums(rollout.obs[:-1]))
        normaliser.merge(sums, config.normaliser_memory)

    @torch.no_grad()
    def _rollout_is_finite(self, rollout: Rollout) -> bool:
        probe = rollout.obs.sum() + rollout.reward.sum() + rollout.final_obs.sum()
        flag = (~torch.isfinite(probe + rollout.mean.sum())).to(torch.float32)
        return float(self.reducer.sum_(flag)) == 0.0

    def _bad(self, metrics: dict[str, float]) -> None:
        metrics["skipped_updates"] += 1.0
        self.bad_streak += 1
        self.bad_total += 1
        logger.warning("update %d was not finite and was left out", self.iteration)
        if self.bad_streak >= self.config.max_bad_updates:
            raise TrainingDivergedError(
                f"{self.bad_streak} updates in a row were not finite (iteration {self.iteration})"
            )

    def state_dict(self) -> dict[str, Any]:
        """Optimiser, learning rate, counters (equal on all processes)."""
        return {
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "lr": self.lr,
            "iteration": self.iteration,
            "bad_streak": self.bad_streak,
            "bad_total": self.bad_total,
            "critic_only": self.critic_only,
            "warmup": self.warmup,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; the process's generator is restored apart from it."""
        self.optimiser.load_state_dict(state["optimiser"])
        self.load_counters(state)

    def load_counters(self, state: dict[str, Any]) -> None:
        """Learning rate and counters alone."""
        self.lr = float(state["lr"])
        for name in ("iteration", "bad_streak", "bad_total", "critic_only", "warmup"):
            setattr(self, name, int(state[name]))


def _finite(value: float) -> bool:
    return value - value == 0.0
