"""Preallocated [T, N] fragments and the loop that fills them.

The loop knows the environment protocol, an actor function and a random generator; nothing of Ray.
Legend: T control steps, N environments, O observations, A actions, K ended episodes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from algorithms.ppo.losses import log_prob
from algorithms.ppo.module import ActorCritic
from parc_ray.protocols import StepResult, TrackingEnv


@dataclass
class Rollout:
    """One fragment of experience, time-major.

    Attributes:
        obs: (T + 1, N, O) raw observations; the last row follows the fragment.
        action: (T, N, A) sampled normalised actions.
        mean: (T, N, A) mean actions of the sampling policy.
        log_std: (A,) its log deviation.
        log_prob: (T, N) log density of the actions.
        reward: (T, N) rewards as the environment gives them.
        terminated: (T, N) bool, failed.
        truncated: (T, N) bool, stopped without failing.
        final_index: (K,) long, ``t * N + env`` of ended episodes.
        final_obs: (K, O) last observations of ended episodes.
    """

    obs: Tensor
    action: Tensor
    mean: Tensor
    log_std: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_index: Tensor
    final_obs: Tensor

    @property
    def num_steps(self) -> int:
        """Environment steps in the fragment, T * N."""
        return self.reward.numel()

    def to_dict(self) -> dict[str, Tensor]:
        """Field name to tensor, without copies."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def chunks(self, count: int) -> list[Rollout]:
        """Split the environments into ``count`` equal contiguous parts (copies)."""
        num_envs = self.reward.shape[1]
        size = num_envs // count
        step, env = self.final_index // num_envs, self.final_index % num_envs
        parts = []
        for i in range(count):
            own = (env >= i * size) & (env < (i + 1) * size)
            values = {}
            for name, tensor in self.to_dict().items():
                if name == "final_index":
                    values[name] = step[own] * size + env[own] - i * size
                elif name == "final_obs":
                    values[name] = tensor[own]
                elif name == "log_std":
                    values[name] = tensor
                else:
                    values[name] = tensor[:, i * size : (i + 1) * size].contiguous()
            parts.append(Rollout(**values))
        return parts


class LogSums:
    """Adds up ``StepResult.log`` over a fragment by the protocol's rule."""

    def __init__(self) -> None:
        """Start empty."""
        self._sums: dict[str, float] = defaultdict(float)
        self._hits: dict[str, int] = defaultdict(int)

    def add(self, log: dict[str, float]) -> None:
        """Add one vector step's aggregates."""
        for key, value in log.items():
            self._sums[key] += float(value)
            self._hits[key] += 1

    def result(self) -> dict[str, float]:
        """Sums for ``_sum`` and ``_count`` keys (and their quotient), means for the others."""
        out = {}
        for key, value in self._sums.items():
            added = key.endswith(("_sum", "_count"))
            out[key] = value if added else value / self._hits[key]
        for key in [k for k in out if k.endswith("_sum")]:
            stem = key.removesuffix("_sum")
            if out.get(f"{stem}_count", 0.0) > 0:
                out[stem] = out[key] / out[f"{stem}_count"]
        return out


