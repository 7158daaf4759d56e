"""Augmentation of a character that has nothing of the humanoid."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.character.character import load_character
from parc_ray.motion.clip import validate_clip
from parc_ray.synthesis.augmentation import make_good_variants
from parc_ray.synthesis.config import AugmentConfig, ClassRecipe
from parc_ray.synthesis.variant_plan import VariantPlan, plan_variants
from parc_ray.synthesis.variant_quality import depth_of
from tests.waddler import WADDLER, waddle


@pytest.fixture(scope="module")
def waddler():
    return load_character(WADDLER)


def test_it_shares_no_count_and_no_order_with_the_humanoid(waddler, humanoid):
    a, b = waddler.skeleton, humanoid.skeleton
    assert a.num_bodies != b.num_bodies
    assert a.num_dofs != b.num_dofs
    names = list(a.body_names)
    assert names.index("left_sole") < names.index("chest")  # legs first, the humanoid's come last
    assert not waddler.hands


def test_its_walk_goes_over_boxes(waddler):
    clip = waddle(waddler, "waddle_0")
    validate_clip(clip, waddler)
    feet = clip.frames.contacts[:, list(waddler.feet)]
    assert 0.4 < float(feet.mean()) < 1.0
    boxes = ClassRecipe(
        kind="boxes",
        boxes=(1, 2),
        box_height_m=0.08,
        min_box_height_m=0.04,
        box_cells=(2.0, 4.0),
        min_level_change_m=0.04,
        max_path_step_m=0.08,
    )
    quick = replace(AugmentConfig().optimizer, iterations=100)
    cfg = AugmentConfig(recipes={"waddle": boxes}, optimizer=quick)
    plans = plan_variants([clip], cfg, 0, 3)
    made = make_good_variants([clip], plans, waddler, cfg)
    kept = [outcome.clip for outcome in made if outcome.clip is not None]
    assert len(kept) == 3
    for variant in kept:
        validate_clip(variant, waddler)
        depth = depth_of(waddler, variant.frames, variant.terrain)
        assert depth.deepest_mean < 0.005
        assert variant.metrics["depth_mean_m"] == pytest.approx(depth.deepest_mean)
        assert variant.metrics["limit_excess_deg"] <= 2.0
        plan = VariantPlan.from_json(variant.provenance.notes)
        assert plan.parent_id == clip.clip_id == variant.provenance.parents[0]
        assert plan.seed == variant.provenance.seeds["variant"]
        ground = variant.terrain.height_at(variant.frames.root_pos[:, :2])
        assert float(ground.max() - ground.min()) >= 0.04
        lower, upper = waddler.skeleton.dof_limits.T
        over = torch.maximum(variant.frames.dof - upper, lower - variant.frames.dof)
        assert float(over.max()) < 0.035
