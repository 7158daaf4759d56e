from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.motion.clip import validate_clip
from parc_ray.motion.mirror import mirror_clip
from parc_ray.synthesis.augmentation import make_variants
from parc_ray.synthesis.config import AugmentConfig, ClassRecipe, OptimizerConfig
from parc_ray.synthesis.levels import largest_jerk, level_change, seconds_with_level_change
from parc_ray.synthesis.lift import body_lift, root_lift, runs
from parc_ray.synthesis.sample_variants import SampleConfig, make_sample_variants
from parc_ray.synthesis.variant_plan import (
    VariantPlan,
    path_levels,
    plan_again,
    plan_variants,
    planned_terrain,
    planned_xy,
    recipe_for,
)
from tests.synthesis.helpers import walk_clip

STILL = ClassRecipe(kind="none", heading_deg=0.0, xy_scale=(1.0, 1.0), mirror_share=0.0)


@pytest.fixture(scope="module")
def walk(humanoid):
    return walk_clip(humanoid)


def stepped(clip, height=0.2):
    hf = clip.terrain
    heights = torch.where(hf.cell_centers()[..., 0] > 1.5, height, 0.0)
    return replace(clip, clip_id="stepped", terrain=replace(hf, heights=heights))


def test_plans_do_not_depend_on_company(walk):
    cfg = AugmentConfig()
    other = replace(walk, clip_id="other")
    alone = plan_variants([walk], cfg, 3, 2)
    company = plan_variants([other, walk], cfg, 3, 4)
    assert [p for p in company if p.parent_id == walk.clip_id][:2] == alone
    assert len({p.seed for p in company}) == 8
    assert plan_variants([walk], cfg, 4, 2) != alone


def test_plans_respect_their_recipe(walk):
    recipe = ClassRecipe(
        kind="boxes",
        max_length_s=2.0,
        boxes=(2, 3),
        min_box_height_m=0.1,
        max_path_step_m=0.3,
        min_level_change_m=0.15,
    )
    cfg = AugmentConfig(recipes={"walk": recipe})
    for plan in plan_variants([walk], cfg, 0, 12):
        assert plan.num_frames == 61
        assert 0 <= plan.start <= walk.num_frames - 61
        assert 2 <= len(plan.boxes) <= 3
        assert all(0.1 <= abs(b.height) <= 0.3 for b in plan.boxes)
        assert all(0.8 <= b.half_x <= 1.6 for b in plan.boxes)
        terrain = planned_terrain(walk, plan, cfg.padding_m)
        part = walk.frames.time(plan.start, plan.start + 61)
        root = part.root_pos[:, :2]
        standing = (part.contacts > 0.5).any(-1)
        change, step = path_levels(terrain, planned_xy(walk, plan, root), standing)
        assert change == pytest.approx(plan.level_change)
        assert change >= 0.15
        assert step <= 0.3 + 1e-6
        xy = planned_xy(walk, plan, root)
        assert terrain.contains(xy).all()


def test_height_scale_avoids_the_bad_range_and_keeps_the_ground(walk):
    clip = stepped(walk)
    recipe = ClassRecipe(height_scale=(0.5, 1.5), bad_height_scale=(0.7, 1.3), heading_deg=0.0)
    cfg = AugmentConfig(recipes={"walk": recipe})
    plans = plan_variants([clip], cfg, 0, 20)
    assert all(not 0.7 <= p.height_scale <= 1.3 for p in plans)
    terrain = planned_terrain(clip, plans[0], 1.0)
    assert float(terrain.heights.max()) == pytest.approx(0.2 * plans[0].height_scale, rel=1e-5)
    assert float(terrain.heights.min()) == 0.0


