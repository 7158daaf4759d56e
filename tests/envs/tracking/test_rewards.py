from __future__ import annotations

import math

import pytest
import torch

from envs.tracking import config as presets
from envs.tracking import rewards, terminations
from envs.tracking.motion_bank import MotionBank
from envs.tracking.resets import reference_state
from envs.tracking.task import REASONS, TrackingTask
from parc_ray.character.character import load_character
from parc_ray.character.rotations import quat_angle, quat_from_exp, quat_mul
from tests.envs.helpers import WADDLER, sway_clip

FRAME = torch.tensor([7, 20])
CLIP = torch.tensor([0, 0])


def make_task(character, config=None):
    return TrackingTask(
        character, MotionBank(character, [sway_clip(character)]), config or presets.base()
    )


def perfect(task):
    """What is observed when the state equals the reference."""
    refs = task.references(CLIP, FRAME)
    state = reference_state(task.bank.query(CLIP, FRAME))
    return task.observe(state, refs, CLIP, FRAME), state, refs


@pytest.fixture
def task(humanoid):
    return make_task(humanoid)


@pytest.mark.parametrize("which", ["humanoid", "waddler"])
def test_reference_in_gives_every_term_exactly_one(which, humanoid):
    character = humanoid if which == "humanoid" else load_character(WADDLER)
    task = make_task(character)
    seen, state, _ = perfect(task)
    zero = torch.zeros_like(state.dof_pos)
    terms = task.reward_terms(seen, zero, zero, zero)
    for name in ("pose", "vel", "root", "root_vel", "key"):
        assert terms[name].tolist() == [1.0, 1.0], name
    assert terms["contact"].tolist() == [0.0, 0.0]
    assert float(terms["action_rate"].abs().max()) == 0.0
    power = task.config.reward.power * terms["power"]
    torch.testing.assert_close(task.total_reward(terms) + power, torch.ones(2))
    assert not bool(task.failures(seen, torch.zeros(2, dtype=torch.bool)).any())


@pytest.mark.parametrize(("preset", "per_contact"), [("upstream", 5.0), ("paper", 1.0)])
def test_contact_term_of_the_code_and_of_the_paper(humanoid, preset, per_contact):
    """Reference labels both feet: two right contacts, and one touching body that should not."""
    task = make_task(humanoid, presets.preset(preset))
    seen, state, _ = perfect(task)
    bodies = humanoid.skeleton.num_bodies
    state.contact_force[0, list(humanoid.feet), 2] = 200.0
    state.contact_force[1, 2, 0] = -30.0
    zero = torch.zeros_like(state.dof_pos)
    terms = task.reward_terms(seen, zero, zero, zero)
    expected = torch.tensor([1.0 + 2 * per_contact / bodies, 1.0 - per_contact / bodies])
    torch.testing.assert_close(task.total_reward(terms), expected)


def test_ramp_and_binary_contact_strength():
    force = torch.tensor([[[0.0, 0.0, 0.4], [3.0, 0.0, 4.0], [0.0, 0.0, 0.0]]])
    squared = force.square().sum(-1)
    assert rewards.contact_strength(squared, "ramp", 1.0).tolist() == [
        [pytest.approx(0.4), 1.0, 0.0]
    ]
    assert rewards.contact_strength(squared, "binary", 1.0).tolist() == [[0.0, 1.0, 0.0]]


def test_pose_term_by_hand(humanoid):
    """One radian off at a joint of weight w costs exp(-0.25 w)."""
    task = make_task(humanoid)
    seen, _, _ = perfect(task)
    for joint in (0, 1, 9):
        weight = float(humanoid.joint_weights[joint])
        turned = seen.joint_rot.clone()
        turned[:, joint] = quat_mul(turned[:, joint], quat_from_exp(torch.tensor([0.6, 0.0, 0.8])))
        term = rewards.pose_term(turned, seen.joint_rot, humanoid.joint_weights, 0.25)
        assert term[0] == pytest.approx(math.exp(-0.25 * weight), rel=1e-5)


def test_other_terms_by_hand():
    weights = torch.tensor([1.0, 0.5])
    vel = rewards.velocity_term(
        torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]), weights, 0.01
    )
    assert float(vel) == pytest.approx(math.exp(-0.01 * (9 + 8)))
    moved = torch.tensor([[0.3, 0.0, 0.4]])
    error = rewards.root_error_sq(torch.zeros(1, 3), moved, torch.tensor([0.5]))
    assert float(error) == pytest.approx(0.25 + 0.1 * 0.25, rel=1e-5)
    assert float(rewards.root_term(error, 5.0, 0.0, 50.0)) == pytest.approx(math.exp(-1.375))
    mixed = float(rewards.root_term(error, 5.0, 0.25, 50.0))
    assert mixed == pytest.approx(0.75 * math.exp(-1.375) + 0.25 * math.exp(-13.75), rel=1e-5)
    zero = torch.zeros(1, 3)
    root_vel = rewards.root_velocity_term(
        zero, zero, torch.tensor([[1.0, 0, 0]]), torch.tensor([[0.0, 2, 0]]), 1.0
    )
    assert float(root_vel) == pytest.approx(math.exp(-1.4), rel=1e-5)
    own = torch.zeros(1, 4, 3)
    ref = torch.zeros(1, 4, 3)
    ref[0, :, 0] = 5.0  # the root's own offset does not count
    ref[0, 2, 2], ref[0, 3, 2] = 0.1, 0.2
    key = rewards.key_term(own, ref, torch.tensor([2, 3]), 10.0)
    assert float(key) == pytest.approx(math.exp(-10 * 0.05), rel=1e-5)


