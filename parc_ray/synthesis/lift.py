"""A first guess for a motion on changed ground: root and feet follow the ground.

Feet (and hands) that stand on something move up or down with it, swinging ones clear the edges
on their way, the root follows what it stands on smoothly, and inverse kinematics of the whole
body joins them. The optimiser starts from there and converges in a few hundred steps.

Legend: N motions, T frames, K hands and feet.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d, maximum_filter1d
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.motion.frames import MotionFrames, stack
from parc_ray.synthesis.constraints import HeldBodies
from parc_ray.synthesis.kinopt_problem import pad_frames
from parc_ray.synthesis.kinopt_terms import joint_limit, rotation_gap
from parc_ray.terrain.heightfield import Heightfield

_LOW_SHARE = 0.3
_DILATE = 7
_SWING_SIGMA = 1.5
_JOIN_SIGMA = 0.7
_LIFT_RATE_M = 0.06
_CONTACT = 0.5
_STANDING_M_S = 0.5
_ADAM_EPS = 0.02  # small gradients make small steps: what fits already stays
_W_TARGET, _W_TURN, _W_STAY, _W_LIMIT = 100.0, 3.0, 0.05, 1.0


def runs(active: np.ndarray) -> list[tuple[int, int]]:
    """Runs (begin, end) of True in a (T,) bool array, end exclusive."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], active.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def body_lift(
    active: np.ndarray, rise: np.ndarray, height: np.ndarray, clearance: float
) -> tuple[np.ndarray, np.ndarray]:
    """How far one hand or foot is moved up over time.

    Args:
        active: (T,) bool, frames in which it stands.
        rise: (T, Q) new minus old ground under its points, metres.
        height: (T, Q) height of its points above the old ground, metres.
        clearance: wanted over the new ground while swinging, metres.

    Returns:
        (T,) lift, metres; (T,) the same without clearance of edges (what it stands on).
    """
    frames = np.arange(len(active))
    stance = np.zeros(len(active))
    for begin, end in runs(active):
        stance[begin:end] = np.median(rise[begin:end])
    if active.any():
        stance = np.interp(frames, frames[active], stance[active])
    else:
        stance = gaussian_filter1d(np.median(rise, axis=1), 4.0, mode="nearest")
    needed = (rise + np.minimum(height, clearance) - height).max(axis=1)
    needed = maximum_filter1d(needed, _DILATE, mode="nearest")
    if active.any():
        apart = np.abs(frames[:, None] - frames[active][None])
        cap = (stance[active][None] + _LIFT_RATE_M * apart).min(axis=1)
        needed = np.minimum(needed, cap)
    swing = gaussian_filter1d(np.maximum(stance, needed), _SWING_SIGMA, mode="nearest")
    lift = np.where(active, stance, swing)
    return gaussian_filter1d(lift, _JOIN_SIGMA, mode="nearest"), stance


def standing(contacts: np.ndarray, place: np.ndarray, fps: float) -> np.ndarray:
    """Frames (T,) in which a body is labelled and its slowest point (T, Q, 3) hardly moves.

    A foot that skims the ground in mid-swing is labelled by distance but does not stand.
    """
    step = np.linalg.norm(np.diff(place, axis=0), axis=-1).min(axis=1) * fps
    speed = np.minimum(np.append(step, step[-1:]), np.append(step[:1], step))
    return (contacts > _CONTACT) & (speed < _STANDING_M_S)


def root_lift(stances: np.ndarray, active: np.ndarray, sigma: float) -> np.ndarray:
    """How far the root is moved up over time.

    Between feet at two levels it stays nearer to the lower one (legs can bend, not stretch).

    Args:
        stances: (T, K) lift of what each body stands on, metres.
        active: (T, K) bool.
        sigma: width of the smoothing, frames.

    Returns:
        (T,) metres.
    """
    any_ = np.asarray(active.any(axis=1))
    if not any_.any():
        return gaussian_filter1d(stances.mean(1), sigma, mode="nearest")
    low = np.where(active, stances, np.inf).min(1)
    high = np.where(active, stances, -np.inf).max(1)
    with np.errstate(invalid="ignore"):
        mean = low + _LOW_SHARE * (high - low)
    frames = np.arange(len(any_))
    level = np.interp(frames, frames[any_], mean[any_])
    return gaussian_filter1d(level, sigma, mode="nearest")


