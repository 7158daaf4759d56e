"""Episodes without restarts: evaluate a policy, or keep its trajectories for recording.

Deterministic: equal arguments and seeds give equal results. Everything is judged by the rules of a
`TrackingTask`, so figures from here are comparable with training. Definition of the standard test
(docs/design/tracker.md, Evaluation): deterministic policy, 64 episodes per clip from frame 0, start
noise of 5 cm and 0.05 in velocity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from envs.sims.base import BackendFactory, ContainedBackend
from envs.tracking.config import TrackingConfig
from envs.tracking.motion_bank import MotionBank
from envs.tracking.observations import Observed
from envs.tracking.task import REASONS, Noise, TrackingTask
from parc_ray.character.rotations import quat_angle
from parc_ray.motion.clip import MotionClip
from parc_ray.protocols import Policy, SimState

if TYPE_CHECKING:
    from parc_ray.character.character import Character

STANDARD_NOISE = Noise(pos=0.05, vel=0.05)
"""Start noise of the standard test: 5 cm and 0.05 m/s or rad/s."""

ERRORS = ("body_local_m", "body_global_m", "root_pos_m", "root_rot_rad", "joint_rad")
"""Errors per episode: root-relative and global distance averaged over bodies, root, joints."""


@dataclass
class Episodes:
    """What became of K episodes.

    Attributes:
        clip: (K,) long.
        start: (K,) frame they started at.
        steps: (K,) long, control steps survived.
        remaining: (K,) control steps there were from the start to the clip's end.
        completed: (K,) bool, reached the clip's end without failing.
        reason: (K,) long, index into `REASONS` of the first failure, -1 if none.
        errors: (K, len(ERRORS)) means over the steps survived; NaN where none was.
        contact_agreement: (K,) share of bodies and steps whose contact equals the reference's.
        start_state: (K, ...) initial states as they were handed to the simulator.
        states: (T+1, K, ...) the simulator's state at the start and after each step, or None if
            not kept.
        targets: (T, K, D) PD targets, or None if not kept.
    """

    clip: Tensor
    start: Tensor
    steps: Tensor
    remaining: Tensor
    completed: Tensor
    reason: Tensor
    errors: Tensor
    contact_agreement: Tensor
    start_state: SimState
    states: SimState | None = None
    targets: Tensor | None = None

    @property
    def survived(self) -> Tensor:
        """(K,) share of the steps to the clip's end that was survived."""
        return self.steps / self.remaining.clamp(min=1)

    def summary(self, mask: Tensor | None = None) -> dict[str, float]:
        """Means over episodes (or those of ``mask`` (K,)): completion, survival and errors."""
        rows = torch.arange(len(self.clip)) if mask is None else mask.nonzero()[:, 0]
        out = {
            "episodes": float(len(rows)),
            "completed": float(self.completed[rows].float().mean()),
            "survived": float(self.survived[rows].mean()),
            "contact_agreement": float(self.contact_agreement[rows].nanmean()),
        }
        out.update(zip(ERRORS, self.errors[rows].nanmean(0).tolist(), strict=True))
        for index, name in enumerate(REASONS):
            out[f"end/{name}"] = float((self.reason[rows] == index).float().mean())
        return out


