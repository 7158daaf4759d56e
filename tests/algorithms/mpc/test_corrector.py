"""The controller on dynamics that can be worked out, and on MuJoCo for a few steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms.mpc.config import MpcConfig
from algorithms.mpc.corrector import MpcCorrector, MpcResult
from algorithms.mpc.reference import reference_track
from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from parc_ray.character.character import Character, load_character
from parc_ray.protocols import SimBackend
from tests.algorithms.mpc.fakes import WeakServos, glide_clip
from tests.envs.helpers import WADDLER, stand_clip

CONFIG = MpcConfig(samples=64, horizon=4, execute=2, knots=2, iterations=3, sigma=0.15)


def follow(
    character, clip, config=CONFIG, *, gain=0.8, stumble=None, seed=0, **options
) -> tuple[MpcResult, WeakServos]:
    main = WeakServos(character, 1, gain, stumble)
    planner = WeakServos(character, config.samples, gain)
    corrector = MpcCorrector(character, main, planner, config)
    return corrector.follow(reference_track(character, clip), 0, seed=seed, **options), main


@pytest.fixture(scope="module")
def waddler() -> Character:
    """The small test character: fewer joints to search over."""
    return load_character(WADDLER)


@pytest.fixture(scope="module")
def glide(waddler):
    return glide_clip(waddler)


def joint_error(result: MpcResult, clip, gain=0.8) -> torch.Tensor:
    """Mean distance (K,) rad of the joints from the reference after each step."""
    reached = gain * result.pd_targets
    return (reached - clip.frames.dof[1 : len(reached) + 1]).abs().mean(-1)


def test_it_learns_to_ask_for_more_than_weak_servos_give(waddler, glide):
    """Without correction every joint stays 0.2 * 0.4 rad short."""
    idle = replace(CONFIG, sigma=1e-6, sigma_floor=0.0)
    without, _ = follow(waddler, glide, idle)
    assert joint_error(without, glide) == pytest.approx(0.08, abs=1e-4)
    result, main = follow(waddler, glide)
    assert result.completed
    assert result.frames == len(result.pd_targets) == glide.num_frames - 1
    assert joint_error(result, glide).mean() < 0.6 * 0.08
    assert result.body_error.mean() < 0.5 * without.body_error.mean()
    assert torch.allclose(main.state().dof_pos[0], 0.8 * result.pd_targets[-1])
    assert main.state().root_pos[0, 0] == pytest.approx(1.0, abs=1e-5)


def test_more_search_corrects_more(waddler, glide):
    little = replace(CONFIG, samples=8, iterations=1)
    errors = [follow(waddler, glide, c)[0].body_error.mean() for c in (little, CONFIG)]
    assert errors[1] < errors[0]


def test_perfect_servos_are_not_spoilt_by_the_search(waddler, glide):
    result, _ = follow(waddler, glide, gain=1.0)
    assert result.completed
    assert result.body_error.mean() < 0.01


def test_the_seed_decides_everything(waddler, glide):
    one, _ = follow(waddler, glide, seed=5)
    same, _ = follow(waddler, glide, seed=5)
    other, _ = follow(waddler, glide, seed=6)
    assert torch.equal(one.pd_targets, same.pd_targets)
    assert not torch.equal(one.pd_targets, other.pd_targets)
    assert (one.seed, other.seed) == (5, 6)


def test_the_global_random_state_is_left_alone(waddler, glide):
    before = torch.get_rng_state()
    follow(waddler, glide, end_frame=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fall_ends_the_attempt_where_it_happens(waddler, glide):
    result, _ = follow(waddler, glide, stumble=12)
    assert not result.completed
    assert result.frames == 12
    assert len(result.pd_targets) == 13  # the step that failed is among them
    assert len(result.body_error) == 12


def test_part_of_the_reference_can_be_followed(waddler, glide):
    result, main = follow(waddler, glide, start_frame=5, end_frame=11)
    assert result.completed
    assert (result.start_frame, result.frames) == (5, 6)
    assert result.initial.root_pos[0, 0] == pytest.approx(5 / 30)
    assert main.state().root_pos[0, 0] == pytest.approx(11 / 30, abs=1e-5)
    beyond, _ = follow(waddler, glide, start_frame=5, end_frame=10_000)
    assert beyond.frames == glide.num_frames - 1 - 5


def test_targets_stay_within_the_residual_limit(waddler, glide):
    tight = replace(CONFIG, residual_limit=0.02)
    result, _ = follow(waddler, glide, tight)
    hinges = [
        s.start
        for s, kind in zip(waddler.skeleton.dof_slices, waddler.skeleton.joint_kinds, strict=True)
        if kind == "hinge"
    ]
    off = result.pd_targets[:, hinges] - glide.frames.dof[1:, hinges]
    assert off.abs().max() <= 0.02 + 1e-5


def test_targets_are_stored_as_they_were_executed(waddler, glide):
    result, _ = follow(waddler, glide, end_frame=4)
    assert result.pd_targets.dtype == torch.float32


@pytest.mark.parametrize("sizes", [(2, 64), (1, 63)])
def test_back_ends_of_the_wrong_size_are_refused(waddler, sizes):
    with pytest.raises(ValueError, match="main needs 1 and planner 64"):
        MpcCorrector(waddler, *(WeakServos(waddler, n) for n in sizes), CONFIG)


def test_the_fake_is_a_back_end(waddler):
    assert isinstance(WeakServos(waddler, 1), SimBackend)


def test_ten_steps_of_standing_in_mujoco_replay_to_the_bit(humanoid):
    clip = stand_clip(humanoid, 11)
    config = MpcConfig(samples=8, horizon=4, knots=2, iterations=1)
    factory = backend_factory("mujoco_cpu", humanoid, SimConfig())
    main, planner = factory(1, [clip.terrain]), factory(8, [clip.terrain])
    try:
        corrector = MpcCorrector(humanoid, main, planner, config)
        result = corrector.follow(reference_track(humanoid, clip), 0, seed=1)
        assert result.completed
        assert result.frames == 10
        assert result.body_error.max() < 0.1
        end = main.state()
        zero = torch.zeros(1, dtype=torch.long)
        main.set_state(zero, zero, result.initial)
        again = main.rollout(result.pd_targets[None])
        assert torch.equal(again.root_pos[:, -1], end.root_pos)
        assert torch.equal(again.dof_pos[:, -1], end.dof_pos)
    finally:
        main.close()
        planner.close()
