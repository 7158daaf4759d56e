"""Demonstrations: actions that ask for the recorded targets, and a policy that imitates them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms.ppo.networks import NetSpec
from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from envs.tracking.config import PRESETS, ControlConfig, TrackingConfig
from envs.tracking.rollouts import EpisodeRunner
from parc_ray.character.kinematics import dof_to_joint_rot
from parc_ray.character.targets import compose_residual
from parc_ray.correction.by_mpc import correct_by_mpc
from parc_ray.correction.config import TeacherConfig
from parc_ray.correction.strategies import record_config
from parc_ray.correction.teacher import (
    WINDOW,
    Demonstration,
    Pairs,
    actions_for,
    clone,
    demonstrated,
)
from parc_ray.errors import InputError
from tests.correction.test_by_mpc import CONFIG
from tests.envs.helpers import stand_clip

QUIET = TeacherConfig(noisy_copies=0, epochs=40, batch=64)


@pytest.fixture(scope="module")
def factory(humanoid):
    return backend_factory("mujoco_cpu", humanoid, SimConfig())


@pytest.fixture(scope="module")
def shown(humanoid, factory):
    clip = stand_clip(humanoid, 21)
    outcome = correct_by_mpc(
        humanoid, factory, clip, CONFIG, PRESETS["quick"](), record_config(CONFIG, 3), 3
    )
    assert outcome.clip is not None
    return Demonstration(source=clip, recording=outcome.clip, start=outcome.start_frame)


def test_actions_ask_for_the_targets(humanoid):
    rng = torch.Generator().manual_seed(0)
    pose = 0.5 * torch.randn(7, humanoid.skeleton.num_dofs, generator=rng)
    targets = pose + 0.2 * torch.randn(pose.shape, generator=rng)
    reference = dof_to_joint_rot(humanoid.skeleton, pose)
    task = TrackingConfig()
    action = actions_for(humanoid, task, targets, reference)
    residual = task.control.residual_scale_rad * action
    asked = compose_residual(humanoid.skeleton, pose, residual)
    assert torch.allclose(asked, targets, atol=1e-4)
    far = actions_for(humanoid, task, pose + 9.0, reference)
    assert far.abs().max() <= task.control.max_action


def test_every_recorded_step_is_a_pair(humanoid, factory, shown):
    pairs = demonstrated(humanoid, factory, [shown, shown], PRESETS["quick"](), QUIET, 0)
    assert len(pairs.obs) == len(pairs.action) == 2 * 20
    assert torch.equal(pairs.obs[:20], pairs.obs[20:])


def test_played_back_the_actions_make_the_recording_again(humanoid, factory, shown):
    """A policy that answers by the number of the step follows the recorded trajectory."""
    task = PRESETS["quick"]()
    pairs = demonstrated(humanoid, factory, [shown], task, QUIET, 0)

    class ByHeart:
        step = 0

        def act(self, obs):
            assert torch.allclose(obs[0], pairs.obs[self.step], atol=2e-3)
            self.step += 1
            return pairs.action[self.step - 1][None]

    runner = EpisodeRunner(humanoid, [shown.source], task, factory, 1)
    try:
        zero = torch.zeros(1, dtype=torch.long)
        run = runner.run(ByHeart(), zero, zero)
    finally:
        runner.close()
    assert bool(run.completed[0])


def test_windows_from_disturbed_states_ask_for_the_recorded_targets(humanoid, factory, shown):
    task = PRESETS["quick"]()
    noisy = replace(QUIET, noisy_copies=2)
    plain = demonstrated(humanoid, factory, [shown], task, QUIET, 0)
    pairs = demonstrated(humanoid, factory, [shown], task, noisy, 0)
    windows = 2 * len(range(0, 20 - WINDOW, WINDOW))
    assert len(pairs.obs) == 20 + windows * WINDOW
    assert torch.equal(pairs.obs[:20], plain.obs)
    beside = pairs.action[20 : 20 + windows]  # the first steps of all windows
    for row, frame in enumerate(list(range(0, 20 - WINDOW, WINDOW)) * 2):
        assert torch.equal(beside[row], plain.action[frame])
        assert not torch.equal(pairs.obs[20 + row], plain.obs[frame])


def test_absolute_targets_cannot_be_taught(humanoid, factory, shown):
    task = replace(PRESETS["quick"](), control=ControlConfig(mode="absolute"))
    with pytest.raises(InputError, match="cannot be taught"):
        demonstrated(humanoid, factory, [shown], task, QUIET, 0)


def test_cloning_recovers_a_linear_teacher():
    rng = torch.Generator().manual_seed(1)
    obs = 3.0 + 2.0 * torch.randn(600, 6, generator=rng)
    action = (obs - 3.0) @ torch.randn(6, 3, generator=rng) / 4.0
    spec = NetSpec(obs_dim=6, action_dim=3, hidden=(32,), activation="silu")
    longer = replace(QUIET, epochs=200, lr=3e-3, ppo_std=0.2)
    policy, figures = clone(Pairs(obs, action), spec, longer, 0)
    assert figures["pairs"] == 600
    assert figures["explained_held"] > 0.95
    assert torch.allclose(policy.normaliser.mean.float(), obs.mean(0), atol=1e-4)
    assert torch.allclose(policy.log_std.exp(), torch.full((3,), 0.2))
    assert policy.critic_state == {}
    again, _ = clone(Pairs(obs, action), spec, longer, 0)
    assert again.digest == policy.digest
    _, before = clone(Pairs(obs, action), spec, replace(QUIET, epochs=1, lr=1e-9), 0)
    assert before["explained_held"] < 0.5
