"""What the packages know of each other.

Simulators, tracking environments, policies and generators meet only through the protocols of this
module, so that each can be replaced without touching its siblings. Shapes: N environments or
motions, T frames, B bodies, D degrees of freedom, A actions, O observations, H control steps.
Units are SI, quaternions xyzw, velocities in the world frame unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch


@dataclass
class SimState:
    """Physical state of N characters, each in the frame of its own terrain.

    Attributes:
        root_pos: (..., 3) metres, origin of the root body.
        root_rot: (..., 4) unit quaternion xyzw.
        root_lin_vel: (..., 3) m/s, world frame, velocity of the root body's origin.
        root_ang_vel: (..., 3) rad/s, world frame.
        dof_pos: (..., D) rad, exponential maps for spherical joints, angles for hinges.
        dof_vel: (..., D) rad/s, angular velocity in the child frame for spherical joints.
        contact_force: (..., B, 3) N, world frame, net force of the terrain on each body at the
            end of the control step; zeros directly after ``set_state``.
    """

    root_pos: Tensor
    root_rot: Tensor
    root_lin_vel: Tensor
    root_ang_vel: Tensor
    dof_pos: Tensor
    dof_vel: Tensor
    contact_force: Tensor

    def index(self, ids: Any) -> SimState:
        """Select along the leading dimension(s) with any tensor index."""
        return SimState(**{f.name: getattr(self, f.name)[ids] for f in fields(self)})

    def clone(self) -> SimState:
        """Copy every tensor."""
        return SimState(**{f.name: getattr(self, f.name).clone() for f in fields(self)})


@runtime_checkable
class SimBackend(Protocol):
    """A batched physics engine. It never computes a reward and never looks at a reference."""

    num_envs: int
    control_dt: float
    name: str
    model_hash: str
    """Hash of everything that decides the dynamics, apart from the terrain."""

    def load_terrains(self, terrains: Sequence[Heightfield]) -> None:
        """Make ``terrains`` available by index. Called once, before anything else."""
        ...

    def set_state(self, env_ids: Tensor, terrain_ids: Tensor, state: SimState) -> None:
        """Put environments ``env_ids`` (K,) on ``terrain_ids`` (K,) in ``state`` (K leading)."""
        ...

    def step(self, pd_targets: Tensor) -> None:
        """Advance all environments by one control period under PD targets (N, D) in rad."""
        ...

    def state(self) -> SimState:
        """Return the present state of all environments, leading dimension N (a copy)."""
        ...

    def rollout(self, pd_targets: Tensor) -> SimState:
        """Advance by H control periods under targets (N, H, D); states after each, (N, H, ...)."""
        ...

    def copy_env(self, source: int, env_ids: Tensor) -> None:
        """Copy the complete internal state (and terrain) of env ``source`` onto ``env_ids``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit: tensors and plain numbers only."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict`` of an equal backend."""
        ...


@dataclass
class StepResult:
    """What one vector step of a tracking environment returns.

    Finished environments are reset in the same step: ``obs`` already belongs to the new episode,
    and the observation that ended the old one is kept sparsely for bootstrapping.

    Attributes:
        obs: (N, O) observations after the step (and after resets).
        reward: (N,) reward of the step.
        terminated: (N,) bool, failed: the value of the future is zero.
        truncated: (N,) bool, stopped without failing (clip end, time limit): bootstrap.
        final_ids: (K,) long, environments that were reset in this step.
        final_obs: (K, O) their last observations before the reset.
        log: aggregates of this step: sums over finished episodes and per-term means. Keys ending
            in ``_sum`` are added over steps, ``_count`` likewise, all others are averaged.
    """

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_ids: Tensor
    final_obs: Tensor
    log: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class TrackingEnv(Protocol):
    """A vectorised environment on tensors, as the PPO runner sees it."""

    num_envs: int
    obs_dim: int
    action_dim: int

    def reset(self) -> Tensor:
        """Start all environments anew; observations (N, O)."""
        ...

    def step(self, action: Tensor) -> StepResult:
        """Advance by one control step with normalised actions (N, A)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Simulator, clip, time, sampler and random state: enough to continue bit for bit."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        ...

    def metrics(self) -> dict[str, float]:
        """Slow-moving figures (failure rate per clip and class, ...), read once per iteration."""
        ...

    def close(self) -> None:
        """Release simulators and processes."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Deterministic controller: observations to normalised actions."""

    def act(self, obs: Tensor) -> Tensor:
        """Mean action (N, A) for observations (N, O); no gradient."""
        ...


@dataclass
class SampleRequest:
    """One window to generate for each of N motions.

    Attributes:
        past: world-frame frames (N, P, ...), or None for the first window.
        anchor_pos: (N, 3) world position of the reference root (the last past frame's root, or
            the start position where there is no past).
        anchor_heading: (N,) rad, heading of the reference root.
        terrain: batch of N terrains.
        target_w: (N, 2) world xy of the point to move towards.
        second_w: (N, 2) world xy of a point after it, for generators that are told one.
    """

    past: MotionFrames | None
    anchor_pos: Tensor
    anchor_heading: Tensor
    terrain: HeightfieldBatch
    target_w: Tensor
    second_w: Tensor | None = None


@runtime_checkable
class Generator(Protocol):
    """A motion generator that continues motions window by window."""

    num_frames: int
    num_past: int
    fps: float

    def sample(self, request: SampleRequest, rng: torch.Generator) -> MotionFrames:
        """Generate world-frame windows (N, num_frames, ...).

        Frames 0..num_past-1 equal ``request.past`` where it is given.
        """
        ...
