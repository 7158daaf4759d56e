"""Descent: gradients, faults, knots, planted feet, memory and devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.contacts import body_ground_distance
from parc_ray.motion.frames import MotionFrames
from parc_ray.synthesis import kinopt
from parc_ray.synthesis.config import OptimizerConfig, own_optimizer
from parc_ray.synthesis.kinopt import optimize_motions
from parc_ray.synthesis.kinopt_problem import Body, Problem, evaluate_terms, total_loss
from parc_ray.synthesis.kinopt_steps import Descent
from tests.synthesis.helpers import walk_clip

EVERY_TERM = OptimizerConfig(w_joint_limit=10.0, w_foot_slide=300.0, w_foot_swing=100.0)


@pytest.fixture(scope="module")
def walk(humanoid):
    return walk_clip(humanoid, seconds=1.0)


@pytest.fixture(scope="module")
def raised(walk):
    hf = walk.terrain
    heights = torch.where(hf.cell_centers()[..., 0] > 0.7, 0.1, 0.0)
    return replace(walk, clip_id="raised", terrain=replace(hf, heights=heights))


def test_gradient_of_all_terms_equals_finite_differences(humanoid, raised):
    f = raised.frames
    double = MotionFrames(
        root_pos=f.root_pos.double(),
        root_rot=f.root_rot.double(),
        dof=f.dof.double(),
        contacts=f.contacts,
    )
    hf = raised.terrain
    terrain = replace(hf, heights=hf.heights.double(), origin=hf.origin.double())
    clip = replace(raised, frames=double, terrain=terrain)
    body = Body.of(humanoid, torch.device("cpu"), torch.float64)
    problem = Problem.build([clip], body, EVERY_TERM, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    start = problem.start()
    x = start + 0.02 * torch.randn(start.shape, generator=generator, dtype=torch.float64)

    def loss(at):
        return total_loss(evaluate_terms(problem, body, at, EVERY_TERM), EVERY_TERM).sum()

    values = evaluate_terms(problem, body, x, EVERY_TERM)
    assert all(float(v) > 0 for k, v in values.items() if k != "sliding"), values
    x.requires_grad_()
    (grad,) = torch.autograd.grad(loss(x), x)
    good = 0
    for _ in range(10):
        way = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            numeric = float(loss(x + 1e-8 * way) - loss(x - 1e-8 * way)) / 2e-8
        exact = float((grad * way).sum())
        good += abs(numeric - exact) < 1e-3 * (abs(exact) + 1)
    assert good >= 9  # a step across a tie is possible


def test_a_motion_that_is_not_finite_stops_and_its_company_goes_on(humanoid, walk, raised, caplog):
    frames = walk.frames.clone()
    frames.root_pos[7, 2] = float("nan")
    broken = replace(walk, clip_id="broken", frames=frames)
    cfg = replace(EVERY_TERM, iterations=12, lr=0.005, lr_final=0.005)
    alone = optimize_motions([raised], humanoid, cfg)[0][1]
    (kept, bad), (_, good) = optimize_motions([broken, raised], humanoid, cfg)
    assert bad.nonfinite > 0
    assert bad.iterations == 0
    assert kept.metrics["kin_nonfinite"] == bad.nonfinite
    assert torch.equal(kept.frames.dof, frames.dof)
    assert "broken" in caplog.text
    assert good.nonfinite == 0
    assert good.loss_after == pytest.approx(alone.loss_after, rel=1e-3)


def test_a_motion_that_breaks_on_the_way_keeps_its_last_good_state(humanoid, raised):
    cfg = replace(EVERY_TERM, iterations=9, patience=100)
    body = Body.of(humanoid, torch.device("cpu"))
    problem = Problem.build([raised], body, cfg, torch.device("cpu"))
    descent = Descent(problem, body, problem.start(), cfg)
    update, seen = descent._update, []

    def breaks_at_five(grad, step):
        seen.append((descent.x.clone(), float(descent.good_loss[0])))
        update(grad, step)
        if step == 5:
            descent.x[0, 3, 1] = float("inf")

    descent._update = breaks_at_five
    best = descent.run()
    assert int(best.steps[0]) == 6
    assert int(best.nonfinite[0]) > 0
    assert not bool(best.converged[0])
    x, loss = min(seen[-1:] + seen[:1], key=lambda s: s[1])
    assert loss < seen[0][1]
    assert torch.equal(best.x, x)
    assert float(best.loss[0]) == loss


def test_knots_get_further_in_as_many_steps(humanoid, raised):
    cfg = OptimizerConfig(iterations=40, lr=0.008, lr_final=0.0005)
    plain = optimize_motions([raised], humanoid, cfg)[0][1]
    knots = optimize_motions([raised], humanoid, replace(cfg, knot_frames=8))[0][1]
    assert knots.loss_after < 0.9 * plain.loss_after


def test_planted_feet_stop_sliding_at_no_cost_to_the_rest(humanoid, raised):
    before = clip_metrics(raised, humanoid, "paper")
    ((after, report),) = optimize_motions([raised], humanoid, own_optimizer(iterations=80))
    now = clip_metrics(after, humanoid, "paper")
    without = replace(own_optimizer(iterations=80), w_foot_slide=0.0)
    ((other, _),) = optimize_motions([raised], humanoid, without)
    plain = clip_metrics(other, humanoid, "paper")
    assert before["foot_slide_mps"] > 0.3
    assert now["foot_slide_mps"] < 0.2 * before["foot_slide_mps"]
    assert plain["foot_slide_mps"] > 2 * now["foot_slide_mps"]
    assert now["tpl"] < 0.2 * before["tpl"]
    assert now["hjf_percent"] <= before["hjf_percent"]
    assert report.after["foot_slide"] < 0.2 * report.before["foot_slide"]
    assert after.metrics["kin_foot_slide_before"] == report.before["foot_slide"]


def test_swinging_feet_are_those_far_from_any_contact(humanoid, walk):
    foot = humanoid.feet[0]
    labels = torch.zeros_like(walk.frames.contacts)
    labels[10, foot], labels[20, foot] = 0.6, 0.5  # a half is no contact
    clip = replace(walk, frames=replace(walk.frames, contacts=labels))
    cpu = torch.device("cpu")
    problem = Problem.build([clip], Body.of(humanoid, cpu), EVERY_TERM, cpu)
    swinging = problem.swinging[0]
    assert (~swinging[:, foot]).nonzero()[:, 0].tolist() == [8, 9, 10, 11, 12]
    assert swinging[:, humanoid.feet[1]].all()
    assert not swinging[:, [b for b in range(15) if b not in humanoid.feet]].any()


def test_feet_without_contact_are_lifted_clear_and_not_pulled_down(humanoid):
    """A walk whose labels leave the left foot in the air: it may skim the ground no more."""
    clip = walk_clip(humanoid, seconds=1.5)
    foot = humanoid.skeleton.body_index("left_foot")
    labels = clip.frames.contacts.clone()
    labels[:, foot] = 0.3
    clip = replace(clip, frames=replace(clip.frames, contacts=labels))
    skims = {}
    for name, changes in {
        "ours": {},
        "no term": {"w_foot_swing": 0.0},
        "any label pulls": {"w_foot_swing": 0.0, "contact_floor": 0.05},
    }.items():
        cfg = replace(own_optimizer(iterations=80), **changes)
        ((after, report),) = optimize_motions([clip], humanoid, cfg)
        away = body_ground_distance(humanoid, after.frames, clip.terrain)[:, foot]
        skims[name] = float((away < 0.02).float().mean())
        if name == "ours":
            before = body_ground_distance(humanoid, clip.frames, clip.terrain)[:, foot]
            lack = float((0.03 - before).clamp(min=0.0).sum())
            assert report.before["foot_swing"] == pytest.approx(lack, abs=1e-4)
            assert report.after["foot_swing"] < 0.1 * lack
    assert skims["ours"] < 0.1
    assert skims["no term"] > 0.3
    assert skims["any label pulls"] > 0.7


def test_no_batch_has_more_padded_frames_than_allowed(humanoid, walk, monkeypatch):
    seen = []
    build = Problem.build

    def spy(clips, body, cfg, device):
        problem = build(clips, body, cfg, device)
        seen.append(problem.mask.shape)
        return problem

    monkeypatch.setattr(kinopt.Problem, "build", spy)
    lengths = (30, 7, 22, 30, 12, 3, 18, 9)
    clips = [replace(walk, clip_id=str(k), frames=walk.frames.time(0, k)) for k in lengths]
    made = optimize_motions(clips, humanoid, OptimizerConfig(iterations=0, batch_frames=64))
    assert [c.num_frames for c, _ in made] == list(lengths)
    assert sum(n for n, _ in seen) == len(lengths)
    assert all(n * t <= 64 for n, t in seen)
    assert len(seen) < len(lengths)


class _ForbidDefaultDevice(TorchFunctionMode):
    """Refuses new tensors that do not say where: on a GPU they would be on the wrong device."""

    made = (torch.zeros, torch.ones, torch.arange, torch.full, torch.empty, torch.tensor)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert func not in self.made or kwargs.get("device") is not None, func
        return func(*args, **kwargs)


@pytest.mark.parametrize("knots", [0, 8])
def test_all_new_tensors_say_their_device(humanoid, walk, raised, knots):
    cfg = replace(EVERY_TERM, iterations=6, patience=2, tolerance=0.5, knot_frames=knots)
    device = torch.device("cpu")
    body = Body.of(humanoid, device)
    problem = Problem.build(
        [raised, replace(walk, frames=walk.frames.time(0, 20))], body, cfg, device
    )
    with _ForbidDefaultDevice():
        Descent(problem, body, problem.start(), cfg).run()
        fresh = Problem.build([raised], body, cfg, device)
    assert len(fresh.lengths) == 1


def test_feet_without_labels_come_out_of_the_ground_and_do_not_fly(humanoid, walk):
    f = walk.frames
    down = f.root_pos - torch.tensor([0.0, 0.0, 0.1])
    frames = replace(f, root_pos=down, contacts=torch.zeros_like(f.contacts))
    sunk = replace(walk, clip_id="sunk", frames=frames)
    cfg = replace(own_optimizer(iterations=80), w_joint_limit=0.0, w_foot_swing=0.0)
    plain = replace(cfg, drop_momentum=False, restart_share=0.0, beta_2=0.999)
    heights = []
    for settings in (cfg, plain):
        ((after, report),) = optimize_motions([sunk], humanoid, settings)
        assert report.after["penetration"] < 1e-3 * report.before["penetration"]
        distance = body_ground_distance(humanoid, after.frames, after.terrain)
        heights.append(float(distance.amin(-1).mean()))
    assert heights[0] < 0.02
    assert heights[1] > 3 * heights[0]
