"""MPC's recordings as demonstrations: observations and actions, and a policy cloned from them.

A recording holds what its controller asked of the joints. Simulated again, its states are observed
as the policy would, and the targets are written as the policy's actions. Windows from disturbed
states are added: they start beside the recorded motion and ask for the recorded targets, so that
the cloned policy is told what to do in a neighbourhood and not on a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from algorithms.ppo.networks import NetSpec
from algorithms.ppo.policy import MlpPolicy
from envs.sims.base import BackendFactory, ContainedBackend
from envs.sims.replay import initial_state
from envs.tracking.config import TrackingConfig
from envs.tracking.motion_bank import MotionBank
from envs.tracking.resets import disturb
from envs.tracking.task import TrackingTask
from parc_ray.character.kinematics import dof_to_joint_rot, joint_rot_to_dof
from parc_ray.character.rotations import quat_conj, quat_mul
from parc_ray.correction.config import TeacherConfig
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import SimState

if TYPE_CHECKING:
    from parc_ray.character.character import Character

WINDOW = 5
"""Control steps of a window from a disturbed state."""


@dataclass(frozen=True)
class Demonstration:
    """A recording and what it follows.

    Attributes:
        source: the kinematic motion.
        recording: made from it, with ``replay``.
        start: frame of the source that it starts at.
    """

    source: MotionClip
    recording: MotionClip
    start: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How pairs are learned."""

    epochs: int
    """Passes over the pairs."""
    batch: int
    """Pairs per gradient step."""
    lr: float
    """Learning rate at the start; it falls to zero along a cosine."""


@dataclass(frozen=True)
class Pairs:
    """What is cloned.

    Attributes:
        obs: (N, O) observations.
        action: (N, A) normalised actions.
    """

    obs: Tensor
    action: Tensor

    def take(self, rows: Tensor) -> Pairs:
        """Some of them, by a mask or index."""
        return Pairs(self.obs[rows], self.action[rows])


@torch.no_grad()
def demonstrated(
    character: Character,
    factory: BackendFactory,
    shown: Sequence[Demonstration],
    tracking: TrackingConfig,
    config: TeacherConfig,
    seed: int,
) -> Pairs:
    """Observations and actions along recordings and beside them.

    Args:
        character: the character.
        factory: makes the simulator that the recordings were made with.
        shown: one or more recordings.
        tracking: the task of the policy; its actions must be residuals.
        config: noisy copies and their noise.
        seed: of that noise.

    Raises:
        InputError: the policy's actions are absolute targets.
    """
    if tracking.control.mode != "residual":
        raise InputError(
            f"tracking.control.mode: '{tracking.control.mode}' cannot be taught by MPC, whose "
            "targets are residuals; use residual, or another correction.strategy"
        )
    bank = MotionBank(character, [d.source for d in shown], shown[0].source.fps)
    task = TrackingTask(character, bank, tracking)
    rng = torch.Generator().manual_seed(seed)
    parts = []
    single = factory(1, bank.terrains())
    try:
        for clip, d in enumerate(shown):
            states, targets = _simulated(character, single, d, clip)
            frames = d.start + torch.arange(len(targets))
            parts.append(_pairs(character, task, states, targets, clip, frames))
            if config.noisy_copies:
                parts += _beside(character, factory, task, states, targets, clip, d, config, rng)
    finally:
        single.close()
    return Pairs(
        torch.cat([p.obs for p in parts]),
        torch.cat([p.action for p in parts]),
    )


def _simulated(
    character: Character, backend: ContainedBackend, d: Demonstration, clip: int
) -> tuple[SimState, Tensor]:
    """States (T, ...) before each of T recorded targets (T, D)."""
    replay = d.recording.replay
    if replay is None:
        raise ValueError(f"{d.recording.clip_id}: has nothing to simulate again")
    zero = torch.zeros(1, dtype=torch.long)
    start = initial_state(replay, character.skeleton.num_bodies)
    backend.set_state(zero, zero + clip, start)
    first = backend.state()
    rest = backend.rollout(replay.pd_targets[None])
    states = {k: torch.cat((v, getattr(rest, k)[0]))[:-1] for k, v in vars(first).items()}
    return SimState(**states), replay.pd_targets


