"""The learner's dump, and a fragment of the real environment sampled once more from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from pyarrow import fs

from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.learner import TensorPPOLearner
from algorithms.ppo.nan_guard import replay_fragment, replay_update
from algorithms.ppo.rollout import Sampler
from algorithms.ppo.sizes import EnvSizes
from algorithms.ppo.update import Updater, make_optimiser
from envs.tracking import config as tasks
from envs.tracking.env import VectorTrackingEnv
from parc_ray.data.storage import Storage
from tests.algorithms.ppo.test_rollout import make_module
from tests.envs.helpers import sway_clip


def test_a_fragment_of_the_tracking_environment_is_replayed_bit_for_bit(humanoid, tmp_path):
    def make_env(seed: int) -> VectorTrackingEnv:
        return VectorTrackingEnv(humanoid, [sway_clip(humanoid, 30)], 4, tasks.base(), seed=seed)

    env = make_env(1)
    knobs = TrackerConfig(num_envs=4, horizon=8, hidden=(16,), minibatch=16, encoders="shared")
    config = EnvSizes.of(env).apply(knobs)
    module = make_module(config, env.obs_dim, env.action_dim)
    updater = Updater(module, make_optimiser(module, config), config)
    sampler = Sampler(env, config.horizon, 5, torch.device("cpu"))
    sampler.run(module)
    rollout, _ = sampler.run(module)
    learner: Any = SimpleNamespace(
        config=SimpleNamespace(learner_config_dict={"dump_dir": str(tmp_path)}),
        updater=updater,
        sampler=sampler,
        runner=None,
        _learner_index=0,
    )
    state = {k: v.clone() for k, v in module.state_dict().items()}
    path = Path(TensorPPOLearner._dump(learner, rollout, state))
    assert path.name == "nan_rank0_it000000.pt"
    assert replay_update(path) == []
    assert replay_fragment(path, make_env(2)) == []
    # On an object store it is sent from the learner's node, and named as it is called there.
    remote = Storage(filesystem=fs._MockFileSystem(), root="bucket/run")
    learner.config.learner_config_dict["dump_dir"] = remote
    said = TensorPPOLearner._dump(learner, rollout, state)
    assert said == "mock://bucket/run/nan_rank0_it000000.pt"
    with remote.fetched(path.name) as copy:
        assert replay_update(copy) == []
