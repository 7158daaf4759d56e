"""Figures of a variant, and whether it is good enough to be kept.

Legend: T frames, P surface points, B bodies, D dofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.character.character import Character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.contacts import foot_slide
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.mirror import mirror_frames
from parc_ray.synthesis.config import VariantQuality
from parc_ray.synthesis.levels import largest_jerk
from parc_ray.terrain.distance import outside_distance, penetration_depth
from parc_ray.terrain.heightfield import Heightfield, HeightfieldBatch

_CONTACT = 0.5


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How deep a motion is in the ground, metres.

    Attributes:
        deepest_mean: depth of the deepest surface point, mean over frames.
        deepest: of any point in any frame.
        point_mean: mean over frames and points.
    """

    deepest_mean: float
    deepest: float
    point_mean: float


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a variant is measured against.

    Attributes:
        excess: (D,) rad, each dof's largest excess over its limits in the parent.
        jerk: largest jerk of the parent, m/s^3.
    """

    excess: Tensor
    jerk: float


def depth_of(character: Character, frames: MotionFrames, terrain: Heightfield) -> Depth:
    """Depth of the surface points of (T, ...) frames; edge cells extend outside the grid."""
    depth = penetration_depth(
        _placed(character, frames)[None], HeightfieldBatch.stack([terrain]), off_grid="extend"
    )[0]
    deepest = depth.amax(-1)
    return Depth(
        deepest_mean=float(deepest.mean()),
        deepest=float(deepest.max()),
        point_mean=float(depth.mean()),
    )


def contact_gap(
    character: Character, frames: MotionFrames, terrain: Heightfield, contacts: Tensor
) -> float:
    """Mean distance from the ground, m, of bodies labelled (T, B) in contact; 0 without any."""
    touching = contacts > _CONTACT
    out = outside_distance(
        _placed(character, frames)[None], HeightfieldBatch.stack([terrain]), off_grid="extend"
    )[0]
    points = surface_points(character, "full")
    labelled = touching[:, points.body]
    nearest = out.new_full(touching.shape, torch.inf).scatter_reduce(
        1, points.body.expand_as(out), torch.where(labelled, out, torch.inf), "amin"
    )
    found = nearest[touching & nearest.isfinite()]
    return float(found.mean()) if len(found) else 0.0


def limit_excess(character: Character, dof: Tensor) -> Tensor:
    """Largest excess (D,) of (T, D) joint coordinates over their limits, rad."""
    limits = character.skeleton.dof_limits
    return torch.maximum(dof - limits[:, 1], limits[:, 0] - dof).clamp(min=0.0).amax(0)


def source_of(parent: MotionClip, character: Character, mirror: bool) -> Source:
    """What variants of ``parent`` (mirrored first, if ``mirror``) are measured against."""
    frames = mirror_frames(character, parent.frames) if mirror else parent.frames
    return Source(excess=limit_excess(character, frames.dof), jerk=largest_jerk(parent, character))


def figures_of(
    clip: MotionClip, wanted: Tensor, character: Character, source: Source
) -> dict[str, float]:
    """Quality figures of a variant.

    Args:
        clip: the variant.
        wanted: (T, B) contacts of the parent that it was to keep.
        character: the character.
        source: what it is measured against.

    Returns:
        ``depth_mean_m``, ``depth_max_m``, ``point_depth_mean_m`` (see ``Depth``);
        ``limit_excess_deg``, more than the parent's in the worst dof; ``largest_jerk`` and
        ``parent_jerk`` (m/s^3); ``contact_gap_m``; ``foot_slide_mps``, mean over planted feet.
    """
    depth = depth_of(character, clip.frames, clip.terrain)
    more = (limit_excess(character, clip.frames.dof) - source.excess).clamp(min=0.0)
    slide = foot_slide(character, clip.frames, clip.fps)
    planted = slide[slide > 0]
    return {
        "depth_mean_m": depth.deepest_mean,
        "depth_max_m": depth.deepest,
        "point_depth_mean_m": depth.point_mean,
        "limit_excess_deg": math.degrees(float(more.max())),
        "largest_jerk": largest_jerk(clip, character),
        "parent_jerk": source.jerk,
        "contact_gap_m": contact_gap(character, clip.frames, clip.terrain, wanted),
        "foot_slide_mps": float(planted.mean()) if len(planted) else 0.0,
    }


def faults(figures: dict[str, float], cfg: VariantQuality) -> list[str]:
    """Why a variant is not kept; empty for a good one. Figures that are not finite are faults."""
    jerk = max(cfg.max_jerk_m_s3, cfg.jerk_factor * figures["parent_jerk"])
    tests = (
        ("depth_mean_m", 1e3, "mm", "mean penetration", cfg.max_mean_depth_m),
        ("depth_max_m", 1e3, "mm", "penetration", cfg.max_depth_m),
        ("limit_excess_deg", 1.0, "deg", "beyond joint limits", cfg.max_limit_excess_deg),
        ("largest_jerk", 1.0, "m/s^3", "jerk", jerk),
        ("contact_gap_m", 1e3, "mm", "from its contacts", cfg.max_contact_gap_m),
    )
    found = []
    for name, factor, unit, words, most in tests:
        value = figures[name]
        if not value <= most:
            found.append(f"{words} {factor * value:.3g} {unit} > {factor * most:.3g}")
    return found


def _placed(character: Character, frames: MotionFrames) -> Tensor:
    """World positions (T, P, 3) of the surface points."""
    pos, quat = fk_from_dof(character.skeleton, frames.root_pos, frames.root_rot, frames.dof)
    return place_points(surface_points(character, "full"), pos, quat)
