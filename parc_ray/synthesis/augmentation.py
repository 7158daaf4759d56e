"""Spatial variants of the initial clips, adapted by the kinematic optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.contacts import label_contacts, with_contacts
from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.mirror import mirror_frames
from parc_ray.synthesis.config import AugmentConfig
from parc_ray.synthesis.kinopt import MotionReport, optimize_motions
from parc_ray.synthesis.levels import level_change
from parc_ray.synthesis.lift import lift_targets, reach_targets
from parc_ray.synthesis.variant_plan import (
    VariantPlan,
    plan_again,
    planned_terrain,
    planned_xy,
)
from parc_ray.synthesis.variant_quality import (
    Source,
    depth_of,
    faults,
    figures_of,
    source_of,
)
from parc_ray.terrain.heightfield import Heightfield


@dataclass(frozen=True, kw_only=True, eq=False)
class _Guess:
    """A lifted motion, where its hands and feet should go (with weights), and its terrain.

    ``moved`` is the motion before it was lifted.
    """

    moved: MotionFrames
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
        For each plan the variant and the report of its optimisation. Its metrics are ``kin_*``,
        ``level_change`` (m), ``depth_mean_before_m`` (of the motion merely put on the new ground)
        and those of ``figures_of``.
    """
    if not plans:
        return []
    parents = {c.clip_id: with_contacts(c, character) for c in clips}
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
    sources: dict[tuple[str, bool], Source] = {}
    made = optimize_motions(guesses, character, cfg.optimizer)
    for plan, guess, (clip, report) in zip(plans, lifted, made, strict=True):
        key = (plan.parent_id, plan.mirror)
        if key not in sources:
            sources[key] = source_of(parents[plan.parent_id], character, plan.mirror)
        wanted = clip.frames.contacts
        contacts = label_contacts(character, clip.frames, clip.terrain)
        clip = replace(clip, frames=replace(clip.frames, contacts=contacts))
        clip.metrics["level_change"] = level_change(clip, character)
        before = depth_of(character, guess.moved, clip.terrain)
        clip.metrics["depth_mean_before_m"] = before.deepest_mean
        clip.metrics.update(figures_of(clip, wanted, character, sources[key]))
        out.append((clip, report))
    return out


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a variant.

    Attributes:
        plan: what was tried.
        metrics: of the variant that came out.
        faults: why it is not kept; empty for a good one.
    """

    plan: VariantPlan
    metrics: dict[str, float]
    faults: list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class VariantOutcome:
    """What became of a planned variant: its tries, and the clip unless all of them failed."""

    attempts: list[Attempt]
    clip: MotionClip | None


def make_good_variants(
    clips: Sequence[MotionClip],
    plans: Sequence[VariantPlan],
    character: Character,
    cfg: AugmentConfig,
) -> list[VariantOutcome]:
    """Carry plans out; what fails ``cfg.quality`` is planned anew and made again, then dropped.

    Args:
        clips: the parents.
        plans: from ``plan_variants``.
        character: the character.
        cfg: settings.

    Returns:
        One outcome per plan, in order; it depends on that plan alone.
    """
    parents = {clip.clip_id: clip for clip in clips}
    tries: list[list[Attempt]] = [[] for _ in plans]
    good: dict[int, MotionClip] = {}
    todo = dict(enumerate(plans))
    for attempt in range(cfg.quality.attempts):
        made = make_variants(clips, list(todo.values()), character, cfg)
        for (k, plan), (clip, _) in zip(todo.items(), made, strict=True):
            found = faults(clip.metrics, cfg.quality)
            tries[k].append(Attempt(plan=plan, metrics=dict(clip.metrics), faults=found))
            if not found:
                good[k] = clip
        todo = {
            k: plan_again(parents[plans[k].parent_id], plans[k], cfg, attempt + 1)
            for k in todo
            if k not in good
        }
        if not todo:
            break
    return [VariantOutcome(attempts=t, clip=good.get(k)) for k, t in enumerate(tries)]


def _provenance(parent: Provenance, plan: VariantPlan) -> Provenance:
    """The parent's provenance with the plan as the maker."""
    return replace(
        parent,
        parents=(plan.parent_id,),
        seeds={**parent.seeds, "variant": plan.seed},
        maker="augment",
        notes=plan.to_json(),
    )


def place_motion(parent: MotionClip, plan: VariantPlan, character: Character) -> MotionFrames:
    """The planned piece of the parent, mirrored, turned and stretched, but not adapted."""
    return _moved(parent, plan, character)[1]


def _moved(
    parent: MotionClip, plan: VariantPlan, character: Character
) -> tuple[MotionFrames, MotionFrames, Callable[[Tensor], Tensor]]:
    """The (mirrored) piece of the parent, the same moved, and where the move takes points."""
    source, base = parent.frames.time(plan.start, plan.start + plan.num_frames), parent
    if plan.mirror:
        source = mirror_frames(character, source)
        flip = parent.frames.root_pos * torch.tensor([1.0, -1.0, 1.0])
        base = replace(parent, frames=replace(parent.frames, root_pos=flip))
    unmirrored = replace(plan, mirror=False)

    def move_xy(xy: Tensor) -> Tensor:
        return planned_xy(base, unmirrored, xy)

    root = torch.cat([move_xy(source.root_pos[:, :2]), source.root_pos[:, 2:]], dim=-1)
    turn = rot.yaw_quat(torch.tensor(plan.heading)).expand_as(source.root_rot)
    root_rot = rot.quat_positive(rot.quat_mul(turn, source.root_rot))
    return source, replace(source, root_pos=root, root_rot=root_rot), move_xy


def _lift(
    parent: MotionClip, plan: VariantPlan, character: Character, cfg: AugmentConfig
) -> _Guess:
    """Moved and lifted frames, targets, weights and terrain of one plan."""
    source, moved, move_xy = _moved(parent, plan, character)
    old = parent.terrain.mirrored() if plan.mirror else parent.terrain
    new = planned_terrain(parent, plan, cfg.padding_m)
    sigma = cfg.smooth_s * parent.fps
    lifted, target, weight = lift_targets(
        source, moved, old, new, move_xy, character, cfg.clearance_m, sigma, parent.fps
    )
    return _Guess(moved=moved, frames=lifted, target=target, weight=weight, terrain=new)
