from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.motion.clip import Provenance, validate_clip
from parc_ray.synthesis.assemble import candidate_clip, finish_clips
from parc_ray.synthesis.config import (
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
from tests.synthesis.helpers import Glider


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
