from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from parc_ray.motion.frames import MotionFrames
from parc_ray.motion.mirror import mirror_frames
from parc_ray.synthesis.augmentation import make_good_variants
from parc_ray.synthesis.config import AugmentConfig, ClassRecipe, OptimizerConfig, VariantQuality
from parc_ray.synthesis.variant_plan import plan_again, plan_variants
from parc_ray.synthesis.variant_quality import (
    Source,
    contact_gap,
    depth_of,
    faults,
    figures_of,
    limit_excess,
    source_of,
)
from tests.synthesis.helpers import walk_clip

GOOD = {
    "depth_mean_m": 0.001,
    "depth_max_m": 0.01,
    "limit_excess_deg": 0.5,
    "largest_jerk": 5000.0,
    "parent_jerk": 4000.0,
    "contact_gap_m": 0.004,
}


@pytest.fixture(scope="module")
def walk(humanoid):
    return walk_clip(humanoid, seconds=2.0)


def lowered(frames: MotionFrames, by: float) -> MotionFrames:
    down = frames.root_pos - torch.tensor([0.0, 0.0, by])
    return replace(frames, root_pos=down)


def test_depth_of_a_sunken_walk_is_how_far_it_sank(humanoid, walk):
    depth = depth_of(humanoid, lowered(walk.frames, 0.03), walk.terrain)
    # The lowest sole of the walk is on the ground in every frame.
    assert depth.deepest_mean == pytest.approx(0.03, abs=1e-5)
    assert depth.deepest == pytest.approx(0.03, abs=1e-5)
    assert 0 < depth.point_mean < 0.03 / 10
    assert depth_of(humanoid, lowered(walk.frames, -0.01), walk.terrain).deepest < 1e-6


def test_contact_gap_of_a_raised_walk_is_how_far_it_rose(humanoid, walk):
    labels = torch.zeros_like(walk.frames.contacts)
    labels[:, list(humanoid.feet)] = 1.0
    still = replace(walk.frames, dof=torch.zeros_like(walk.frames.dof))
    still.root_pos[:, 2] = humanoid.stand_height + 0.05
    assert contact_gap(humanoid, still, walk.terrain, labels) == pytest.approx(0.05, abs=1e-4)
    assert contact_gap(humanoid, still, walk.terrain, 0 * labels) == 0.0


def test_limits_count_from_the_same_joint_of_the_parent(humanoid, walk):
    limits = humanoid.skeleton.dof_limits
    knee = humanoid.skeleton.dof_slices[humanoid.skeleton.body_index("left_shin")].start
    other = humanoid.skeleton.dof_slices[humanoid.skeleton.body_index("right_shin")].start
    frames = walk.frames.clone()
    frames.dof[3, knee] = limits[knee, 1] + 0.1
    excess = limit_excess(humanoid, frames.dof)
    assert float(excess[knee]) == pytest.approx(0.1, abs=1e-5)
    assert excess.count_nonzero() == limit_excess(humanoid, walk.frames.dof).count_nonzero() + 1
    parent = replace(walk, frames=frames)
    # The parent breaks its left knee; so may the variant, but its right one may not.
    worse = replace(walk, frames=frames.clone())
    worse.frames.dof[3, knee] += math.radians(1.0)
    source = source_of(parent, humanoid, mirror=False)
    wanted = walk.frames.contacts
    got = figures_of(worse, wanted, humanoid, source)["limit_excess_deg"]
    assert got == pytest.approx(1.0, abs=1e-3)
    mirrored = replace(walk, frames=mirror_frames(humanoid, frames))
    swapped = source_of(parent, humanoid, mirror=True)
    assert float(swapped.excess[other]) == pytest.approx(0.1, abs=1e-4)
    assert figures_of(mirrored, wanted, humanoid, swapped)["limit_excess_deg"] < 0.01
    assert figures_of(mirrored, wanted, humanoid, source)["limit_excess_deg"] > 5.0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("depth_mean_m", 0.0051, "mean penetration"),
        ("depth_max_m", 0.06, "penetration 60 mm"),
        ("limit_excess_deg", 2.1, "joint limits"),
        ("largest_jerk", 12000.0, "jerk"),
        ("contact_gap_m", 0.04, "contacts"),
        ("depth_mean_m", math.nan, "mean penetration"),
    ],
)
def test_each_figure_out_of_range_is_a_fault(name, value, words):
    cfg = VariantQuality()
    assert faults(GOOD, cfg) == []
    (found,) = faults({**GOOD, name: value}, cfg)
    assert words in found


def test_jerky_parents_may_have_jerky_variants():
    cfg = VariantQuality(max_jerk_m_s3=6000.0, jerk_factor=1.5)
    assert faults({**GOOD, "largest_jerk": 14000.0, "parent_jerk": 10000.0}, cfg) == []
    assert faults({**GOOD, "largest_jerk": 15100.0, "parent_jerk": 10000.0}, cfg)


def test_what_fails_is_made_again_with_other_seeds_and_then_dropped(humanoid, walk):
    quick = OptimizerConfig(iterations=5, w_body_constraint=0.0)
    boxes = ClassRecipe(kind="boxes", max_length_s=1.5, boxes=(1, 2))
    cfg = AugmentConfig(recipes={"walk": boxes}, ik_iterations=3, optimizer=quick)
    plans = plan_variants([walk], cfg, 0, 2)
    strict = replace(cfg, quality=VariantQuality(max_contact_gap_m=1e-9, attempts=2))
    for plan, outcome in zip(
        plans, make_good_variants([walk], plans, humanoid, strict), strict=True
    ):
        assert outcome.clip is None
        assert len(outcome.attempts) == 2
        assert [a.plan.attempt for a in outcome.attempts] == [0, 1]
        assert outcome.attempts[0].plan == plan
        assert outcome.attempts[1].plan == plan_again(walk, plan, cfg, 1)
        assert outcome.attempts[1].plan.seed != plan.seed
        assert outcome.attempts[1].plan.variant_id == plan.variant_id
        assert all("contacts" in "; ".join(a.faults) for a in outcome.attempts)
    loose = VariantQuality(
        max_mean_depth_m=9.0,
        max_depth_m=9.0,
        max_jerk_m_s3=1e9,
        max_contact_gap_m=9.0,
        max_limit_excess_deg=360.0,
    )
    both = make_good_variants([walk], plans, humanoid, replace(cfg, quality=loose))
    assert all(o.clip is not None and len(o.attempts) == 1 for o in both)
    # A variant does not depend on its company, to the rounding of padded batches.
    (alone,) = make_good_variants([walk], plans[1:], humanoid, replace(cfg, quality=loose))
    assert alone.clip is not None
    assert both[1].clip is not None
    assert torch.allclose(alone.clip.frames.dof, both[1].clip.frames.dof, atol=1e-4)
    assert alone.clip.provenance.seeds["variant"] == plans[1].seed


def test_source_is_measured_on_the_whole_parent(humanoid, walk):
    source = source_of(walk, humanoid, mirror=False)
    assert isinstance(source, Source)
    assert source.excess.shape == (humanoid.skeleton.num_dofs,)
    assert source.jerk > 0
