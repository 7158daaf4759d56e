from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance, validate_clip
from parc_ray.synthesis.assemble import candidate_clip, finish_clips, finish_long, optimize_chunks
from parc_ray.synthesis.config import (
    HesitationConfig,
    OptimizerConfig,
    PlannerConfig,
    RolloutConfig,
    SelectionConfig,
    SynthesisConfig,
)
from parc_ray.synthesis.planning import plan_on_terrain
from parc_ray.synthesis.rollout import generate_candidates
from parc_ray.synthesis.selection import select_candidates
from parc_ray.terrain.heightfield import Heightfield
from tests.synthesis.helpers import Glider, walk_clip


def test_terrain_to_finished_clip(humanoid):
    heights = torch.zeros(24, 24)
    heights[12:] = 0.2
    terrain = Heightfield(heights=heights, origin=torch.zeros(2))
    cfg = SynthesisConfig(
        planner=PlannerConfig(max_jump_xy_m=0.0, min_distance_m=6.0),
        rollout=RolloutConfig(candidates=2),
        selection=SelectionConfig(max_penetration=1e4, max_contact=1e4, max_score=1e4, top_k=1),
        optimizer=OptimizerConfig(iterations=20, lr=0.01, lr_final=0.001),
    )
    planned = plan_on_terrain(terrain, cfg.planner, 0)
    assert planned.path.points is not None
    path = planned.path.points
    candidates = generate_candidates(
        Glider(humanoid), [planned.terrain], [path], humanoid, cfg.rollout, 0
    )
    assert all(c.finished for c in candidates)
    chosen = select_candidates(candidates, [planned.terrain], humanoid, cfg.selection, 30.0)
    (k,) = chosen.kept
    clip = candidate_clip(
        candidates[k],
        chosen.verdicts[k],
        planned.terrain,
        path,
        "it01_000",
        30.0,
        Provenance(source="test", seeds={"plan": 0}),
        cfg.slice_padding_m,
    )
    validate_clip(clip, humanoid)
    assert clip.terrain.shape != planned.terrain.shape
    xy = clip.frames.root_pos[:, :2]
    assert torch.equal(clip.terrain.height_at(xy), planned.terrain.height_at(xy))
    (done,) = finish_clips([clip], humanoid, cfg)
    assert done.report.loss_after < done.report.loss_before
    assert done.clip.provenance.maker == "generate"
    assert done.clip.metrics["sel_tpl"] == pytest.approx(chosen.verdicts[k].tpl)
    assert done.clip.metrics["kin_penetration_after"] <= done.clip.metrics["kin_penetration_before"]
    assert done.clip.terrain.upper is not None
    assert set(done.clip.frames.contacts.unique().tolist()) <= {0.0, 1.0}
    assert done.mirrored is not None
    assert done.mirrored.path_nodes is not None
    assert torch.equal(done.mirrored.path_nodes[:, 1], -path[:, 1])
    assert finish_clips([clip], humanoid, replace(cfg, mirror=False))[0].mirrored is None


def test_a_long_clip_is_optimised_in_chunks_without_a_seam(humanoid):
    clip = walk_clip(humanoid, seconds=5.0)
    clip.frames.root_pos[:, 2] -= 0.05  # all soles in the ground
    cfg = OptimizerConfig(iterations=40, lr=0.01, lr_final=0.001)
    whole, _ = optimize_chunks(clip, humanoid, cfg, 1000, 40)
    parts, report = optimize_chunks(clip, humanoid, cfg, 60, 24)
    assert parts.num_frames == clip.num_frames
    assert parts.terrain is clip.terrain
    assert report.after["penetration"] < 0.5 * report.before["penetration"]
    # As near to the optimum of the whole as the source is far from it, or nearer; no jumps.
    moved = (whole.frames.root_pos - clip.frames.root_pos).norm(dim=-1).mean()
    apart = (whole.frames.root_pos - parts.frames.root_pos).norm(dim=-1)
    assert float(moved) > 0.02
    assert float(apart.mean()) < 0.3 * float(moved)
    shake, least = (
        (c.frames.root_pos - clip.frames.root_pos).diff(dim=0).norm(dim=-1).max()
        for c in (parts, whole)
    )
    assert float(shake) < 1.5 * float(least)
    norm = parts.frames.root_rot.norm(dim=-1)
    torch.testing.assert_close(norm, torch.ones_like(norm))
    with pytest.raises(InputError, match="overlap_frames"):
        optimize_chunks(clip, humanoid, cfg, 60, 31)


@pytest.mark.parametrize("frames", [2, 59, 60, 61, 96, 97, 132, 200])
def test_chunks_cover_every_frame_once_or_in_an_overlap(humanoid, frames):
    """With no steps nothing may change, whatever the length."""
    clip = walk_clip(humanoid, seconds=(frames - 1) / 30)
    assert clip.num_frames == frames
    cfg = SynthesisConfig(
        optimizer=OptimizerConfig(iterations=0),
        hesitation=HesitationConfig(enabled=False),
        mirror=False,
    )
    done = finish_long(clip, humanoid, cfg, 60, 24)
    assert done.mirrored is None
    for name in ("root_pos", "root_rot", "dof"):
        torch.testing.assert_close(getattr(done.clip.frames, name), getattr(clip.frames, name))
