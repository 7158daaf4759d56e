from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.motion.frames import MotionFrames
from parc_ray.synthesis import kinopt_terms as terms
from parc_ray.synthesis.config import OptimizerConfig
from parc_ray.synthesis.kinopt import optimize_motions
from parc_ray.synthesis.kinopt_problem import TERM_NAMES
from parc_ray.terrain.heightfield import Heightfield
from tests.synthesis.helpers import walk_clip

FAST = OptimizerConfig(iterations=60, lr=0.01, lr_final=0.001, patience=20)


def raised(clip, height=0.1, name="raised"):
    """A step of ``height`` under the second half of the walk."""
    hf = clip.terrain
    x = hf.cell_centers()[..., 0]
    heights = torch.where(x > 1.5, height, 0.0)
    return replace(clip, clip_id=name, terrain=replace(hf, heights=heights))


def cut(clip, frames, name):
    return replace(clip, clip_id=name, frames=clip.frames.time(0, frames))


@pytest.fixture(scope="module")
def walk(humanoid):
    return walk_clip(humanoid, seconds=2.0)


def test_rotation_gap_is_the_geodesic_angle():
    generator = torch.Generator().manual_seed(0)
    a = rot.quat_normalize(torch.randn(200, 4, generator=generator, dtype=torch.float64))
    b = rot.quat_normalize(torch.randn(200, 4, generator=generator, dtype=torch.float64))
    assert torch.allclose(terms.rotation_gap(a, b), rot.quat_angle(a, b), atol=1e-3)
    tiny = rot.quat_mul(rot.quat_from_exp(torch.tensor([1e-3, 0, 0])), a[:1].float())
    assert float(terms.rotation_gap(tiny, -a[:1].float())) == pytest.approx(1e-3, rel=1e-2)
    same = a[:1].clone().requires_grad_()
    (grad,) = torch.autograd.grad(terms.rotation_gap(same, a[:1]).square().sum(), same)
    assert torch.isfinite(grad).all()


def test_terms_worked_by_hand():
    mask = torch.tensor([[True] * 6 + [False] * 2])
    pair = terms.window_mask(mask, 2)
    assert pair.sum() == 5
    pos = torch.zeros(1, 8, 1, 3)
    pos[0, 3:, 0, 0] = 0.1
    pos[0, 7] = 99.0  # padding
    # Third differences of a step of 0.1 in the 6 valid frames: 0.1, -0.2, 0.1 over a limit 0.03.
    assert float(terms.jerk_excess(pos, 0.03, mask)) == pytest.approx(0.07 + 0.17 + 0.07, abs=1e-5)
    step = pos[:, 1:] - pos[:, :-1]
    zero, still = torch.zeros_like(step), torch.zeros(step.shape[:-1])
    turn = still.clone()
    turn[0, 1, 0] = 0.2
    got = terms.smoothness(step, turn, zero, still, pair)
    assert float(got) == pytest.approx(0.1**2 + 0.2**2, abs=1e-6)
    weight = torch.full(still.shape, 0.5)
    slide = terms.sliding(step, turn, zero, still, weight, pair)
    expected = 0.5 * ((0.01 + 0.0009) ** 0.5 - 0.03 + (0.04 + 0.0009) ** 0.5 - 0.03)
    assert float(slide) == pytest.approx(expected, abs=1e-6)
    dof = torch.tensor([[[0.0, 2.0]] * 8])
    limits = torch.tensor([[-1.0, 1.0], [-1.0, 1.5]])
    assert float(terms.joint_limit(dof, limits, mask)) == pytest.approx(6 * 0.5)


def test_body_constraint_of_balls_and_soles():
    points = torch.zeros(2, 2, 3)
    points[0, 0, 2] = 0.10
    points[1, 0, 0] = 0.20
    points[1, 1, 0] = 0.05
    real = torch.tensor([[True, False], [True, True]])
    radius, round_ = torch.tensor([0.04, 0.13]), torch.tensor([True, False])
    got = terms.body_constraint(points, real, torch.zeros(2, 3), radius, round_)
    assert got.tolist() == pytest.approx([0.06, 0.07], abs=1e-6)


def test_planted_soles_move_as_their_slowest_point():
    first = torch.zeros(2, 3, 3)
    second = first.clone()
    second[0, :, 0] = torch.tensor([0.05, 0.03, 0.0])  # the third point is padding
    second[1, 0, 2] = 0.04  # rolls over its second point
    real = torch.tensor([[True, True, False], [True, True, True]])
    got = terms.planted_slide(first, second, real)
    assert got.tolist() == pytest.approx([(0.03**2 + 4e-6) ** 0.5 - 0.002, 0.0], abs=1e-6)


