"""Terrain variants of a small flat sample, so that it crosses level changes."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from parc_ray.character.character import Character
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.resample import unroll_loop
from parc_ray.synthesis.augmentation import make_variants
from parc_ray.synthesis.config import AugmentConfig, ClassRecipe, OptimizerConfig, check_field
from parc_ray.synthesis.levels import largest_jerk, level_change
from parc_ray.synthesis.variant_plan import VariantPlan, plan_variants

_LOG = logging.getLogger(__name__)


def _sample_augment() -> AugmentConfig:
    """Boxes of 0.1 to 0.3 m under the path; gentle turns and scales; a short optimisation."""
    boxes = ClassRecipe(
        kind="boxes",
        max_length_s=4.0,
        boxes=(1, 3),
        box_height_m=0.3,
        min_box_height_m=0.1,
        box_angle_deg=0.0,
        heading_deg=30.0,
        max_path_step_m=0.3,
        min_level_change_m=0.1,
    )
    return AugmentConfig(
        recipes={},
        flat_recipe=boxes,
        terrain_recipe=ClassRecipe(kind="none"),
        optimizer=OptimizerConfig(
            w_penetration=300.0,
            w_contact=300.0,
            w_sliding=30.0,
            w_body_constraint=0.0,
            w_jerk=30.0,
            jerk_limit_m_s3=200.0,
            w_joint_limit=10.0,
            iterations=300,
            lr=0.004,
            lr_final=0.0001,
            tolerance=0.01,
            patience=50,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """How the sample is enriched."""

    names: tuple[str, ...] = ("walk", "run", "jump")
    """Clips whose class is, or whose id contains as a word, one of these get variants."""
    unroll_s: float = 3.0
    """Loops among them are unrolled to this length or more, s."""
    share: float = 0.55
    """Variants are added until this share of all seconds crosses ``threshold_m``."""
    threshold_m: float = 0.1
    """Level change that counts, m."""
    min_variants: int = 4
    """Variants per clip at least."""
    max_variants: int = 24
    """Variants per clip at most."""
    max_jerk_m_s3: float = 6000.0
    """Variants with a larger jerk, and above 1.5 times their parent's, are dropped, m/s^3."""
    max_penetration: float = 3.0
    """Variants with more penetration (TPL) after the optimisation are dropped, m points."""
    augment: AugmentConfig = field(default_factory=_sample_augment)
    """How one variant is made."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        check_field(len(self.names) > 0, self, "names", "one name or more")
        check_field(self.unroll_s > 0, self, "unroll_s", "> 0 s")
        check_field(0 <= self.share < 1, self, "share", "0 <= share < 1")
        check_field(
            0 <= self.min_variants <= self.max_variants, self, "min_variants", "0..max_variants"
        )


def is_varied(clip: MotionClip, names: Sequence[str]) -> bool:
    """Whether the class of ``clip``, or a word of its id, is among ``names``."""
    words = clip.clip_id.lower().replace("-", "_").split("_")
    return any(n == clip.provenance.class_name or n in words for n in names)


def make_sample_variants(
    clips: Sequence[MotionClip],
    character: Character,
    seed: int,
    cfg: SampleConfig | None = None,
) -> list[MotionClip]:
    """Variants with boxes under the path until enough of the sample crosses level changes.

    Args:
        clips: flat clips.
        character: the character.
        seed: of the plans.
        cfg: settings; None takes the defaults.

    Returns:
        The given clips, those that get variants unrolled, followed by the variants.
    """
    cfg = cfg or SampleConfig()
    whole = [_unrolled(c, character, cfg) if is_varied(c, cfg.names) else c for c in clips]
    parents = [c for c in whole if is_varied(c, cfg.names)]
    total = sum(c.duration_s for c in whole)
    crossing = 0.0
    variants: list[MotionClip] = []
    per_round = sum(min(c.duration_s, 4.0) for c in parents)
    count = 0
    while parents and per_round > 0 and count < cfg.max_variants:
        missing = cfg.share * total - crossing
        if missing <= 0 and count >= cfg.min_variants:
            break
        # A crossing second adds to both sides of the share.
        rounds = math.ceil(missing / (1.0 - cfg.share) / per_round - 1e-9)
        more = min(max(rounds, cfg.min_variants - count, 1), cfg.max_variants - count)
        plans = plan_variants(parents, cfg.augment, seed, count + more)
        fresh = [p for p in plans if int(p.variant_id[-3:]) >= count]
        made = _good_variants(parents, fresh, character, cfg)
        variants += made
        count += more
        total += sum(c.duration_s for c in made)
        crossing += sum(
            c.duration_s for c in made if level_change(c, character) >= cfg.threshold_m - 1e-4
        )
    share = crossing / total if total > 0 else 0.0
    _LOG.info(
        "%d variants; %.0f %% of %.1f s cross a level change", len(variants), 100 * share, total
    )
    return [*whole, *variants]


def _good_variants(
    parents: Sequence[MotionClip],
    plans: Sequence[VariantPlan],
    character: Character,
    cfg: SampleConfig,
) -> list[MotionClip]:
    """Make the variants and drop those that jerk or stay in the ground."""
    usual = {c.clip_id: 1.5 * largest_jerk(c, character) for c in parents}
    good = []
    for clip, report in make_variants(parents, plans, character, cfg.augment):
        jerk, tpl = clip.metrics["largest_jerk"], report.after["penetration"]
        most = max(cfg.max_jerk_m_s3, usual[clip.provenance.parents[0]])
        if jerk <= most and tpl <= cfg.max_penetration:
            good.append(clip)
        else:
            _LOG.info("%s dropped: jerk %.0f m/s^3, TPL %.2f", clip.clip_id, jerk, tpl)
    return good


def _unrolled(clip: MotionClip, character: Character, cfg: SampleConfig) -> MotionClip:
    """The clip, unrolled if it is a loop."""
    if clip.loop != "wrap":
        return clip
    return unroll_loop(character.skeleton, clip, cfg.unroll_s)
