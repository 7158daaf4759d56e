"""The controller on dynamics that can be worked out, and on MuJoCo for a few steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms.mpc.config import MpcConfig, PolishConfig
from algorithms.mpc.corrector import MpcCorrector, MpcResult, roughness, smoothed
from algorithms.mpc.cost import tracking_error, why_ended
from algorithms.mpc.reference import reference_track
from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from parc_ray.character.character import Character, load_character
from parc_ray.character.rotations import yaw_quat
from parc_ray.protocols import SimBackend
from tests.algorithms.mpc.fakes import WeakServos, glide_clip
from tests.envs.helpers import WADDLER, stand_clip

CONFIG = MpcConfig(samples=64, horizon=4, execute=2, knots=2, iterations=3, sigma=0.15)


def follow(
    character, clip, config=CONFIG, *, gain=0.8, stumble=None, times=1_000, seed=0, **options
) -> tuple[MpcResult, WeakServos]:
    main = WeakServos(character, 1, gain, stumble, times)
    many = WeakServos(character, config.samples, gain)
    few = WeakServos(character, config.num_survivors, gain) if config.prunes else None
    corrector = MpcCorrector(character, main, many, config, few)
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
    result, main = follow(waddler, glide, replace(CONFIG, polish=PolishConfig(passes=0)))
    assert result.completed
    assert result.frames == len(result.pd_targets) == glide.num_frames - 1
    assert joint_error(result, glide).mean() < 0.65 * 0.08
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


@pytest.mark.parametrize("sizes", [(2, 64, 16), (1, 63, 16), (1, 64, 17), (1, 64, None)])
def test_back_ends_of_the_wrong_size_are_refused(waddler, sizes):
    config = replace(CONFIG, prune_at=2, prune_share=0.25)
    main, many, few = (None if n is None else WeakServos(waddler, n) for n in sizes)
    with pytest.raises(ValueError, match="environment"):
        MpcCorrector(waddler, main, many, config, few)


def test_pruning_saves_steps_and_still_corrects(waddler, glide):
    config = replace(CONFIG, horizon=8, knots=3, prune_at=0, polish=PolishConfig(passes=0))
    pruned = replace(config, prune_at=2, prune_share=0.25)
    spent, errors = [], []
    for each in (config, pruned):
        main, many = WeakServos(waddler, 1), WeakServos(waddler, each.samples)
        few = WeakServos(waddler, each.num_survivors) if each.prunes else None
        corrector = MpcCorrector(waddler, main, many, each, few)
        result = corrector.follow(reference_track(waddler, glide), 0, seed=0, end_frame=10)
        spent.append(many.simulated + (few.simulated if few else 0))
        errors.append(float(joint_error(result, glide).mean()))
    assert spent[1] == spent[0] * (64 * 2 + 16 * 6) / (64 * 8)
    assert errors[1] < 0.75 * 0.08


def test_where_it_stumbled_it_goes_back_and_on(waddler, glide):
    """Twice the root is thrown aside at step 12; after that it is not."""
    config = replace(CONFIG, rewinds=3, rewind=4, polish=PolishConfig(passes=0))
    result, main = follow(waddler, glide, config, stumble=12, times=2)
    assert result.completed
    assert result.rewinds == 2
    assert result.reason == ""
    assert len(result.pd_targets) == len(result.residuals) == glide.num_frames - 1
    again = WeakServos(waddler, 1)
    again.set_state(torch.tensor([0]), torch.tensor([0]), result.initial)
    end = again.rollout(result.pd_targets[None])
    assert torch.equal(end.dof_pos[:, -1], main.state().dof_pos)
    assert torch.equal(end.root_pos[:, -1], main.state().root_pos)


def test_it_gives_up_after_its_rewinds_and_says_where_and_why(waddler, glide):
    config = replace(CONFIG, rewinds=3, rewind=4)
    result, main = follow(waddler, glide, config, stumble=12)
    assert (result.completed, result.frames, result.rewinds) == (False, 12, 3)
    assert main.times == 1_000 - 4
    assert result.reason == "root 5.00 m off (allowed 0.6 m)"
    few = replace(config, rewinds=50, rewinds_total=2)
    assert follow(waddler, glide, few, stumble=12)[0].rewinds == 2


def test_the_last_pass_is_smoother_and_no_worse(waddler, glide):
    noisy = replace(CONFIG, sigma=0.6, sigma_floor=0.6, elite_share=0.03, execute=1, iterations=1)
    rough, _ = follow(waddler, glide, replace(noisy, polish=PolishConfig(passes=0)))
    result, _ = follow(waddler, glide, noisy)
    assert (rough.polished, result.polished) == (0, 1)
    assert roughness(result.residuals) < 0.9 * roughness(rough.residuals)
    assert result.body_error.mean() < rough.body_error.mean()


def test_a_last_pass_that_is_worse_is_not_kept(waddler, glide):
    noisy = replace(CONFIG, sigma_floor=0.15)
    rough, _ = follow(waddler, glide, replace(noisy, polish=PolishConfig(passes=0)))
    strict = replace(noisy, polish=PolishConfig(max_error_growth=0.1))
    result, _ = follow(waddler, glide, strict)
    assert result.polished == 0
    assert torch.equal(result.pd_targets, rough.pd_targets)


def test_filter_worked_numbers():
    spike = torch.tensor([[0.0], [0.0], [4.0], [0.0], [0.0]])
    assert smoothed(spike, 1)[:, 0].tolist() == [0.0, 1.0, 2.0, 1.0, 0.0]
    assert torch.equal(smoothed(spike, 0), spike)
    for count in (1, 2):
        assert torch.equal(smoothed(spike[:count], 3), spike[:count])
    assert roughness(spike) == pytest.approx(2 * 16 / 4)
    assert roughness(spike[:1]) == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"root_pos": (0.7, 0.0, 0.0)}, "root 0.70 m off (allowed 0.6 m)"),
        ({"root_rot": 1.4}, "root turned 1.40 rad off (allowed 1.309 rad)"),
        ({"root_pos": (float("nan"), 0.0, 0.0)}, "the simulation diverged"),
        ({"dof": 2.5}, " m off (allowed "),
    ],
)
def test_what_ended_a_track_is_told_with_its_figures(humanoid, change, words):
    ref = reference_track(humanoid, stand_clip(humanoid, 3)).at(torch.tensor([1]))
    state = ref.state.clone()
    state.root_pos = state.root_pos + torch.tensor(change.get("root_pos", (0.0, 0.0, 0.0)))
    if "root_rot" in change:
        state.root_rot = yaw_quat(torch.tensor([change["root_rot"]]))
    if "dof" in change:
        state.dof_pos = state.dof_pos + change["dof"]
    error = tracking_error(humanoid, state, ref)
    said = why_ended(humanoid, error, CONFIG)
    assert words in said
    if "dof" in change:
        body = said.split()[0]
        at = humanoid.skeleton.body_index(body)
        assert error.relative[0, at] > humanoid.termination_distance[at - 1]


def test_the_fake_is_a_back_end(waddler):
    assert isinstance(WeakServos(waddler, 1), SimBackend)


def test_ten_steps_of_standing_in_mujoco_replay_to_the_bit(humanoid):
    clip = stand_clip(humanoid, 11)
    config = MpcConfig(samples=8, horizon=4, knots=2, iterations=1, polish=PolishConfig(passes=0))
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


class Tripped(MpcCorrector):
    """Counts one step as failed although nothing happened."""

    tripped = False

    def _execute(self, task, track):
        reason = super()._execute(task, track)
        if track.frame >= 6 and not self.tripped:
            self.tripped = True
            return "made up"
        return reason


def test_a_motion_that_went_back_replays_to_the_bit_in_mujoco(humanoid):
    clip = stand_clip(humanoid, 11)
    config = MpcConfig(
        samples=8, horizon=4, knots=2, iterations=1, rewind=2, polish=PolishConfig(passes=0)
    )
    factory = backend_factory("mujoco_cpu", humanoid, SimConfig())
    main, planner = factory(1, [clip.terrain]), factory(8, [clip.terrain])
    try:
        corrector = Tripped(humanoid, main, planner, config)
        result = corrector.follow(reference_track(humanoid, clip), 0, seed=1)
        assert (result.completed, result.rewinds, result.frames) == (True, 1, 10)
        end = main.state()
        zero = torch.zeros(1, dtype=torch.long)
        main.set_state(zero, zero, result.initial)
        again = main.rollout(result.pd_targets[None])
        for name, value in vars(end).items():
            assert torch.equal(getattr(again, name)[:, -1], value), name
    finally:
        main.close()
        planner.close()
