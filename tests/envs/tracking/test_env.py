from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from envs.tracking import config as presets
from envs.tracking.config import (
    ControlConfig,
    SamplingConfig,
    TerminationConfig,
    TrackingConfig,
)
from envs.tracking.creator import make_tracking_env
from envs.tracking.env import VectorTrackingEnv
from parc_ray.character.character import load_character
from parc_ray.character.kinematics import dof_to_joint_rot
from parc_ray.character.rotations import quat_angle, quat_from_exp, quat_mul
from parc_ray.errors import InputError
from parc_ray.protocols import TrackingEnv
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import WADDLER, assert_same, stand_clip, sway_clip

STILL = SamplingConfig(
    start_share=1.0, uniform_share=0.0, pos_noise=0.0, vel_noise=0.0, end_margin_s=0.2
)


def env_of(character, num_envs=4, clips=None, **config):
    clips = clips or [sway_clip(character), stand_clip(character)]
    return VectorTrackingEnv(character, clips, num_envs, TrackingConfig(**config), seed=3)


def actions(env, steps, size=0.5):
    rng = torch.Generator().manual_seed(1)
    return size * torch.randn(steps, env.num_envs, env.action_dim, generator=rng)


def run(env, plan):
    return [env.step(a) for a in plan]


def test_implements_the_protocol(humanoid):
    env = env_of(humanoid)
    assert isinstance(env, TrackingEnv)
    assert env.reset().shape == (4, env.obs_dim)
    env.close()


def test_residual_target_composes_with_the_next_frame(humanoid):
    env = env_of(humanoid, 1, [sway_clip(humanoid)], sampling=STILL)
    env.reset()
    action = torch.zeros(1, env.action_dim)
    refs = env.task.references(torch.tensor([0]), torch.tensor([0]))
    ahead = env.bank.query(torch.tensor([0]), torch.tensor([1]))
    torch.testing.assert_close(env.task.targets(action, refs), ahead.dof, atol=1e-6, rtol=1e-5)
    action[0, 0] = 1.0
    target = env.task.targets(action, refs)
    turn = quat_from_exp(torch.tensor([0.3, 0.0, 0.0]))
    expected = quat_mul(ahead.joint_rot[0, 0], turn)
    got = dof_to_joint_rot(humanoid.skeleton, target)[0, 0]
    assert float(quat_angle(expected, got)) < 1e-3
    hinge = humanoid.skeleton.joint_kinds.index("hinge")
    dof = humanoid.skeleton.dof_slices[hinge].start
    action[0, dof] = -2.0
    target = env.task.targets(action, refs)
    assert float(target[0, dof]) == pytest.approx(float(ahead.dof[0, dof]) - 0.6, abs=1e-5)


def test_absolute_target_is_clamped_to_the_published_range(humanoid):
    env = env_of(humanoid, 1, control=ControlConfig(mode="absolute"))
    refs = env.task.references(torch.tensor([0]), torch.tensor([0]))
    far = env.task.targets(torch.full((1, env.action_dim), 7.0), refs)
    torch.testing.assert_close(far[0], humanoid.action_offset + humanoid.action_scale)


def test_a_standing_clip_is_held_for_half_a_second_without_feedback(humanoid):
    env = env_of(humanoid, 2, [stand_clip(humanoid)], sampling=STILL)
    env.reset()
    results = run(env, torch.zeros(15, 2, env.action_dim))
    assert not any(bool(r.terminated.any() or r.truncated.any()) for r in results)
    assert float(results[-1].reward.min()) > 0.9
    assert results[-1].log["reward/contact"] > 0