def test_costs_by_hand():
    rate = rewards.action_rate_cost(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    assert float(rate) == pytest.approx(2.5)
    gains = (torch.tensor([10.0, 10.0]), torch.tensor([1.0, 1.0]), torch.tensor([4.0, 100.0]))
    power = rewards.power_cost(
        torch.zeros(1, 2), torch.tensor([[2.0, -1.0]]), torch.ones(1, 2), gains
    )
    assert float(power) == pytest.approx((4.0 * 2.0 + 11.0 * 1.0) / 2)


def reasons(task, seen, diverged=False):
    seen.root_angle = quat_angle(seen.state.root_rot, seen.current.root_rot)
    flags = task.failures(seen, torch.tensor([diverged, diverged]))
    return {REASONS[k] for k in flags[0].nonzero()[:, 0].tolist()}


def test_terminations_one_by_one(humanoid):
    task = make_task(humanoid, presets.upstream())
    seen, state, _ = perfect(task)
    assert reasons(task, seen) == set()
    original = seen.body_pos.clone()
    for body in range(1, humanoid.skeleton.num_bodies):
        limit = float(humanoid.termination_distance[body - 1])
        for factor, expected in ((0.99, set()), (1.01, {"body"})):
            seen.body_pos = original.clone()
            seen.body_pos[:, body, 1] += factor * limit
            assert reasons(task, seen) == expected, humanoid.skeleton.body_names[body]
    seen.body_pos = original
    for factor, expected in ((0.99, set()), (1.01, {"root_pos"})):
        state.root_pos[:] = seen.current.root_pos + torch.tensor([0.0, 0.36, 0.48]) * factor
        assert reasons(task, seen) == expected
    state.root_pos[:] = seen.current.root_pos
    for factor, expected in ((0.99, set()), (1.01, {"root_rot"})):
        turn = quat_from_exp(torch.tensor([0.0, 1.309 * factor, 0.0]))
        state.root_rot[:] = quat_mul(seen.current.root_rot, turn.expand(2, 4))
        assert reasons(task, seen) == expected
    state.root_rot[:] = seen.current.root_rot
    assert reasons(task, seen, diverged=True) == {"diverged"}
    state.dof_vel[0, 3] = float("nan")
    assert "diverged" in reasons(task, seen)


def test_the_paper_has_one_distance_and_no_root_limits(humanoid):
    task = make_task(humanoid, presets.paper())
    seen, state, _ = perfect(task)
    state.root_pos[:] += 3.0
    assert reasons(task, seen) == set()
    head = humanoid.skeleton.body_index("head")
    seen.body_pos = seen.body_pos.clone()
    seen.body_pos[:, head, 0] += 0.71
    assert reasons(task, seen) == {"body"}


def test_not_finite_flags_the_environment():
    good, bad = torch.zeros(3, 2), torch.zeros(3, 2, 2)
    bad[1, 0, 1] = float("inf")
    assert terminations.not_finite(good, bad).tolist() == [False, True, False]


def test_contact_tolerance_forgives_touching_near_a_label(humanoid):
    """A foot labelled in frames 20 to 24 alone may touch from 18 to 26."""
    clip = sway_clip(humanoid)
    foot = humanoid.feet[0]
    clip.frames.contacts[:] = 0.0
    clip.frames.contacts[20:25, foot] = 1.0
    still = sway_clip(humanoid, 30)  # a neighbour whose labels must not be read
    bank = MotionBank(humanoid, [clip, still])
    config = presets.TrackingConfig(reward=presets.RewardConfig(contact_tolerance=2))
    task = TrackingTask(humanoid, bank, config)
    frame = torch.tensor([17, 18, 22, 26, 27, 60])
    which = torch.zeros(6, dtype=torch.long)
    state = reference_state(bank.query(which, frame))
    state.contact_force[:, foot, 2] = 5.0
    seen = task.observe(state, task.references(which, frame), which, frame)
    zero = torch.zeros_like(state.dof_pos)
    got = task.reward_terms(seen, zero, zero, zero)["contact"] * humanoid.skeleton.num_bodies
    assert got.tolist() == pytest.approx([-1, 1, 1, 1, -1, -1])


def test_firm_root_pays_for_the_last_decimetre():
    """From 0.2 m off to none the root's share of the reward rises 4.5 times as much as PARC's."""

    def gain(name: str) -> float:
        c = presets.preset(name).reward
        share = c.root / (c.pose + c.vel + c.root + c.root_vel + c.key)
        far = rewards.root_term(
            torch.tensor([0.04]), c.root_scale, c.root_tight, c.root_tight_scale
        )
        return share * (1.0 - float(far))

    parc = 0.15 * (1.0 - math.exp(-0.2))
    assert gain("upstream") == pytest.approx(parc)
    assert gain("paper") == pytest.approx(parc)
    firm = 0.3 / 1.2 * (1.0 - 0.5 * math.exp(-0.2) - 0.5 * math.exp(-1.6))
    assert gain("base") == gain("quick") == pytest.approx(firm)
    assert firm / parc == pytest.approx(4.5, rel=0.01)
