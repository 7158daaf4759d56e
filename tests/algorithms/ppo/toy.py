"""A vectorised point on a line that must follow a moving target; a TrackingEnv in torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ray.tune.registry import register_env
from torch import Tensor

from parc_ray.protocols import StepResult

TOY = "toy-line"
DEADLY = "toy-line-deadly"


class ToyLine:
    """N points with velocity control; failing means drifting more than 1 m off the target.

    Observation: offset to the target, target velocity, own velocity, a constant 50 (so that an
    unnormalised policy struggles), and two noise numbers. Reward: exp(-4 offset^2).
    """

    obs_dim = 6
    action_dim = 2

    def __init__(self, num_envs: int = 64, seed: int = 0, limit: int = 40, **_: Any) -> None:
        self.num_envs, self.limit = num_envs, limit
        self.rng = torch.Generator().manual_seed(seed)
        self.pos = torch.zeros(num_envs, 2)
        self.vel = torch.zeros(num_envs, 2)
        self.goal = torch.zeros(num_envs, 2)
        self.goal_vel = torch.zeros(num_envs, 2)
        self.clock = torch.zeros(num_envs, dtype=torch.long)
        self.closed = False

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng)

    def _restart(self, ids: Tensor) -> None:
        k = len(ids)
        self.goal[ids] = self._randn(k, 2)
        self.pos[ids] = self.goal[ids] + 0.3 * self._randn(k, 2)
        self.vel[ids] = 0.0
        self.goal_vel[ids] = self._randn(k, 2)
        self.clock[ids] = 0

    def _obs(self) -> Tensor:
        offset = self.goal - self.pos
        return torch.cat([50.0 + 5.0 * offset, self.goal_vel, self.vel], -1)

    def reset(self) -> Tensor:
        self._restart(torch.arange(self.num_envs))
        return self._obs()

    def step(self, action: Tensor) -> StepResult:
        self.vel = action.clamp(-1, 1) * 3.0
        self.pos = self.pos + self.vel / 30.0
        self.goal = self.goal + self.goal_vel / 30.0
        self.clock += 1
        error = (self.goal - self.pos).square().sum(-1)
        terminated = error > 1.0
        truncated = (self.clock >= self.limit) & ~terminated
        ids = torch.nonzero(terminated | truncated).flatten()
        final = self._obs()[ids]
        reward = torch.exp(-4.0 * error)
        self._restart(ids)
        log = {"track": float(reward.mean()), "success_sum": float(truncated.sum())}
        log["success_count"] = float(len(ids))
        return StepResult(self._obs(), reward, terminated, truncated, ids, final, log)

    def state_dict(self) -> dict[str, Any]:
        names = ("pos", "vel", "goal", "goal_vel", "clock")
        state: dict[str, Any] = {n: getattr(self, n).clone() for n in names}
        return state | {"rng": self.rng.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            if name == "rng":
                self.rng.set_state(value)
            else:
                setattr(self, name, value.clone())

    def metrics(self) -> dict[str, float]:
        return {"mean_clock": float(self.clock.float().mean())}

    def close(self) -> None:
        self.closed = True


def make_toy(context: Mapping[str, Any]) -> ToyLine:
    """Creator in the form that RLlib's registry wants."""
    return ToyLine(**{k: context[k] for k in ("num_envs", "seed", "limit") if k in context})


def register_toy() -> str:
    """Register the creator; needs Ray to be running."""
    register_env(TOY, make_toy)
    return TOY


class DeadlyLine(ToyLine):
    """Kills the process it is in at a certain step, unless a file says that this has been."""

    def __init__(self, mark: str, at_step: int, **options: Any) -> None:
        super().__init__(**options)
        self.mark, self.left = Path(mark), at_step

    def step(self, action: Tensor) -> StepResult:
        self.left -= 1
        if self.left == 0:
            try:
                self.mark.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def make_deadly(context: Mapping[str, Any]) -> DeadlyLine:
    """Creator in the form that RLlib's registry wants."""
    names = ("mark", "at_step", "num_envs", "seed")
    return DeadlyLine(**{k: context[k] for k in names})


def register_deadly() -> str:
    """Register the creator; needs Ray to be running."""
    register_env(DEADLY, make_deadly)
    return DEADLY
