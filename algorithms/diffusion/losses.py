"""Loss terms of the motion generator (PARC, eq. 4, 7, 10 to 12).

Forms and weights are the published code's: docs/design/generator.md, Losses.

All terms are sums over frames, bodies and coordinates, per sample; the caller averages them over
the batch. Shapes: N windows, T frames, J joints, B bodies, P surface points.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.diffusion.config import LossConfig
from parc_ray.character.kinematics import forward_kinematics
from parc_ray.character.rotations import quat_conj, quat_mul, quat_to_exp
from parc_ray.character.skeleton import Skeleton
from parc_ray.character.surface import SurfacePoints, place_points
from parc_ray.motion.features import FeatureLayout
from parc_ray.motion.rotation_features import RotationForm, decode_joint_rot, decode_root
from parc_ray.terrain.distance import penetration_depth
from parc_ray.terrain.heightfield import HeightfieldBatch

LOSS_TERMS: tuple[str, ...] = (
    "root_pos",
    "root_rot",
    "joint_rot",
    "contacts",
    "body_pos",
    "consistency",
    "fk_pos",
    "fk_rot",
    "root_vel",
    "root_ang_vel",
    "joint_vel",
    "body_vel",
    "penetration",
    "target",
)
"""Names of the terms, equal to the weights' names in ``LossConfig``."""

GEOMETRIC_TERMS = frozenset({"penetration", "target"})
"""The terms that need no true motion: the only ones scored on out-of-distribution terrain."""


@dataclass(frozen=True)
class WindowPose:
    """A window of features taken apart, canonical frame.

    Attributes:
        root_pos: (N, T, 3) m.
        rot: (N, T, 1 + J, 4) root rotation, then joint rotations.
        joint_pos: (N, T, J, 3) m, the position channels as they are.
        contacts: (N, T, B).
        body_pos: (N, T, B, 3) m, by forward kinematics.
        body_rot: (N, T, B, 4), by forward kinematics.
    """

    root_pos: Tensor
    rot: Tensor
    joint_pos: Tensor
    contacts: Tensor
    body_pos: Tensor
    body_rot: Tensor


def decode_pose(skeleton: Skeleton, features: Tensor, form: RotationForm = "exp") -> WindowPose:
    """Take features (N, T, F) apart and place the bodies; differentiable, also at zero angles."""
    layout = FeatureLayout(skeleton, form)
    root_pos = features[..., layout.root_pos]
    root_rot = decode_root(features[..., layout.root_rot], form)
    joint_rot = decode_joint_rot(skeleton, features[..., layout.dof], form)
    body_pos, body_rot = forward_kinematics(skeleton, root_pos, root_rot, joint_rot)
    return WindowPose(
        root_pos=root_pos,
        rot=torch.cat([root_rot.unsqueeze(-2), joint_rot], dim=-2),
        joint_pos=features[..., layout.joint_pos].unflatten(-1, (-1, 3)),
        contacts=features[..., layout.contacts],
        body_pos=body_pos,
        body_rot=body_rot,
    )