class EpisodeRunner:
    """Runs episodes of clips on a simulator of its own.

    Args:
        character: the character.
        clips: the reference motions.
        config: rules of the task.
        factory: makes the simulator.
        num_envs: environments that run at once.
    """

    def __init__(
        self,
        character: Character,
        clips: Sequence[MotionClip],
        config: TrackingConfig,
        factory: BackendFactory,
        num_envs: int,
        control_hz: float = 30.0,
    ) -> None:
        """Load clips and terrains."""
        self.bank = MotionBank(character, clips, control_hz)
        self.task = TrackingTask(character, self.bank, config)
        self.backend: ContainedBackend = factory(num_envs, self.bank.terrains())

    @torch.no_grad()
    def run(
        self,
        policy: Policy | None,
        clip: Tensor,
        start: Tensor,
        noise: Noise | None = None,
        seed: int = 0,
        *,
        keep: bool = False,
    ) -> Episodes:
        """Run K episodes.

        Args:
            policy: deterministic controller; None means zero actions (reference playback).
            clip: (K,) long, clip of each episode.
            start: (K,) long, frame each starts at.
            noise: start noise; None for none.
            seed: seed of the noise.
            keep: also return the trajectories.
        """
        rng = torch.Generator().manual_seed(seed)
        state = self.task.start_state(clip, start, noise or Noise(), rng)
        size = self.backend.num_envs
        parts = []
        for first in range(0, len(clip), size):
            rows = torch.arange(first, first + size).clamp(max=len(clip) - 1)
            part = self._batch(policy, clip[rows], start[rows], state.index(rows), keep)
            parts.append(_take(part, min(size, len(clip) - first)))
        return _join(parts)

    def run_from_start(
        self, policy: Policy | None, episodes: int, noise: Noise = STANDARD_NOISE, seed: int = 0
    ) -> Episodes:
        """The standard test: ``episodes`` per clip from frame 0 with start noise."""
        clip = torch.arange(self.bank.num_clips).repeat_interleave(episodes)
        return self.run(policy, clip, torch.zeros_like(clip), noise, seed)

    def run_random(
        self, policy: Policy | None, episodes: int, noise: Noise = STANDARD_NOISE, seed: int = 0
    ) -> Episodes:
        """``episodes`` per clip from random frames at least 0.5 s (if possible) before the end."""
        rng = torch.Generator().manual_seed(seed + 1)
        clip = torch.arange(self.bank.num_clips).repeat_interleave(episodes)
        room = (self.bank.length[clip] - 1 - round(0.5 * self.bank.fps)).clamp(min=1)
        start = (torch.rand(len(clip), generator=rng) * room).long()
        return self.run(policy, clip, start, noise, seed)

    def close(self) -> None:
        """Release the simulator."""
        self.backend.close()

    def _batch(
        self, policy: Policy | None, clip: Tensor, start: Tensor, state: SimState, keep: bool
    ) -> Episodes:
        count = len(clip)
        self.backend.set_state(torch.arange(count), clip, state)
        remaining = self.bank.length[clip] - 1 - start
        alive = torch.ones(count, dtype=torch.bool)
        steps, reason = torch.zeros(count, dtype=torch.long), torch.full((count,), -1)
        sums, agreement = torch.zeros(count, len(ERRORS)), torch.zeros(count)
        states, targets = [], []
        frame = start.clone()
        refs = self.task.references(clip, frame)
        seen = self.task.observe(self.backend.state(), refs, clip, frame)
        states.append(seen.state)
        for _ in range(int(remaining.max())):
            action = torch.zeros_like(seen.state.dof_pos)
            if policy is not None:
                action = policy.act(self.task.builder(seen))
            target = self.task.targets(action, refs)
            self.backend.step(target)
            frame = frame + 1
            refs = self.task.references(clip, frame)
            seen = self.task.observe(self.backend.state(), refs, clip, frame)
            running = alive & (frame <= start + remaining)
            failures = self.task.failures(seen, self.backend.bad)
            failed = running & failures.any(-1)
            reason = torch.where(failed, failures.float().argmax(-1), reason)
            alive &= ~failed
            fine = running & ~failed
            steps += fine
            sums += torch.where(fine[:, None], tracking_errors(seen), torch.zeros_like(sums))
            agreement += torch.where(fine, self._agreement(seen), torch.zeros_like(agreement))
            if keep:
                states.append(seen.state)
                targets.append(target)
            if not bool((alive & (frame < start + remaining)).any()):
                break
        survived = torch.where(steps > 0, steps, torch.nan)
        return Episodes(
            clip=clip,
            start=start,
            steps=steps,
            remaining=remaining,
            completed=alive & (remaining > 0),
            reason=reason,
            errors=sums / survived[:, None],
            contact_agreement=agreement / survived,
            start_state=state,
            states=_stack(states) if keep else None,
            targets=torch.stack(targets) if keep else None,
        )

    def _agreement(self, seen: Observed) -> Tensor:
        threshold = self.task.config.reward.contact_threshold_n
        touching = seen.force_sq > threshold * threshold
        return (touching == (seen.current.contacts > 0.5)).float().mean(-1)


def tracking_errors(seen: Observed) -> Tensor:
    """Errors (N, len(ERRORS)) of one moment; PARC's joint error is ``body_local_m``.

    Root-relative body distance averages over all bodies including the root (which adds 0), as
    PARC reports it; joint error is the mean angle over joints.
    """
    ref, state = seen.current, seen.state
    offset = seen.body_pos - ref.body_pos
    local = offset - offset[:, :1]
    return torch.stack(
        (
            local.square().sum(-1).sqrt().mean(-1),
            offset.square().sum(-1).sqrt().mean(-1),
            offset[:, 0].square().sum(-1).sqrt(),
            quat_angle(state.root_rot, ref.root_rot),
            quat_angle(seen.joint_rot, ref.joint_rot).mean(-1),
        ),
        dim=-1,
    )


def _stack(states: Sequence[SimState]) -> SimState:
    return SimState(
        **{f.name: torch.stack([getattr(s, f.name) for s in states]) for f in fields(SimState)}
    )


def _take(part: Episodes, count: int) -> Episodes:
    """The first ``count`` episodes of a batch."""
    out = {}
    for f in fields(Episodes):
        value = getattr(part, f.name)
        if value is None:
            out[f.name] = None
        elif f.name == "start_state":
            out[f.name] = value.index(slice(count))
        elif f.name == "states":
            out[f.name] = value.index((slice(None), slice(count)))
        elif f.name == "targets":
            out[f.name] = value[:, :count]
        else:
            out[f.name] = value[:count]
    return Episodes(**out)


def _join(parts: Sequence[Episodes]) -> Episodes:
    """Put batches behind each other; trajectories are padded with their last state."""
    if len(parts) == 1:
        return parts[0]
    out = {}
    for f in fields(Episodes):
        values = [getattr(p, f.name) for p in parts]
        if values[0] is None:
            out[f.name] = None
        elif f.name == "start_state":
            out[f.name] = SimState(
                **{k: torch.cat([getattr(v, k) for v in values]) for k in vars(values[0])}
            )
        elif f.name == "states":
            out[f.name] = SimState(
                **{k: _cat_padded([getattr(v, k) for v in values]) for k in vars(values[0])}
            )
        elif f.name == "targets":
            out[f.name] = _cat_padded(values)
        else:
            out[f.name] = torch.cat(values)
    return Episodes(**out)


def _cat_padded(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate (T_i, K_i, ...) along K after repeating each last row up to the longest T."""
    longest = max(len(t) for t in tensors)
    full = [torch.cat((t, t[-1:].expand(longest - len(t), *t.shape[1:]))) for t in tensors]
    return torch.cat(full, dim=1)