class Sampler:
    """Steps one vector environment under a policy and keeps what must survive between fragments."""

    def __init__(
        self,
        env: TrackingEnv,
        horizon: int,
        seed: int,
        device: torch.device,
        noise_memory: float = 0.0,
    ) -> None:
        """Allocate the fragment buffers; the environment is reset at the first fragment.

        ``noise_memory``: share of the noise that is added to the next action as well. What is
        carried over counts as a part of the environment, so the recorded densities stay exact.
        """
        self.env, self.horizon, self.device = env, horizon, device
        self.noise_memory = noise_memory
        n, o, a = env.num_envs, env.obs_dim, env.action_dim
        self.rng = torch.Generator(device=device).manual_seed(seed)
        self._obs = torch.empty(horizon + 1, n, o, device=device)
        self._action = torch.empty(horizon, n, a, device=device)
        self._mean = torch.empty(horizon, n, a, device=device)
        self._noise = torch.empty(horizon, n, a, device=device)
        self._reward = torch.empty(horizon, n, device=device)
        self._terminated = torch.empty(horizon, n, dtype=torch.bool, device=device)
        self._truncated = torch.empty(horizon, n, dtype=torch.bool, device=device)
        self._carried = torch.zeros(n, a, device=device)
        self.length = torch.zeros(n, device=device)
        self.total = torch.zeros(n, device=device)
        self.started = False
        self.before: dict[str, Any] | None = None
        """State before the newest fragment, to sample it again."""

    @torch.no_grad()
    def run(self, policy: ActorCritic) -> tuple[Rollout, dict[str, float]]:
        """Sample T steps of all environments.

        Args:
            policy: module whose actor, normaliser and deviation are used (exploring).

        Returns:
            The fragment (views of buffers that the next call overwrites) and its metrics.
        """
        start = time.perf_counter()
        if not self.started:
            self._obs[-1] = self.env.reset()
            self.started = True
        self.before = self.state_dict()
        self._obs[0] = self._obs[-1]
        std = torch.exp(policy.log_std)
        self._noise.normal_(generator=self.rng)
        self._noise.mul_(std)
        logs, ends = LogSums(), _Ends()
        for t in range(self.horizon):
            mean = policy.act_mean(self._obs[t])
            self._mean[t] = mean
            torch.add(mean, self._noise[t], out=self._action[t])
            result = self.env.step(self._executed(t))
            self._store(t, result, ends)
            logs.add(result.log)
        rollout = self._fragment(policy.log_std.detach().clone(), ends)
        return rollout, self._metrics(rollout, logs, ends, time.perf_counter() - start)

    def _executed(self, t: int) -> Tensor:
        """The action of step t with what is carried over from earlier noise."""
        if self.noise_memory == 0.0:
            return self._action[t]
        executed = self._action[t] + self._carried
        self._carried.add_(self._noise[t]).mul_(self.noise_memory)
        return executed

    def _store(self, t: int, result: StepResult, ends: _Ends) -> None:
        self._obs[t + 1] = result.obs
        self._reward[t] = result.reward
        self._terminated[t] = result.terminated
        self._truncated[t] = result.truncated
        self.length += 1
        self.total += self._reward[t]
        ids = result.final_ids
        if ids.numel():
            ids = ids.to(self.device)
            ends.index.append(ids + t * self.env.num_envs)
            ends.obs.append(result.final_obs.clone())
            ends.length += float(self.length[ids].sum())
            ends.total += float(self.total[ids].sum())
            self.length[ids] = 0.0
            self.total[ids] = 0.0
            self._carried[ids] = 0.0

    def _fragment(self, log_std: Tensor, ends: _Ends) -> Rollout:
        final_index = torch.cat(ends.index) if ends.index else torch.zeros(0, dtype=torch.long)
        final_obs = torch.cat(ends.obs) if ends.obs else self._obs.new_zeros(0, self.env.obs_dim)
        return Rollout(
            obs=self._obs,
            action=self._action,
            mean=self._mean,
            log_std=log_std,
            log_prob=log_prob(self._mean, log_std, self._action),
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_index=final_index.to(self.device),
            final_obs=final_obs.to(self.device),
        )

    def _metrics(
        self, rollout: Rollout, logs: LogSums, ends: _Ends, seconds: float
    ) -> dict[str, float]:
        count = int(rollout.final_index.numel())
        out = {f"step/{k}": v for k, v in logs.result().items()}
        out |= {f"env/{k}": float(v) for k, v in self.env.metrics().items()}
        out |= {
            "reward_per_step": float(rollout.reward.mean()),
            "failure_rate": float(rollout.terminated.float().mean()),
            "truncation_rate": float(rollout.truncated.float().mean()),
            "episodes_count": float(count),
            "sample_s": seconds,
        }
        if count:
            out["episode_length"] = ends.length / count
            out["episode_return"] = ends.total / count
        return out

    def state_dict(self) -> dict[str, Any]:
        """Environment, exploration generator and running episodes: continues bit for bit."""
        return {
            "env": self.env.state_dict() if self.started else {},
            "rng": self.rng.get_state(),
            "obs": self._obs[-1].clone(),
            "length": self.length.clone(),
            "total": self.total.clone(),
            "carried": self._carried.clone(),
            "started": self.started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict` of a sampler of the same sizes."""
        if state["started"]:
            self.env.load_state_dict(state["env"])
        self.rng.set_state(state["rng"].cpu())
        self._obs[-1] = state["obs"].to(self.device)
        self.length.copy_(state["length"])
        self.total.copy_(state["total"])
        self._carried.copy_(state.get("carried", torch.zeros_like(self._carried)))
        self.started = bool(state["started"])


class _Ends:
    """Ended episodes of one fragment."""

    def __init__(self) -> None:
        self.index: list[Tensor] = []
        self.obs: list[Tensor] = []
        self.length = 0.0
        self.total = 0.0


def cat_rollouts(parts: list[Rollout]) -> Rollout:
    """Join fragments of different runners along the environments (same policy, same T)."""
    if len(parts) == 1:
        return parts[0]
    widths = [part.reward.shape[1] for part in parts]
    total, offset, finals = sum(widths), 0, []
    for part, width in zip(parts, widths, strict=True):
        step, env = part.final_index // width, part.final_index % width
        finals.append(step * total + env + offset)
        offset += width
    values = {
        f.name: torch.cat([getattr(part, f.name) for part in parts], dim=1)
        for f in fields(Rollout)
        if f.name not in ("log_std", "final_index", "final_obs")
    }
    return Rollout(
        **values,
        log_std=parts[0].log_std,
        final_index=torch.cat(finals),
        final_obs=torch.cat([part.final_obs for part in parts]),
    )