def lift_targets(
    frames: MotionFrames,
    moved: MotionFrames,
    old: Heightfield,
    new: Heightfield,
    move_xy: Callable[[Tensor], Tensor],
    character: Character,
    clearance_m: float,
    sigma: float,
    fps: float,
) -> tuple[MotionFrames, Tensor, Tensor]:
    """Lifted root and the places of hands and feet on the new ground.

    Args:
        frames: (T, ...) parent motion on ``old``, with contact labels.
        moved: the same, turned and scaled in the plane.
        old: parent's terrain.
        new: new terrain.
        move_xy: maps world points (..., 2) of the parent into the plane of ``moved``.
        character: for hands and feet.
        clearance_m: of swinging feet.
        sigma: smoothing of the root, frames.
        fps: frames per second.

    Returns:
        ``moved`` with its root lifted; targets (T, K, 3) of hands and feet; weights (T, K): feet
        always, hands where they touch.
    """
    held = HeldBodies.of(character)
    pos, quat = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    place = held.place(pos[None], rot.quat_to_matrix(quat)[None], held.points)[0]
    below = old.height_at(place[..., :2])
    rise = (new.height_at(move_xy(place[..., :2])) - below).double().numpy()
    height = (place[..., 2] - below).double().numpy()
    height = height - np.where(held.round_[:, None], held.radius[:, None], 0.0)
    labels, at = frames.contacts[:, held.bodies].numpy(), place.numpy()
    active = np.zeros(labels.shape, dtype=bool)
    lifts, stances = [], []
    for k in range(len(held.bodies)):
        q = held.real[k].numpy()
        active[:, k] = standing(labels[:, k], at[:, k][:, q], fps)
        lift, stance = body_lift(active[:, k], rise[:, k][:, q], height[:, k][:, q], clearance_m)
        lifts.append(lift)
        stances.append(stance)
    is_foot = np.isin(held.bodies.numpy(), character.feet)
    level, touch = (
        np.stack(stances, 1),
        active & (is_foot | ~(active & is_foot).any(axis=1, keepdims=True)),
    )
    root = moved.root_pos.clone()
    root[:, 2] += torch.from_numpy(root_lift(level, touch, sigma)).to(root)
    target = pos[:, held.bodies].clone()
    target[..., :2] = move_xy(target[..., :2])
    target[..., 2] += torch.from_numpy(np.stack(lifts, 1)).to(target)
    weight = torch.from_numpy(active | is_foot).to(target)
    lifted = MotionFrames(
        root_pos=root, root_rot=moved.root_rot, dof=moved.dof, contacts=moved.contacts
    )
    return lifted, target, weight


def reach_targets(
    motions: list[MotionFrames],
    targets: list[Tensor],
    weights: list[Tensor],
    character: Character,
    iterations: int,
    lr: float = 0.02,
) -> list[MotionFrames]:
    """Bring hands and feet to their targets, keeping their turn, by Adam on root and joints.

    Args:
        motions: N motions (T_i, ...).
        targets: (T_i, K, 3) metres, of ``HeldBodies.of(character).bodies``.
        weights: (T_i, K).
        character: the character.
        iterations: Adam steps.
        lr: first step size; it falls to a tenth.

    Returns:
        The adapted motions; root rotations and contacts are unchanged.
    """
    if iterations == 0:
        return motions
    bodies = HeldBodies.of(character).bodies
    longest = max(m.num_frames for m in motions)
    base = stack([pad_frames(m, longest) for m in motions])

    def pad(x: Tensor) -> Tensor:
        return torch.cat([x, x[-1:].expand(longest - len(x), *x.shape[1:])])

    goal, weight = torch.stack([pad(t) for t in targets]), torch.stack([pad(w) for w in weights])
    skeleton = character.skeleton
    _, want = fk_from_dof(skeleton, base.root_pos, base.root_rot, base.dof)
    want, limits = want[:, :, bodies], skeleton.dof_limits
    mask = torch.ones(goal.shape[:2], dtype=torch.bool)
    root, dof = base.root_pos.clone().requires_grad_(), base.dof.clone().requires_grad_()
    adam = torch.optim.Adam([root, dof], lr=lr, eps=_ADAM_EPS)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, iterations, lr / 10)
    for _ in range(iterations):
        adam.zero_grad()
        pos, quat = fk_from_dof(skeleton, root, base.root_rot, dof)
        miss = (pos[:, :, bodies] - goal).square().sum(-1) * weight
        turn = rotation_gap(quat[:, :, bodies], want).square() * weight
        stay = (root - base.root_pos).square().sum() + (dof - base.dof).square().sum()
        loss = _W_TARGET * miss.sum() + _W_TURN * turn.sum() + _W_STAY * stay
        (loss + _W_LIMIT * joint_limit(dof, limits, mask).sum()).backward()
        adam.step()
        decay.step()
    out = []
    for n, motion in enumerate(motions):
        t = motion.num_frames
        out.append(
            MotionFrames(
                root_pos=root[n, :t].detach().clone(),
                root_rot=motion.root_rot,
                dof=dof[n, :t].detach().clone(),
                contacts=motion.contacts,
            )
        )
    return out
