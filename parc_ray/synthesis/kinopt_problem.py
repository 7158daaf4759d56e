"""A batch of motions of different lengths as one padded optimisation problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import dof_to_joint_rot, forward_kinematics
from parc_ray.character.skeleton import Skeleton
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames, stack
from parc_ray.synthesis import kinopt_terms as terms
from parc_ray.synthesis.config import OptimizerConfig
from parc_ray.synthesis.constraints import HeldBodies, automatic_constraints
from parc_ray.synthesis.contact_terms import (
    BodyPoints,
    Ground,
    contact_distances,
    contact_sum,
    penetration_sum,
)
from parc_ray.terrain.heightfield import HeightfieldBatch

TERM_NAMES = (
    "root_pos",
    "root_rot",
    "joint_rot",
    "smoothness",
    "penetration",
    "contact",
    "sliding",
    "body_constraint",
    "jerk",
    "joint_limit",
    "foot_slide",
    "foot_swing",
)


_PLANTED = 0.5
"""Least label in both frames of a planted foot, as in the metric of foot slide."""
_SWING_FRAMES = 2
"""A foot swings in frames that are further than this from any in which it is planted."""


def pad_frames(frames: MotionFrames, length: int) -> MotionFrames:
    """Repeat the last frame of (T, ...) until there are ``length`` frames."""
    extra = length - frames.num_frames
    return frames.map(lambda x: torch.cat([x, x[-1:].expand(extra, x.shape[-1])]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pose:
    """Body poses of N padded motions.

    Attributes:
        body_pos: (N, T, B, 3) metres.
        body_rot: (N, T, B, 4).
        body_mat: (N, T, B, 3, 3).
        joint_rot: (N, T, J, 4).
        step: (N, T-1, B, 3) metres per frame.
        turn: (N, T-1, B) rad per frame.
    """

    body_pos: Tensor
    body_rot: Tensor
    body_mat: Tensor
    joint_rot: Tensor
    step: Tensor
    turn: Tensor

    @classmethod
    def of(cls, skeleton: Skeleton, root_pos: Tensor, root_rot: Tensor, dof: Tensor) -> Pose:
        """Forward kinematics and differences of (N, T, ...) motions."""
        joint_rot = dof_to_joint_rot(skeleton, dof)
        pos, quat = forward_kinematics(skeleton, root_pos, root_rot, joint_rot)
        return cls(
            body_pos=pos,
            body_rot=quat,
            body_mat=rot.quat_to_matrix(quat),
            joint_rot=joint_rot,
            step=pos[:, 1:] - pos[:, :-1],
            turn=terms.rotation_gap(quat[:, 1:], quat[:, :-1]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """What the terms know of the character; shared by all motions."""

    skeleton: Skeleton
    points: BodyPoints
    held: HeldBodies
    limits: Tensor

    @classmethod
    def of(
        cls, character: Character, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Body:
        """Collect points, held bodies and joint limits on ``device``."""

        def put(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None)

        points, held = BodyPoints.of(character), HeldBodies.of(character)
        return cls(
            skeleton=character.skeleton,
            points=BodyPoints(**{f.name: put(getattr(points, f.name)) for f in fields(points)}),
            held=HeldBodies(**{f.name: put(getattr(held, f.name)) for f in fields(held)}),
            limits=put(character.skeleton.dof_limits),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """N source motions, padded to T frames, with their terrains.

    The variables x (N, T, 6 + D) are root position, a world rotation vector applied after the
    source's root rotation (free of the exponential map's fold at pi), and the joint coordinates.
    """

    source: MotionFrames
    pose: Pose
    mask: Tensor
    lengths: Tensor
    ground: Ground
    target: Tensor
    held_active: Tensor
    slide_weight: Tensor
    planted: Tensor
    swinging: Tensor
    dt: float

    @classmethod
    def build(
        cls, clips: Sequence[MotionClip], body: Body, cfg: OptimizerConfig, device: torch.device
    ) -> Problem:
        """Pad and stack ``clips`` (equal frame rate and cell size)."""
        lengths = torch.tensor([c.num_frames for c in clips], device=device)
        longest = int(lengths.max())
        source = stack([pad_frames(c.frames, longest) for c in clips]).to(device)
        mask = torch.arange(longest, device=device)[None] < lengths[:, None]
        batch = HeightfieldBatch.stack([c.terrain for c in clips]).to(device)
        ground = Ground.of(batch, float(body.points.reach.max()), cfg.window)
        with torch.no_grad():
            pose = Pose.of(body.skeleton, source.root_pos, source.root_rot, source.dof)
            target, active = automatic_constraints(
                pose.body_pos, pose.body_mat, source.contacts, mask, body.held, ground
            )
        weight = torch.minimum(source.contacts[:, 1:], source.contacts[:, :-1]).clamp(min=0.0)
        both = mask[:, 1:, None] & ~body.held.round_
        planted = weight[..., body.held.bodies] * both
        planted = torch.where(planted > _PLANTED, planted, 0.0)
        if cfg.w_body_constraint > 0:
            free = torch.ones_like(weight)
            free[..., body.held.bodies] = (~(active[:, 1:] & active[:, :-1])).to(weight.dtype)
            weight = weight * free
        return cls(
            source=source,
            pose=pose,
            mask=mask,
            lengths=lengths,
            ground=ground,
            target=target,
            held_active=active,
            slide_weight=weight,
            planted=planted,
            swinging=_swinging(source.contacts, mask, body.held),
            dt=1.0 / clips[0].fps,
        )

    def start(self) -> Tensor:
        """Variables (N, T, 6 + D) of the source motions."""
        s = self.source
        return torch.cat([s.root_pos, torch.zeros_like(s.root_pos), s.dof], dim=-1)

    def poses(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Root positions, root rotations and joint coordinates of variables (N, T, 6 + D)."""
        turn = rot.quat_from_exp(x[..., 3:6])
        return x[..., :3], rot.quat_mul(turn, self.source.root_rot), x[..., 6:]

    def index_select(self, ids: Tensor) -> Problem:
        """The motions ``ids`` (M,), cut to the longest of them."""
        frames = int(self.lengths[ids].max())
        pose = {
            f.name: getattr(self.pose, f.name)[
                ids, : frames - 1 if f.name in ("step", "turn") else frames
            ]
            for f in fields(self.pose)
        }
        return replace(
            self,
            source=self.source[ids].time(0, frames),
            pose=Pose(**pose),
            mask=self.mask[ids, :frames],
            lengths=self.lengths[ids],
            ground=self.ground.index_select(ids),
            target=self.target[ids, :frames],
            held_active=self.held_active[ids, :frames],
            slide_weight=self.slide_weight[ids, : frames - 1],
            planted=self.planted[ids, : frames - 1],
            swinging=self.swinging[ids, :frames],
        )


