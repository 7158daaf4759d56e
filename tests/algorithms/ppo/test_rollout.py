"""The sampling loop and the splitting and joining of fragments."""

from __future__ import annotations

import pytest
import torch

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.losses import log_prob
from algorithms.ppo.module import ActorCritic, model_config
from algorithms.ppo.networks import NetSpec
from algorithms.ppo.rollout import LogSums, Rollout, Sampler, cat_rollouts
from algorithms.ppo.runner import box_space
from tests.algorithms.ppo.toy import ToyLine


def make_module(config=None, obs_dim=6, action_dim=2):
    config = config or TrackerConfig(hidden=(16,))
    spec = NetSpec.from_config(config, obs_dim, action_dim)
    return ActorCritic(
        observation_space=box_space(obs_dim),
        action_space=box_space(action_dim),
        inference_only=False,
        model_config=model_config(spec, config),
    )


def make_sampler(num_envs=6, horizon=50, seed=0):
    return Sampler(ToyLine(num_envs, seed), horizon, seed, torch.device("cpu"))


def clone(rollout):
    return Rollout(**{k: v.clone() for k, v in rollout.to_dict().items()})


def assert_same(one, two):
    for name, tensor in one.to_dict().items():
        assert torch.equal(tensor, two.to_dict()[name]), name


def test_fragment_tells_the_same_story_as_stepping_by_hand():
    module, sampler = make_module(), make_sampler()
    rollout, metrics = sampler.run(module)
    env = ToyLine(6, 0)
    obs, lengths = env.reset(), []
    length = torch.zeros(6)
    for t in range(50):
        assert torch.equal(rollout.obs[t], obs)
        with torch.no_grad():
            torch.testing.assert_close(rollout.mean[t], module.act_mean(obs))
        step = env.step(rollout.action[t])
        assert torch.equal(rollout.reward[t], step.reward)
        assert torch.equal(rollout.terminated[t], step.terminated)
        assert torch.equal(rollout.truncated[t], step.truncated)
        here = rollout.final_index // 6 == t
        assert torch.equal(rollout.final_index[here] % 6, step.final_ids)
        assert torch.equal(rollout.final_obs[here], step.final_obs)
        length += 1
        lengths += length[step.final_ids].tolist()
        length[step.final_ids] = 0
        obs = step.obs
    assert torch.equal(rollout.obs[50], obs)
    assert len(lengths) > 6
    assert metrics["episode_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert metrics["episodes_count"] == len(lengths)
    assert metrics["step/success"] == pytest.approx(
        metrics["step/success_sum"] / metrics["step/success_count"]
    )
    assert metrics["failure_rate"] == pytest.approx(float(rollout.terminated.float().mean()))


def test_carried_noise_moves_the_environment_and_not_the_densities():
    """Replaying a + c by hand, c' = m (c + noise) and 0 after an end, gives the same rewards."""
    module = make_module()
    sampler = Sampler(ToyLine(6, 0), 50, 0, torch.device("cpu"), noise_memory=0.6)
    rollout, _ = sampler.run(module)
    env = ToyLine(6, 0)
    env.reset()
    carried = torch.zeros(6, 2)
    for t in range(50):
        step = env.step(rollout.action[t] + carried)
        torch.testing.assert_close(rollout.reward[t], step.reward)
        carried = 0.6 * (carried + rollout.action[t] - rollout.mean[t])
        carried[step.final_ids] = 0.0
    assert carried.abs().max() > 0
    expected = log_prob(rollout.mean, rollout.log_std, rollout.action)
    torch.testing.assert_close(rollout.log_prob, expected)
    saved = sampler.state_dict()
    other = Sampler(ToyLine(6, 5), 50, 9, torch.device("cpu"), noise_memory=0.6)
    other.load_state_dict(saved)
    assert_same(clone(sampler.run(module)[0]), other.run(module)[0])


def test_actions_are_the_mean_plus_noise_of_the_stated_deviation():
    module = make_module()
    rollout, _ = make_sampler(64, 40).run(module)
    noise = rollout.action - rollout.mean
    assert float(noise.std()) == pytest.approx(0.3, rel=0.05)
    torch.testing.assert_close(
        rollout.log_prob, log_prob(rollout.mean, rollout.log_std, rollout.action)
    )


def test_chunks_and_joining_are_inverse():
    rollout, _ = make_sampler().run(make_module())
    parts = rollout.chunks(3)
    assert [p.reward.shape[1] for p in parts] == [2, 2, 2]
    assert sum(len(p.final_index) for p in parts) == len(rollout.final_index)
    joined = cat_rollouts(parts)
    order = torch.argsort(joined.final_index)
    original = torch.argsort(rollout.final_index)
    assert torch.equal(joined.final_index[order], rollout.final_index[original])
    assert torch.equal(joined.final_obs[order], rollout.final_obs[original])
    for name in ("obs", "action", "reward", "terminated", "log_prob"):
        assert torch.equal(getattr(joined, name), getattr(rollout, name))


def test_state_continues_bit_for_bit():
    module = make_module()
    one = make_sampler(seed=3)
    one.run(module)
    state = one.state_dict()
    other = make_sampler(seed=4)
    other.load_state_dict(state)
    first, metrics_first = one.run(module)
    first = clone(first)
    second, metrics_second = other.run(module)
    assert_same(first, second)
    assert metrics_first["episode_return"] == metrics_second["episode_return"]


def test_logs_follow_the_protocol():
    logs = LogSums()
    logs.add({"pose": 1.0, "err_sum": 3.0, "err_count": 2.0})
    logs.add({"pose": 2.0})
    logs.add({"err_sum": 5.0, "err_count": 2.0})
    assert logs.result() == {"pose": 1.5, "err_sum": 8.0, "err_count": 4.0, "err": 2.0}