def test_extents_stretch_ground_and_motion_together(walk):
    clip = stepped(walk)
    recipe = replace(STILL, extent_scale=(1.3, 1.3))
    cfg = AugmentConfig(recipes={"walk": recipe})
    (plan,) = plan_variants([clip], cfg, 0, 1)
    terrain = planned_terrain(clip, plan, 1.0)
    root = clip.frames.root_pos[:, :2]
    moved = planned_xy(clip, plan, root)
    pivot = root[len(root) // 2]
    assert torch.allclose(moved - pivot, 1.3 * (root - pivot), atol=1e-5)
    # The step lies where it lay for the motion, to within half a cell of both grids.
    edge = 1.6 - 0.2
    away = (root[:, 0] - edge).abs() > 0.2 * (1 + 1 / 1.3)
    assert away.any()
    assert torch.equal(terrain.height_at(moved)[away], clip.terrain.height_at(root)[away])


@pytest.mark.parametrize("cells", [2, -2])
def test_blocks_grow_only_away_from_the_path(walk, cells):
    hf = walk.terrain
    side = hf.cell_centers()[..., 1] > 0.9
    clip = replace(walk, terrain=replace(hf, heights=torch.where(side, 0.5, 0.0)))
    recipe = replace(STILL, grow_cells=(cells, cells))
    (plan,) = plan_variants([clip], AugmentConfig(recipes={"walk": recipe}), 0, 1)
    same = planned_terrain(clip, replace(plan, grow=0), 2.0)
    grown = planned_terrain(clip, plan, 2.0)
    away = torch.cdist(same.cell_centers().flatten(0, 1), clip.frames.root_pos[:, :2]).amin(1)
    near = (away < 1.0).view(same.shape)
    assert torch.equal(grown.heights[near], same.heights[near])
    change = grown.heights[~near] - same.heights[~near]
    assert bool((change * cells >= 0).all())
    if cells < 0:  # the block begins beyond the clear strip and gives way
        assert float(change.min()) == -0.5


def test_later_attempts_stay_nearer_to_the_parent(walk):
    clip = stepped(walk)
    recipe = ClassRecipe(height_scale=(0.5, 1.5), extent_scale=(0.8, 1.2), heading_deg=40.0)
    cfg = AugmentConfig(recipes={"walk": recipe})
    plans = plan_variants([clip], cfg, 0, 40)
    for attempt in (1, 3):
        again = [plan_again(clip, plan, cfg, attempt) for plan in plans]
        share = 0.7**attempt
        changes = [abs(p.height_scale - 1) for p in again]
        assert 0.9 * 0.5 * share < max(changes) <= 0.5 * share
        assert max(abs(p.extent_x - 1) for p in again) <= 0.2 * share
        assert max(abs(math.degrees(p.heading)) for p in again) <= 40 * share
        assert all(p.attempt == attempt for p in again)
        assert {p.seed for p in again}.isdisjoint(p.seed for p in plans)


def test_a_plan_is_read_back_from_its_notes(walk):
    for plan in plan_variants([walk], AugmentConfig(), 0, 3):
        assert VariantPlan.from_json(plan.to_json()) == plan


def test_skills_that_importers_put_into_a_broader_class_keep_their_recipe(walk):
    cfg = AugmentConfig()
    named = replace(walk, clip_id="humanoid_mid_climb02")
    named = replace(named, provenance=replace(named.provenance, class_name="climb"))
    assert recipe_for(named, cfg) is cfg.recipes["mid_climb"]
    other = replace(named, clip_id="humanoid_climb00")
    assert recipe_for(other, cfg) is cfg.recipes["climb"]
    for name in ("climb", "vault", "jump", "platform", "stairs"):  # of the importers
        assert name in cfg.recipes


def test_recipe_by_class_and_by_terrain(walk):
    cfg = AugmentConfig()
    assert recipe_for(walk, cfg) is cfg.flat_recipe
    assert recipe_for(stepped(walk), cfg) is cfg.terrain_recipe
    climbing = replace(walk, provenance=replace(walk.provenance, class_name="climbing"))
    assert recipe_for(climbing, cfg) is cfg.recipes["climbing"]


def test_mirrored_plan_is_the_mirror_image(humanoid, walk):
    cfg = AugmentConfig(
        recipes={"walk": replace(STILL, mirror_share=1.0)},
        ik_iterations=0,
        optimizer=OptimizerConfig(iterations=0),
    )
    clip = stepped(walk)
    ((made, _),) = make_variants([clip], plan_variants([clip], cfg, 0, 1), humanoid, cfg)
    expected = mirror_clip(humanoid, clip)
    assert torch.allclose(made.frames.root_pos, expected.frames.root_pos, atol=1e-5)
    assert torch.allclose(made.frames.dof, expected.frames.dof, atol=1e-5)
    xy = made.frames.root_pos[:, :2]
    assert torch.equal(made.terrain.height_at(xy), expected.terrain.height_at(xy))


def test_unchanged_ground_gives_the_parent_back(humanoid, walk):
    cfg = AugmentConfig(recipes={"walk": STILL}, optimizer=OptimizerConfig(iterations=0))
    ((made, _),) = make_variants([walk], plan_variants([walk], cfg, 0, 1), humanoid, cfg)
    assert torch.allclose(made.frames.root_pos, walk.frames.root_pos, atol=5e-3)
    assert torch.allclose(made.frames.dof, walk.frames.dof, atol=2e-2)


def test_lift_of_a_foot_over_a_step():
    assert runs(np.array([0, 1, 1, 0, 1], dtype=bool)) == [(1, 3), (4, 5)]
    active = np.zeros(40, dtype=bool)
    active[:12] = active[28:] = True
    rise = np.where(np.arange(40) >= 20, 0.2, 0.0)[:, None].repeat(4, 1)
    height = np.where(active, 0.0, 0.05)[:, None].repeat(4, 1)
    lift, stance = body_lift(active, rise, height, 0.04)
    assert lift[:10] == pytest.approx(0.0, abs=1e-5)
    assert lift[31:] == pytest.approx(0.2, abs=1e-6)
    assert stance[20] == pytest.approx(0.2 * 9 / 17)
    assert np.abs(np.diff(lift)).max() < 0.07
    # Over the edge the foot is above the new ground even though it has not landed.
    assert (lift[20:] + height[20:, 0]).min() > 0.19
    root = root_lift(np.stack([stance, 0 * stance], 1), np.stack([active, ~active], 1), 3.0)
    assert root.min() >= 0
    assert root.max() <= 0.2
    assert np.abs(np.diff(root)).max() < 0.03


def test_level_change_and_jerk(humanoid, walk):
    assert level_change(walk, humanoid) == 0.0
    lifted = stepped(walk)
    raised = walk.frames.clone()
    raised.root_pos[:, 2] += torch.where(raised.root_pos[:, 0] > 1.5, 0.2, 0.0)
    lifted = replace(lifted, frames=raised)
    assert level_change(lifted, humanoid) == pytest.approx(0.2)
    crossing, total = seconds_with_level_change([walk, lifted], humanoid)
    assert (crossing, total) == (pytest.approx(3.0), pytest.approx(6.0))
    # A jump of 0.2 m in one frame: third difference up to 0.4 m.
    assert largest_jerk(lifted, humanoid) == pytest.approx(0.4 * 27000, rel=0.1)
    assert largest_jerk(walk, humanoid) < 0.3 * largest_jerk(lifted, humanoid)


def test_sample_crosses_levels_for_half_of_its_seconds(humanoid, walk):
    cycle = replace(walk, clip_id="humanoid3d_run", frames=walk.frames.time(0, 31), loop="wrap")
    spin = replace(walk, clip_id="humanoid3d_spin")
    spin = replace(spin, provenance=replace(spin.provenance, class_name="spin"))
    cfg = SampleConfig()
    quick = replace(cfg.augment, optimizer=replace(cfg.augment.optimizer, iterations=120))
    cfg = replace(cfg, min_variants=2, augment=quick)
    out = make_sample_variants([walk, cycle, spin], humanoid, 0, cfg)
    assert [c.clip_id for c in out[:3]] == ["walk_0", "humanoid3d_run", "humanoid3d_spin"]
    assert out[1].duration_s >= 3.0
    assert out[1].loop == "clamp"
    crossing, total = seconds_with_level_change(out, humanoid)
    assert crossing / total >= 0.5
    variants = out[3:]
    assert {c.provenance.parents[0] for c in variants} == {"walk_0", "humanoid3d_run"}
    assert max(level_change(c, humanoid) for c in variants) >= 0.2
    parent_jerk = largest_jerk(walk, humanoid)
    for clip in variants:
        validate_clip(clip, humanoid)
        assert clip.provenance.maker == "augment"
        assert json.loads(clip.provenance.notes)["parent_id"] == clip.provenance.parents[0]
        assert clip.metrics["kin_penetration_after"] < 0.5
        assert clip.metrics["kin_contact_after"] < 1.0
        assert clip.metrics["largest_jerk"] < max(6000.0, 1.5 * parent_jerk)
        feet = clip.frames.contacts[:, list(humanoid.feet)]
        assert 0.2 < float(feet.mean()) < 1.0
    assert len({c.clip_id for c in out}) == len(out)
    assert math.isclose(sum(c.duration_s for c in out), total)


def test_variants_are_reproducible(humanoid, walk):
    cfg = SampleConfig().augment
    cfg = replace(cfg, ik_iterations=5, optimizer=replace(cfg.optimizer, iterations=5))
    plans = plan_variants([walk], cfg, 1, 2)
    first, second = (make_variants([walk], plans, humanoid, cfg) for _ in range(2))
    for (a, ra), (b, rb) in zip(first, second, strict=True):
        assert torch.equal(a.frames.dof, b.frames.dof)
        assert torch.equal(a.frames.root_pos, b.frames.root_pos)
        assert torch.equal(a.terrain.heights, b.terrain.heights)
        assert ra == rb