def pose_terms(
    pred: WindowPose, truth: WindowPose, cfg: LossConfig, dt: float
) -> dict[str, Tensor]:
    """Terms that compare a predicted window with the true one; each (N,).

    Terms with weight 0 are left out. Velocities are differences of neighbouring frames over ``dt``
    (s); angular ones are exponential maps of q_{t+1} q_t^-1 over ``dt``.
    """
    terms: dict[str, Tensor] = {
        "root_pos": _squares(pred.root_pos - truth.root_pos),
        "contacts": _squares(pred.contacts - truth.contacts),
    }
    if cfg.root_rot or cfg.joint_rot:
        angles = _squared_angles(pred.rot, truth.rot)
        terms["root_rot"] = _sum(angles[:, :, :1])
        terms["joint_rot"] = _sum(angles[:, :, 1:])
    if cfg.body_pos:
        terms["body_pos"] = _squares(pred.joint_pos - truth.body_pos[:, :, 1:])
    if cfg.consistency:
        terms["consistency"] = _squares(pred.joint_pos - pred.body_pos[:, :, 1:])
    if cfg.fk_pos:
        terms["fk_pos"] = _squares(pred.body_pos - truth.body_pos)
    if cfg.fk_rot:
        terms["fk_rot"] = _sum(_squared_angles(pred.body_rot, truth.body_rot))
    if cfg.root_vel:
        terms["root_vel"] = _squares(_diff(pred.root_pos, dt) - _diff(truth.root_pos, dt))
    if cfg.root_ang_vel or cfg.joint_vel:
        error = (_angular(pred.rot, dt) - _angular(truth.rot, dt)).square()
        terms["root_ang_vel"] = _sum(error[:, :, :1])
        terms["joint_vel"] = _sum(error[:, :, 1:])
    if cfg.body_vel:
        terms["body_vel"] = _squares(_diff(pred.body_pos, dt) - _diff(truth.body_pos, dt))
    return {name: value for name, value in terms.items() if getattr(cfg, name)}


def penetration_term(
    pose: WindowPose,
    points: SurfacePoints,
    terrain: HeightfieldBatch,
    cfg: LossConfig,
) -> Tensor:
    """How deep the character's surface points are in the ground, per sample (N,).

    Points beyond the local grid cost nothing. Paper equation 7 is the sum of depths; the code
    takes half the sum of squared depths.

    Args:
        pose: predicted window, canonical frame.
        points: P points on the bodies (the minimal set in training).
        terrain: local height maps as N terrains in the canonical frame.
        cfg: form and window.
    """
    placed = place_points(points, pose.body_pos, pose.body_rot)
    depth = penetration_depth(placed, terrain, cfg.penetration_window, off_grid="free")
    if cfg.penetration_form == "half_squared":
        depth = 0.5 * depth.square()
    return _sum(depth)


def target_term(root_pos: Tensor, target: Tensor, reference: int, reach: float) -> Tensor:
    """max(-d . (p_last - p_reference)_xy, -reach), per sample (N,).

    Args:
        root_pos: (N, T, 3) m, canonical.
        target: (N, 2) unit direction or zero.
        reference: index of the reference frame.
        reach: m, progress beyond this is not rewarded.
    """
    moved = root_pos[:, -1, :2] - root_pos[:, reference, :2]
    return (-(target * moved).sum(dim=-1)).clamp_min(-reach)


def weigh_terms(
    terms: dict[str, Tensor], cfg: LossConfig, ood: Tensor, sample_weight: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Total loss and the weighted mean of each term.

    Args:
        terms: per-sample values (N,).
        cfg: weights.
        ood: (N,) bool, samples on foreign terrain, scored by the geometric terms only.
        sample_weight: (N,) further weights, 1 by default.

    Returns:
        Scalar loss; per term its share of the loss (detached scalars).
    """
    total = sample_weight.new_zeros(())
    shares: dict[str, Tensor] = {}
    for name, value in terms.items():
        kept = value if name in GEOMETRIC_TERMS else torch.where(ood, 0.0, value)
        share = getattr(cfg, name) * (kept * sample_weight).mean()
        total = total + share
        shares[name] = share.detach()
    return total, shares


def _sum(x: Tensor) -> Tensor:
    return x.flatten(1).sum(dim=1)


def _squares(x: Tensor) -> Tensor:
    return _sum(x.square())


def _diff(x: Tensor, dt: float) -> Tensor:
    return (x[:, 1:] - x[:, :-1]) / dt


def _squared_angles(a: Tensor, b: Tensor) -> Tensor:
    """Squared geodesic angle between quaternions (..., 4), smooth at zero."""
    return quat_to_exp(quat_mul(b, quat_conj(a))).square().sum(dim=-1)


def _angular(q: Tensor, dt: float) -> Tensor:
    return quat_to_exp(quat_mul(q[:, 1:], quat_conj(q[:, :-1]))) / dt
