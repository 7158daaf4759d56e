"""Spatial variants of the initial clips, adapted by the kinematic optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.mirror import mirror_frames
from parc_ray.synthesis.config import AugmentConfig
from parc_ray.synthesis.kinopt import MotionReport, optimize_motions
from parc_ray.synthesis.levels import largest_jerk, level_change
from parc_ray.synthesis.lift import lift_targets, reach_targets
from parc_ray.synthesis.variant_plan import VariantPlan, planned_terrain, planned_xy
from parc_ray.terrain.heightfield import Heightfield


@dataclass(frozen=True, kw_only=True, eq=False)
class _Guess:
    """A lifted motion, where its hands and feet should go (with weights), and its terrain."""

    frames: MotionFrames
    target: Tensor
    weight: Tensor
    terrain: Heightfield


def make_variants(
    clips: Sequence[MotionClip],
    plans: Sequence[VariantPlan],
    character: Character,
    cfg: AugmentConfig,
) -> list[tuple[MotionClip, MotionReport]]:
    """Carry plans out: move the motion, change the terrain, adapt, label contacts anew.

    Args:
        clips: the parents, by id; contacts are labelled where a parent has none.
        plans: from ``plan_variants``.
        character: the character.
        cfg: settings.

    Returns:
        For each plan the variant (with ``level_change`` (m), ``largest_jerk`` (m/s^3) and ``kin_*``
        metrics) and the report of
        its optimisation.
    """
    if not plans:
        return []
    parents = {c.clip_id: _with_contacts(c, character) for c in clips}
    lifted = [_lift(parents[p.parent_id], p, character, cfg) for p in plans]
    motions = reach_targets(
        [g.frames for g in lifted],
        [g.target for g in lifted],
        [g.weight for g in lifted],
        character,
        cfg.ik_iterations,
    )
    guesses = []
    for plan, motion, guess in zip(plans, motions, lifted, strict=True):
        parent = parents[plan.parent_id]
        guesses.append(
            MotionClip(
                clip_id=plan.variant_id,
                frames=motion,
                fps=parent.fps,
                terrain=guess.terrain,
                provenance=_provenance(parent.provenance, plan),
                weight=parent.weight,
            )
        )
    out = []
    for clip, report in optimize_motions(guesses, character, cfg.optimizer):
        contacts = label_contacts(character, clip.frames, clip.terrain)
        clip = replace(clip, frames=replace(clip.frames, contacts=contacts))
        clip.metrics["level_change"] = level_change(clip, character)
        clip.metrics["largest_jerk"] = largest_jerk(clip, character)
        out.append((clip, report))
    return out


def _with_contacts(clip: MotionClip, character: Character) -> MotionClip:
    """The clip, labelled by distance if it carries no labels at all."""
    if bool((clip.frames.contacts > 0).any()):
        return clip
    contacts = label_contacts(character, clip.frames, clip.terrain)
    return replace(clip, frames=replace(clip.frames, contacts=contacts))


def _provenance(parent: Provenance, plan: VariantPlan) -> Provenance:
    """The parent's provenance with the plan as the maker."""
    return replace(
        parent,
        parents=(plan.parent_id,),
        seeds={**parent.seeds, "variant": plan.seed},
        maker="augment",
        notes=plan.to_json(),
    )


def _lift(
    parent: MotionClip, plan: VariantPlan, character: Character, cfg: AugmentConfig
) -> _Guess:
    """Moved and lifted frames, targets, weights and terrain of one plan."""
    frames = parent.frames.time(plan.start, plan.start + plan.num_frames)
    old = parent.terrain.mirrored() if plan.mirror else parent.terrain
    new = planned_terrain(parent, plan, cfg.padding_m)
    unmirrored = replace(plan, mirror=False)
    source, base = frames, parent
    if plan.mirror:
        source = mirror_frames(character, frames)
        flip = parent.frames.root_pos * torch.tensor([1.0, -1.0, 1.0])
        base = replace(parent, frames=replace(parent.frames, root_pos=flip))

    def move_xy(xy: Tensor) -> Tensor:
        return planned_xy(base, unmirrored, xy)

    root = torch.cat([move_xy(source.root_pos[:, :2]), source.root_pos[:, 2:]], dim=-1)
    turn = rot.yaw_quat(torch.tensor(plan.heading)).expand_as(source.root_rot)
    moved = replace(
        source, root_pos=root, root_rot=rot.quat_positive(rot.quat_mul(turn, source.root_rot))
    )
    sigma = cfg.smooth_s * parent.fps
    lifted, target, weight = lift_targets(
        source, moved, old, new, move_xy, character, cfg.clearance_m, sigma, parent.fps
    )
    return _Guess(frames=lifted, target=target, weight=weight, terrain=new)