def _beside(
    character: Character,
    factory: BackendFactory,
    task: TrackingTask,
    states: SimState,
    targets: Tensor,
    clip: int,
    d: Demonstration,
    config: TeacherConfig,
    rng: torch.Generator,
) -> list[Pairs]:
    """Windows that start at disturbed states and ask for the recorded targets."""
    last = max(1, len(targets) - WINDOW)
    begin = torch.arange(0, last, WINDOW).repeat(config.noisy_copies)
    state = states.index(begin).clone()
    disturb(state, config.pos_noise, config.vel_noise, 0.0, rng)
    backend = factory(len(begin), [task.bank.clips[clip].terrain])
    try:
        ids = torch.arange(len(begin))
        backend.set_state(ids, torch.zeros_like(ids), state)
        found = []
        for step in range(min(WINDOW, len(targets))):
            now = (begin + step).clamp(max=len(targets) - 1)
            pairs = _pairs(character, task, backend.state(), targets[now], clip, d.start + now)
            good = ~backend.bad
            found.append(Pairs(pairs.obs[good], pairs.action[good]))
            backend.step(targets[now])
        return found
    finally:
        backend.close()


def _pairs(
    character: Character,
    task: TrackingTask,
    states: SimState,
    targets: Tensor,
    clip: int,
    frames: Tensor,
) -> Pairs:
    """What the policy sees in N states, and the actions that ask for N targets."""
    clips = torch.full_like(frames, clip)
    ahead = task.references(clips, frames)
    obs = task.builder(task.observe(states, ahead, clips, frames))
    return Pairs(obs, actions_for(character, task.config, targets, ahead.next.joint_rot))


def actions_for(
    character: Character, tracking: TrackingConfig, targets: Tensor, ref_joint_rot: Tensor
) -> Tensor:
    """Actions (N, D) under which residual control asks for ``targets`` (N, D) rad.

    Args:
        character: its skeleton.
        tracking: scale and clamp of the actions.
        targets: PD targets.
        ref_joint_rot: (N, J, 4) reference one control step ahead.
    """
    skeleton, control = character.skeleton, tracking.control
    turn = quat_mul(quat_conj(ref_joint_rot), dof_to_joint_rot(skeleton, targets))
    action = joint_rot_to_dof(skeleton, turn) / control.residual_scale_rad
    return action.clamp(-control.max_action, control.max_action)


def clone(
    pairs: Pairs, spec: NetSpec, config: TeacherConfig, seed: int
) -> tuple[MlpPolicy, dict[str, float]]:
    """A policy that imitates, and how well it does on pairs that it was not shown.

    Every tenth pair is held back. Observation statistics are those of all pairs.

    Args:
        pairs: observations and actions.
        spec: shape of the networks; there is no critic yet.
        config: epochs, batch, learning rate and the deviation that PPO begins with.
        seed: of weights and order.
    """
    held = torch.arange(len(pairs.obs)) % 10 == 9
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = MlpPolicy(spec)
        policy.normaliser.merge(policy.normaliser.sums(pairs.obs))
        torch.nn.init.zeros_(policy.actor.out.bias)
        fit(policy, pairs.take(~held), Fit(epochs=config.epochs, batch=config.batch, lr=config.lr))
    policy.log_std.data.fill_(float(torch.tensor(config.ppo_std).log()))
    policy.eval()
    figures = {"pairs": float(len(pairs.obs))}
    for name, rows in (("train", ~held), ("held", held)):
        if bool(rows.any()):
            figures[f"explained_{name}"] = explained(policy, pairs.take(rows))
    return policy, figures


def explained(policy: MlpPolicy, pairs: Pairs) -> float:
    """Share of the actions' variance that a policy explains."""
    left = (policy.act(pairs.obs) - pairs.action).square().mean()
    spread = pairs.action.var(dim=0, unbiased=False).mean().clamp(min=1e-8)
    return float(1.0 - left / spread)


def fit(policy: MlpPolicy, pairs: Pairs, how: Fit) -> None:
    """Least squares of the actor with Adam, from torch's own random state."""
    with torch.no_grad():
        obs = policy.normaliser(pairs.obs[:, : policy.spec.actor_dim])
    optimiser = torch.optim.Adam(policy.actor.parameters(), lr=how.lr)
    parts = max(1, round(len(obs) / how.batch))
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, how.epochs * parts)
    policy.train()
    for _ in range(how.epochs):
        for rows in torch.randperm(len(obs)).tensor_split(parts):
            loss = (policy.actor(obs[rows]) - pairs.action[rows]).square().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            plan.step()