def test_clip_end_is_a_truncation_with_its_last_observation(humanoid):
    clips = [stand_clip(humanoid, 11)]
    env = env_of(humanoid, 3, clips, sampling=STILL)
    first = env.reset()
    results = run(env, torch.zeros(10, 3, env.action_dim))
    assert all(len(r.final_ids) == 0 for r in results[:-1])
    last = results[-1]
    assert last.truncated.tolist() == [True] * 3
    assert not bool(last.terminated.any())
    assert last.final_ids.tolist() == [0, 1, 2]
    assert last.log["end/clip_end_count"] == 3.0
    assert last.log["episode_length_sum"] == 30.0
    assert torch.equal(last.obs, first)
    assert not torch.equal(last.final_obs, first)


def test_clip_end_can_count_as_worthless(humanoid):
    config = TerminationConfig(clip_end="zero")
    env = env_of(humanoid, 2, [stand_clip(humanoid, 6)], sampling=STILL, termination=config)
    env.reset()
    last = run(env, torch.zeros(5, 2, env.action_dim))[-1]
    assert last.terminated.tolist() == [True, True]
    assert not bool(last.truncated.any())
    assert last.log["episode_failed_count"] == 0.0
    assert float(env.sampler.clip_fail[0]) == 0.0


def test_time_limit_truncates(humanoid):
    config = TerminationConfig(episode_s=0.2)
    env = env_of(humanoid, 2, [stand_clip(humanoid)], sampling=STILL, termination=config)
    env.reset()
    last = run(env, torch.zeros(6, 2, env.action_dim))[-1]
    assert last.truncated.tolist() == [True, True]
    assert last.log["end/time_limit_count"] == 2.0


def test_failures_terminate_restart_and_are_counted(humanoid):
    tight = TerminationConfig(root_pos_m=0.02)
    env = env_of(humanoid, 4, sampling=STILL, termination=tight)
    env.reset()
    ended = 0
    for action in actions(env, 40, size=2.0):
        result = env.step(action)
        ended += int(result.terminated.sum())
        assert bool(torch.isfinite(result.obs).all())
        ids = result.final_ids
        assert torch.equal(ids, (result.terminated | result.truncated).nonzero()[:, 0])
        assert bool((env.steps[ids] == 0).all())
        assert result.log.get("end/root_pos_count", 0.0) <= len(ids)
    assert ended > 4
    assert env.metrics()["fail_rate/mean"] > 0.5
    assert set(env.metrics()) >= {"fail_rate/class/stand", "fail_rate/clip/sway"}


@pytest.mark.parametrize("preset", ["base", "upstream"])
def test_equal_seeds_give_equal_experience(humanoid, preset):
    clips = [sway_clip(humanoid), stand_clip(humanoid)]
    one, other = (
        VectorTrackingEnv(humanoid, clips, 4, presets.preset(preset), seed=5) for _ in range(2)
    )
    third = VectorTrackingEnv(humanoid, clips, 4, presets.preset(preset), seed=6)
    first = one.reset()
    assert torch.equal(first, other.reset())
    assert not torch.equal(first, third.reset())
    for action in actions(one, 12):
        assert_same(one.step(action), other.step(action))


@pytest.mark.parametrize("preset", ["base", "upstream"])
def test_state_dict_continues_bit_for_bit(humanoid, preset):
    """Over resets, in the middle of episodes, into an environment of another seed."""
    clips = [sway_clip(humanoid, 25), stand_clip(humanoid, 20)]
    config = presets.preset(preset)
    one = VectorTrackingEnv(humanoid, clips, 6, config, seed=1)
    other = VectorTrackingEnv(humanoid, clips, 6, config, seed=2)
    one.reset()
    plan = actions(one, 40)
    run(one, plan[:17])
    saved = one.state_dict()
    other.load_state_dict(saved)
    assert torch.equal(one.observe(), other.observe())
    resets = 0
    for action in plan[17:]:
        a, b = one.step(action), other.step(action)
        assert_same(a, b)
        resets += len(a.final_ids)
    assert resets > 3
    assert_same(one.state_dict(), other.state_dict())


