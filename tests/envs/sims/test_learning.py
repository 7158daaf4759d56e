"""The tracker learns through Isaac Gym's bridge, and in Warp, by the same code as on the CPU.

The task is small on purpose: a table that stands, and a wheel on it that has to be turned to an
angle which the policy is not told as a target (control mode ``absolute``).
"""

from __future__ import annotations

import logging
import os
import signal
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from ray.tune.registry import register_env

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.train import train_tracker
from envs.sims import isaacgym
from envs.tracking.config import ControlConfig, RewardConfig, TrackingConfig
from envs.tracking.creator import ENV_NAME, make_tracking_env
from parc_ray.character.character import load_character
from tests.envs.helpers import stand_clip
from tests.envs.sims.scenes import STOOL, quick_kernels
from tests.isaacgym_standin import standin

CONFIG = TrackerConfig(
    num_envs=16, horizon=16, minibatch=32, hidden=(32,), lr=5e-3, lr_max=1e-2, gamma=0.9
)
TASK = TrackingConfig(
    control=ControlConfig(mode="absolute"),
    reward=RewardConfig(
        pose=1.0, vel=0.0, root=0.0, root_vel=0.0, key=0.0, contact=0.0, pose_scale=2.0
    ),
)
PLACES = {"mujoco_cpu": nullcontext, "isaacgym": standin, "mujoco_warp": quick_kernels}
ITERATIONS = 16


def train(simulator, folder, iterations, after=lambda iteration: None, **changes):
    """Rewards per step of all iterations, in order, and the result."""
    character = load_character(STOOL)
    clip = stand_clip(character)
    clip.frames.dof[:, character.skeleton.dof_names.index("axle")] = 1.0
    register_env(ENV_NAME, make_tracking_env)
    options = {"character": character, "clips": [clip], "tracking": TASK, "simulator": simulator}
    rewards = []

    def seen(iteration, metrics):
        rewards.append((iteration, metrics["reward_per_step"]))
        after(iteration)

    config = CONFIG.replace(samples=iterations * CONFIG.samples_per_iteration, **changes)
    with PLACES[simulator]():
        result = train_tracker(config, ENV_NAME, options, folder, on_iteration=seen)
    return rewards, result


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    "simulator",
    ["isaacgym", "mujoco_cpu", pytest.param("mujoco_warp", marks=pytest.mark.long)],
)
def test_mean_return_improves(simulator, tmp_path):
    torch.manual_seed(0)
    rewards, _ = train(simulator, tmp_path, ITERATIONS)
    values = [reward for _, reward in rewards]
    assert len(values) == ITERATIONS
    assert np.mean(values[-3:]) > 1.4 * np.mean(values[:3])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_training_goes_on_when_the_server_is_killed(tmp_path, monkeypatch, caplog):
    servers = []

    class Watched(isaacgym.Bridge):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            servers.append(self.process.pid)

    def kill(iteration):
        if iteration == 3 and len(servers) == 2:  # the first was asked for the sizes
            os.kill(servers[-1], signal.SIGKILL)

    monkeypatch.setattr(isaacgym, "Bridge", Watched)
    with caplog.at_level(logging.WARNING):
        rewards, result = train("isaacgym", tmp_path, 5, kill, checkpoint_every=2)
    assert len(servers) == 3
    assert [iteration for iteration, _ in rewards] == [1, 2, 3, 3, 4, 5]
    assert (result.iterations, result.resumed_from) == (5, 2)
    assert str(servers[1]) in caplog.text
    assert "simulator was lost" in caplog.text