def test_penetration_falls_and_the_report_is_true(humanoid, walk):
    clip = raised(walk)
    ((after, report),) = optimize_motions([clip], humanoid, FAST)
    assert set(report.before) == set(TERM_NAMES)
    assert report.before["penetration"] > 5.0
    assert report.after["penetration"] < 0.1 * report.before["penetration"]
    assert report.loss_after < 0.2 * report.loss_before
    assert after.metrics["kin_penetration_after"] == report.after["penetration"]
    assert torch.equal(after.frames.contacts, clip.frames.contacts)
    assert torch.allclose(after.frames.root_rot.norm(dim=-1), torch.ones(clip.num_frames))
    again = optimize_motions([after], humanoid, replace(FAST, iterations=0))[0][1]
    assert again.before["penetration"] == pytest.approx(report.after["penetration"], rel=1e-3)


def test_clean_motion_is_hardly_moved(humanoid, walk):
    gentle = replace(FAST, w_body_constraint=0.0, w_jerk=0.0)
    ((after, report),) = optimize_motions([walk], humanoid, gentle)
    assert report.loss_after <= report.loss_before
    assert float((after.frames.root_pos - walk.frames.root_pos).norm(dim=-1).max()) < 0.02


def test_padding_and_company_change_nothing(humanoid, walk):
    long, short = raised(walk), raised(cut(walk, 25, "c"), 0.05, "short")
    short = replace(short, terrain=replace(short.terrain, heights=short.terrain.heights + 0.02))
    cfg = replace(FAST, iterations=15)
    alone = optimize_motions([short], humanoid, cfg)[0]
    company = optimize_motions([long, short], humanoid, cfg)[1]
    assert company[1].clip_id == "short"
    assert company[1].loss_after == pytest.approx(alone[1].loss_after, rel=1e-3)
    gap = (company[0].frames.root_pos - alone[0].frames.root_pos).abs().max()
    assert float(gap) < 1e-3
    split = optimize_motions([long, short], humanoid, replace(cfg, batch_frames=1))[1]
    assert torch.equal(split[0].frames.dof, alone[0].frames.dof)


def test_converged_motions_leave_and_the_others_go_on(humanoid, walk):
    clean, bad = cut(walk, 25, "clean"), raised(walk)
    cfg = replace(FAST, w_body_constraint=0.0, w_jerk=0.0, tolerance=0.5, patience=5, iterations=80)
    (_, first), (_, second) = optimize_motions([clean, bad], humanoid, cfg)
    assert first.converged
    assert first.iterations <= second.iterations
    assert first.iterations < 80
    assert second.after["penetration"] < 0.5 * second.before["penetration"]


def test_frames_beyond_pi_heading_are_no_trouble(humanoid, walk):
    turn = rot.yaw_quat(torch.tensor(3.14159))
    f = walk.frames
    turned = MotionFrames(
        root_pos=rot.quat_rotate(turn.expand(walk.num_frames, 4), f.root_pos),
        root_rot=rot.quat_positive(rot.quat_mul(turn.expand_as(f.root_rot), f.root_rot)),
        dof=f.dof,
        contacts=f.contacts,
    )
    terrain = Heightfield.flat((24, 24), height=0.02, origin=(-5.0, -4.6))
    clip = replace(walk, frames=turned, terrain=terrain)
    ((after, report),) = optimize_motions([clip], humanoid, replace(FAST, iterations=30))
    assert report.after["penetration"] < 0.5 * report.before["penetration"]
    step = terms.rotation_gap(after.frames.root_rot[1:], after.frames.root_rot[:-1])
    assert float(step.max()) < 0.2


def test_joint_limits_pull_back(humanoid, walk):
    frames = walk.frames.clone()
    hinge = humanoid.skeleton.dof_slices[humanoid.skeleton.body_index("right_shin")].start
    frames.dof[:, hinge] = -0.3
    clip = replace(walk, frames=frames)
    off = dict.fromkeys(("w_penetration", "w_contact", "w_body_constraint", "w_jerk"), 0.0)
    cfg = replace(FAST, w_joint_limit=100.0, **off)
    ((after, report),) = optimize_motions([clip], humanoid, cfg)
    assert report.after["joint_limit"] < 0.2 * report.before["joint_limit"]
    assert float(after.frames.dof[:, hinge].mean()) > -0.1