def test_a_diverging_environment_is_a_failure_and_the_rest_go_on(humanoid):
    env, clean = env_of(humanoid, 3, sampling=STILL), env_of(humanoid, 3, sampling=STILL)
    assert torch.equal(env.reset(), clean.reset())
    action = torch.zeros(3, env.action_dim)
    poisoned = action.clone()
    poisoned[1] = float("nan")
    got, expected = env.step(poisoned), clean.step(action)
    assert got.terminated.tolist() == [False, True, False]
    assert got.log["end/diverged_count"] == 1.0
    assert float(got.reward[1]) == 0.0
    keep = torch.tensor([0, 2])
    assert torch.equal(got.obs[keep], expected.obs[keep])
    for value in (got.obs, got.reward, got.final_obs):
        assert bool(torch.isfinite(value).all())
    assert bool(torch.isfinite(env.step(action).obs).all())


def test_environments_stand_on_their_own_terrain(humanoid):
    low, high = stand_clip(humanoid), stand_clip(humanoid, clip_id="high")
    high.terrain = Heightfield.flat((24, 24), height=1.0)
    high.frames.root_pos[:, 2] += 1.0
    env = env_of(humanoid, 8, [low, high], sampling=STILL)
    env.reset()
    result = run(env, torch.zeros(10, 8, env.action_dim))[-1]
    assert set(env.clip.tolist()) == {0, 1}
    assert float(result.reward.min()) > 0.9
    z = env.backend.state().root_pos[:, 2]
    torch.testing.assert_close(z, humanoid.stand_height + env.clip.float(), atol=0.03, rtol=0)


def test_starts_never_sink_into_the_ground(humanoid):
    """Noise of 5 cm, lifted out: the first step does not push the character up."""
    env = env_of(humanoid, 64, [stand_clip(humanoid)], sampling=replace(STILL, pos_noise=0.05))
    env.reset()
    state = env.backend.state()
    feet = env.task.observe(state, env.ahead.now, env.clip, env._frame()).body_pos[
        :, list(humanoid.feet), 2
    ]
    assert float(feet.min()) > 0.05 - 1e-4  # the ankle is 5 cm above the sole
    assert float((state.root_pos[:, 2] - humanoid.stand_height).max()) > 0.03
    env.step(torch.zeros(64, env.action_dim))
    assert float(env.backend.state().root_lin_vel[:, 2].max()) < 0.2


def test_second_character_trains_without_code_change():
    character = load_character(WADDLER)
    env = env_of(character, 4)
    env.reset()
    results = run(env, actions(env, 20, size=0.3))
    assert all(bool(torch.isfinite(r.obs).all()) for r in results)
    assert env.action_dim == character.skeleton.num_dofs


def test_no_gradient_is_recorded(humanoid):
    env = env_of(humanoid, 2)
    env.reset()
    result = env.step(torch.zeros(2, env.action_dim, requires_grad=True))
    assert not result.reward.requires_grad
    assert not result.obs.requires_grad


def test_creator_takes_mappings_and_names_wrong_keys(humanoid):
    clips = [stand_clip(humanoid)]
    env = make_tracking_env({"clips": lambda: clips, "num_envs": 2, "seed": 4})
    assert env.num_envs == 2
    env.close()
    with pytest.raises(InputError, match="clip_list"):
        make_tracking_env({"clip_list": clips, "num_envs": 2})
    with pytest.raises(InputError, match="num_envs"):
        make_tracking_env({"clips": clips})


def test_clips_at_another_rate_are_refused(humanoid):
    clip = stand_clip(humanoid)
    clip.fps = 60.0
    with pytest.raises(InputError, match=r"stand.fps"):
        env_of(humanoid, 2, [clip])
    with pytest.raises(InputError, match="clips"):
        VectorTrackingEnv(humanoid, [], 2)


@pytest.mark.parametrize("name", ["paper", "upstream", "base", "quick"])
def test_presets_exist(name):
    assert isinstance(presets.preset(name), TrackingConfig)


def test_unknown_preset_is_named():
    with pytest.raises(InputError, match="upstream"):
        presets.preset("fast")