def evaluate_terms(
    problem: Problem, body: Body, x: Tensor, cfg: OptimizerConfig, *, everything: bool = False
) -> dict[str, Tensor]:
    """Unweighted value (N,) of every term with a weight (or of all, for reports).

    Args:
        problem: motions and terrains.
        body: character constants.
        x: (N, T, 6 + D) variables.
        cfg: weights and limits.
        everything: also terms of weight 0.

    Returns:
        Term name to (N,) values.
    """
    root_pos, root_rot, dof = problem.poses(x)
    now, src, mask = Pose.of(body.skeleton, root_pos, root_rot, dof), problem.pose, problem.mask
    pair = terms.window_mask(mask, 2)
    moving = (now.step, now.turn, src.step, src.turn)
    source = problem.source
    at = (now.body_pos, now.body_mat)
    todo: dict[str, Any] = {
        "root_pos": lambda: terms.root_position(root_pos, source.root_pos, mask),
        "root_rot": lambda: terms.rotation(root_rot, source.root_rot, mask),
        "joint_rot": lambda: terms.rotation(now.joint_rot, src.joint_rot, mask),
        "smoothness": lambda: terms.smoothness(*moving, pair),
        "penetration": lambda: penetration_sum(*at, mask, body.points, problem.ground),
        "contact": lambda: contact_sum(
            *at, source.contacts, mask, body.points, problem.ground, cfg.contact_floor
        ),
        "sliding": lambda: terms.sliding(*moving, problem.slide_weight, pair),
        "body_constraint": lambda: _held(problem, body.held, *at),
        "jerk": lambda: terms.jerk_excess(now.body_pos, cfg.jerk_limit_m_s3 * problem.dt**3, mask),
        "joint_limit": lambda: terms.joint_limit(dof, body.limits, mask),
        "foot_slide": lambda: _planted(problem, body.held, *at),
        "foot_swing": lambda: _swing(problem, body, cfg.swing_clearance_m, *at),
    }
    return {k: todo[k]() for k in TERM_NAMES if everything or getattr(cfg, f"w_{k}") > 0}


def _held(problem: Problem, held: HeldBodies, body_pos: Tensor, body_mat: Tensor) -> Tensor:
    """Sum (N,) of the distances of held bodies from their surface points, metres."""
    n, t, which = problem.held_active.nonzero(as_tuple=True)
    cost = terms.body_constraint(
        held.place_some(body_pos, body_mat, n * body_pos.shape[1] + t, which),
        held.real[which],
        problem.target[n, t, which],
        held.radius[which],
        held.round_[which],
    )
    return cost.new_zeros(len(problem.lengths)).index_add(0, n, cost)


def _planted(problem: Problem, held: HeldBodies, body_pos: Tensor, body_mat: Tensor) -> Tensor:
    """Sum (N,) of the ways of planted soles from frame to frame, weighted by their labels."""
    n, t, which = (problem.planted > 0).nonzero(as_tuple=True)
    frame = n * body_pos.shape[1] + t
    first, second = (held.place_some(body_pos, body_mat, f, which) for f in (frame, frame + 1))
    cost = terms.planted_slide(first, second, held.real[which]) * problem.planted[n, t, which]
    return cost.new_zeros(len(problem.lengths)).index_add(0, n, cost)


def _swinging(contacts: Tensor, mask: Tensor, held: HeldBodies) -> Tensor:
    """Frames (N, T, B) in which a foot swings: its labels say no contact, here and nearby."""
    feet = held.bodies[~held.round_]
    planted = (contacts[..., feet] > _PLANTED).to(contacts.dtype)
    near = max_pool1d(planted.transpose(1, 2), 2 * _SWING_FRAMES + 1, 1, _SWING_FRAMES)
    out = torch.zeros_like(contacts, dtype=torch.bool)
    out[..., feet] = (near.transpose(1, 2) == 0) & mask[..., None]
    return out


def _swing(
    problem: Problem, body: Body, clearance_m: float, body_pos: Tensor, body_mat: Tensor
) -> Tensor:
    """Sum (N,) of what swinging feet lack to ``clearance_m`` above the ground, metres."""
    which = problem.swinging.nonzero(as_tuple=True)
    away, _ = contact_distances(body_pos, body_mat, which, body.points, problem.ground)
    lack = (clearance_m - away).clamp(min=0.0)
    return lack.new_zeros(len(problem.lengths)).index_add(0, which[0], lack)


def total_loss(values: dict[str, Tensor], cfg: OptimizerConfig) -> Tensor:
    """Weighted sum (N,) of term values."""
    return torch.stack([getattr(cfg, f"w_{k}") * v for k, v in values.items()]).sum(0)
