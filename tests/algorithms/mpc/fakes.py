"""A simulator with dynamics that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.protocols import SimState
from parc_ray.terrain.heightfield import Heightfield

FPS = 30.0


class WeakServos:
    """Joints reach ``gain`` times their target in one step; the root glides with its velocity.

    ``stumble`` is a step (counted since ``set_state``) at which the root jumps aside by 5 m, the
    first ``times`` times that it is reached. ``simulated`` counts steps of single environments.
    """

    name = "weak-servos"
    model_hash = "w"
    control_dt = 1.0 / FPS

    def __init__(
        self,
        character: Character,
        num_envs: int,
        gain: float = 0.8,
        stumble: int | None = None,
        times: int = 1_000,
    ) -> None:
        """One character per environment, no ground."""
        self.character, self.num_envs, self.gain = character, num_envs, gain
        self.stumble, self.steps, self.times = stumble, 0, times
        self.simulated = 0
        self.current: SimState | None = None

    def load_terrains(self, terrains: Sequence[Heightfield]) -> None:
        """There is no ground."""

    def set_state(self, env_ids: Tensor, terrain_ids: Tensor, state: SimState) -> None:
        """All environments at once."""
        assert len(env_ids) == self.num_envs
        self.current, self.steps = state.clone(), 0

    def state(self) -> SimState:
        """A copy."""
        assert self.current is not None
        return self.current.clone()

    def step(self, pd_targets: Tensor) -> None:
        """One control period."""
        s = self.state()
        reached = self.gain * pd_targets
        s.dof_vel = (reached - s.dof_pos) / self.control_dt
        s.dof_pos = reached
        s.root_pos = s.root_pos + s.root_lin_vel * self.control_dt
        self.simulated += self.num_envs
        if self.steps == self.stumble and self.times > 0:
            self.times -= 1
            s.root_pos = s.root_pos + torch.tensor([0.0, 5.0, 0.0])
        self.current, self.steps = s, self.steps + 1

    def rollout(self, pd_targets: Tensor) -> SimState:
        """States after each of (N, H, D) targets."""
        states = []
        for h in range(pd_targets.shape[1]):
            self.step(pd_targets[:, h])
            states.append(self.state())
        return SimState(
            **{k: torch.stack([getattr(s, k) for s in states], 1) for k in vars(states[0])}
        )

    def copy_env(self, source: int, env_ids: Tensor) -> None:
        """Not needed by the corrector."""
        raise AssertionError

    def state_dict(self) -> dict[str, Any]:
        """State and step; how often it will still stumble is fate and no part of it."""
        return {"state": self.state(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back."""
        self.current, self.steps = state["state"].clone(), state["steps"]

    def close(self) -> None:
        """Nothing to release."""


def glide_clip(character: Character, frames: int = 31, angle: float = 0.4) -> MotionClip:
    """The root glides along x with 1 m/s while every dof stands at ``angle`` rad."""
    skeleton = character.skeleton
    pos = torch.zeros(frames, 3)
    pos[:, 0] = torch.arange(frames) / FPS
    pos[:, 2] = character.stand_height
    return MotionClip(
        clip_id="glide",
        frames=MotionFrames(
            root_pos=pos,
            root_rot=torch.tensor([[0.0, 0.0, 0.0, 1.0]]).repeat(frames, 1),
            dof=torch.full((frames, skeleton.num_dofs), angle),
            contacts=torch.zeros(frames, skeleton.num_bodies),
        ),
        fps=FPS,
        terrain=Heightfield.flat((24, 24)),
    )
