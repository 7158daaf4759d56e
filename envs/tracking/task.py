"""The tracking task without episodes: look-ups, observations, rewards, failures, starts.

Shared by the training environment, the evaluation roll-outs and the recorder, so that all three
judge by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from envs.tracking import rewards, terminations
from envs.tracking.columns import chord_angle
from envs.tracking.config import TrackingConfig
from envs.tracking.control import pd_targets
from envs.tracking.motion_bank import MotionBank, Reference
from envs.tracking.observations import ObservationBuilder, Observed
from envs.tracking.resets import disturb, lift_out, reference_state
from parc_ray.protocols import SimState

if TYPE_CHECKING:
    from parc_ray.character.character import Character

REASONS = ("body", "root_pos", "root_rot", "diverged")


@dataclass
class Noise:
    """Noise of a start: root position (m), velocities (m/s, rad/s), horizontal shift (m)."""

    pos: float = 0.0
    vel: float = 0.0
    shift: float = 0.0


@dataclass
class Ahead:
    """What the motions show at N places of clips.

    Attributes:
        current: references at these places, (N, ...).
        next: references one control step later, (N, ...).
        features: (N, S, W) features at the target steps (`ObservationBuilder.features`).
    """

    current: Reference
    next: Reference
    features: Tensor


class TrackingTask:
    """Rules of tracking clips with a character.

    Args:
        character: the character.
        bank: the reference motions.
        config: all settings.
    """

    def __init__(self, character: Character, bank: MotionBank, config: TrackingConfig) -> None:
        """Prepare constant tensors."""
        self.character = character
        self.bank = bank
        self.config = config
        self.builder = ObservationBuilder(character, config.observation, bank.terrain)
        self.posing = bank.posing
        self.steps = torch.tensor(config.observation.target_steps)
        self._features = self.builder.features(bank.frames)
        self._keys = self.builder.keys
        tolerance = config.reward.contact_tolerance
        self._near_contacts = near_contacts(bank, tolerance) if tolerance else None
        self._joint_weights = character.joint_weights
        self._dof_weights = _dof_weights(character)
        self.body_limits = _body_limits(character, config)
        reward = config.reward
        weights = (reward.pose, reward.vel, reward.root, reward.root_vel, reward.key)
        self._weights = torch.tensor(weights) / sum(weights)

    def references(self, clip: Tensor, frame: Tensor) -> Ahead:
        """What the motions show at places (N,) of clips (N,)."""
        now, ahead = (self.bank.query(clip, frame + k) for k in (0, 1))
        return Ahead(now, ahead, self.target_features(clip, frame))

    def target_features(self, clip: Tensor, frame: Tensor) -> Tensor:
        """(N, S, W) features at the target steps after places (N,) of clips (N,)."""
        steps = self.steps if not frame.is_floating_point() else self.steps.to(frame.dtype)
        frames = frame[:, None] + steps
        if not frame.is_floating_point():
            index = self.bank.index(clip, frames)
            return self._features.index_select(0, index.reshape(-1)).unflatten(0, index.shape)
        rows = self.bank.rows(clip, frames)
        return self.builder.features(self.bank.packing.split(rows.flatten(0, 1))).unflatten(
            0, frames.shape
        )

    def targets(self, action: Tensor, ahead: Ahead) -> Tensor:
        """PD targets (N, D) for actions (N, D), with the references of the present moment."""
        return pd_targets(self.config.control, self.character, self.posing, action, ahead.next)

    def observe(self, state: SimState, ahead: Ahead, clip: Tensor, frame: Tensor) -> Observed:
        """Everything that observations, rewards and failures are computed from."""
        joints = self.posing.joints(state.dof_pos)
        body_pos = self.posing.place(state.root_pos, state.root_rot, joints)
        joint_rot = self.posing.by_joint(joints)
        return self._observed(state, joint_rot, body_pos, ahead, clip, frame)

    def _observed(
        self,
        state: SimState,
        joint_rot: Tensor,
        body_pos: Tensor,
        ahead: Ahead,
        clip: Tensor,
        frame: Tensor,
    ) -> Observed:
        return Observed(
            state=state,
            joint_rot=joint_rot,
            body_pos=body_pos,
            features=ahead.features,
            terrain_ids=clip,
            current=ahead.current,
            frame=frame,
            root_angle=chord_angle(state.root_rot, ahead.current.root_rot),
            remaining_s=(self.bank.length[clip] - 1 - frame) / self.bank.fps,
        )

    def reward_terms(
        self, seen: Observed, action: Tensor, previous: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        """Unweighted terms and costs by name, each (N,)."""
        config, ref, state = self.config.reward, seen.current, seen.state
        error = rewards.root_error_sq(state.root_pos, ref.root_pos, seen.root_angle)
        terms = {
            "pose": rewards.pose_term(
                seen.joint_rot, ref.joint_rot, self._joint_weights, config.pose_scale
            ),
            "vel": rewards.velocity_term(
                state.dof_vel, ref.dof_vel, self._dof_weights, config.vel_scale
            ),
            "root": rewards.root_term(
                error, config.root_scale, config.root_tight, config.root_tight_scale
            ),
            "root_vel": rewards.root_velocity_term(
                state.root_lin_vel,
                state.root_ang_vel,
                ref.root_lin_vel,
                ref.root_ang_vel,
                config.root_vel_scale,
            ),
            "key": rewards.key_term(seen.body_pos, ref.body_pos, self._keys, config.key_scale),
        }
        strength = rewards.contact_strength(
            seen.force_sq, config.contact_mode, config.contact_threshold_n
        )
        terms["contact"] = rewards.contact_term(strength, self._labels(seen))
        if config.action_rate > 0:
            terms["action_rate"] = rewards.action_rate_cost(action, previous)
        if config.power > 0:
            gains = (self.character.kp, self.character.kd, self.character.effort)
            terms["power"] = rewards.power_cost(state.dof_pos, state.dof_vel, target, gains)
        return terms

    def _labels(self, seen: Observed) -> Tensor:
        """Contact labels (N, B) of the reward: the reference's, or those of the frames around."""
        if self._near_contacts is None:
            return seen.current.contacts
        index = self.bank.index(seen.terrain_ids, seen.frame.round().long())
        return self._near_contacts.index_select(0, index)

    def total_reward(self, terms: dict[str, Tensor]) -> Tensor:
        """Weighted sum (N,) of `reward_terms`."""
        config = self.config.reward
        track = torch.stack([terms[k] for k in ("pose", "vel", "root", "root_vel", "key")], dim=-1)
        total = track @ self._weights + config.contact * terms["contact"]
        if "action_rate" in terms:
            total = total - config.action_rate * terms["action_rate"]
        if "power" in terms:
            total = total - config.power * terms["power"]
        return total

    def failures(self, seen: Observed, diverged: Tensor) -> Tensor:
        """Which rule failed, (N, len(REASONS)) bool."""
        config, ref, state = self.config.termination, seen.current, seen.state
        return torch.stack(
            (
                terminations.body_too_far(seen.body_pos, ref.body_pos, self.body_limits),
                terminations.root_too_far(state.root_pos, ref.root_pos, config.root_pos_m),
                seen.root_angle > config.root_rot_rad,
                diverged | terminations.not_finite(state.root_pos, state.dof_pos, state.dof_vel),
            ),
            dim=-1,
        )

    def start(
        self,
        ahead: Ahead,
        clip: Tensor,
        frame: Tensor,
        noise: Noise,
        rng: torch.Generator | None,
    ) -> Observed:
        """Begin at places of clips, disturbed and lifted out of the ground.

        The pose is the reference's and only the root moves, so no kinematics are needed.

        Args:
            ahead: `references` of the places, K leading.
            clip: (K,) long.
            frame: (K,) frames.
            noise: of root position and velocities.
            rng: its source; None for none.

        Returns:
            What is observed there; its ``state`` is the one to hand to a simulator.
        """
        here = ahead.current
        state = reference_state(here)
        if rng is not None:
            disturb(state, noise.pos, noise.vel, noise.shift, rng)
        moved = state.root_pos - here.root_pos
        limit = self.config.sampling.max_lift_m
        if limit > 0:
            rotations = self.bank.body_rot(clip, frame)
            bodies = here.body_pos + moved[:, None]
            lift = lift_out(self.character, self.bank.terrain, clip, bodies, rotations, limit)
            state.root_pos[:, 2] += lift
            moved = state.root_pos - here.root_pos
        bodies = here.body_pos + moved[:, None]
        return self._observed(state, here.joint_rot, bodies, ahead, clip, frame)

    def start_state(
        self, clip: Tensor, frame: Tensor, noise: Noise, rng: torch.Generator | None
    ) -> SimState:
        """The state (K, ...) of `start` alone."""
        return self.start(self.references(clip, frame), clip, frame, noise, rng).state


def near_contacts(bank: MotionBank, frames: int) -> Tensor:
    """(F, B): the largest contact label within ``frames`` of each frame of the same clip."""
    parts = bank.frames.contacts.split(bank.length.tolist())
    window = 2 * frames + 1
    return torch.cat(
        [max_pool1d(part.T[None], window, 1, frames)[0].T for part in parts]
    ).contiguous()


def _dof_weights(character: Character) -> Tensor:
    """(D,) weight of each dof: its joint's."""
    skeleton = character.skeleton
    out = torch.zeros(skeleton.num_dofs)
    for body, dofs in enumerate(skeleton.dof_slices):
        if body > 0:
            out[dofs] = character.joint_weights[body - 1]
    return out


def _body_limits(character: Character, config: TrackingConfig) -> Tensor:
    """(J,) metres: limits of root-relative distance; feet keep theirs under a uniform limit."""
    limits = character.termination_distance.clone()
    if config.termination.body_m is not None:
        feet = {body - 1 for body in character.feet}
        for joint in range(len(limits)):
            if joint not in feet:
                limits[joint] = config.termination.body_m
    return limits * config.termination.body_scale


PolicyFunction = Callable[[Tensor], Tensor]
"""Observations (N, O) to normalised actions (N, D)."""
