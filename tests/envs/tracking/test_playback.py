"""Reference playback on real clips, and a short training on a made one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ray.tune.registry import register_env

from algorithms.ppo.algorithm import TensorPPO
from algorithms.ppo.algorithm_config import TensorPPOConfig
from algorithms.ppo.config import TrackerConfig
from algorithms.ppo.sizes import EnvSizes
from envs.sims.registry import backend_factory
from envs.tracking import config as presets
from envs.tracking.config import ControlConfig
from envs.tracking.creator import ENV_NAME, make_tracking_env
from envs.tracking.rollouts import EpisodeRunner
from parc_ray.character.character import load_character
from parc_ray.config import DataConfig
from parc_ray.tools.import_data import load_source
from tests.envs.helpers import WADDLER, sway_clip


def mean_life(character, clips, config) -> float:
    """Seconds survived without feedback, mean over two noisy starts per clip at frame 0."""
    factory = backend_factory("mujoco_cpu", character)
    runner = EpisodeRunner(character, clips, config, factory, 2 * len(clips))
    steps = runner.run_from_start(None, 2, seed=3).steps
    runner.close()
    return float(steps.float().mean()) / 30.0


@pytest.mark.slow
def test_playing_the_reference_beats_zero_actions(shared_data, humanoid):
    """Under PARC's terminations; zero actions of the absolute mode are its T-pose."""
    clips = []
    for take in ("run30", "stairs03"):
        path = shared_data / "parc_clips" / f"humanoid_{take}.pkl"
        clips += load_source(DataConfig(path=str(path)), humanoid)[0]
    playback = presets.upstream()
    reference = mean_life(humanoid, clips, replace(playback, control=ControlConfig()))
    zero = mean_life(humanoid, clips, playback)
    assert reference > zero
    assert 0.2 < reference < 2.0  # no tracker either


@pytest.mark.slow
@pytest.mark.parametrize("which", ["humanoid", "waddler"])
def test_a_short_training_tells_all_its_scalars(ray_session, humanoid, which):
    """One flat clip; the same task and PPO for both characters, `base` with its encoders."""
    character = humanoid if which == "humanoid" else load_character(WADDLER)
    clip = sway_clip(character, 46, amplitude=0.3, speed=0.3)
    register_env(ENV_NAME, make_tracking_env)
    env_config = {"character": character, "clips": [clip], "tracking": presets.base()}
    knobs = TrackerConfig(
        num_envs=128,
        minibatch=1024,
        hidden=(128, 64),
        encoders="shared",
        frame_encoder=(32, 16),
        height_encoder=(32, 16),
        kl_target=0.06,
        lr_control="iteration",
    )
    sizes = EnvSizes.probe(ENV_NAME, env_config)
    dims = (sizes.obs_dim, sizes.action_dim)
    algorithm = TensorPPOConfig.from_tracker(
        sizes.apply(knobs), ENV_NAME, env_config, *dims
    ).build_algo()
    assert isinstance(algorithm, TensorPPO)
    before = algorithm.export_policy()
    for _ in range(3):
        metrics = algorithm.train()["tracker"]
        assert all(torch.isfinite(torch.tensor(v)) for v in metrics.values())
    after = algorithm.export_policy()
    algorithm.stop()
    names = ("pose", "vel", "root", "root_vel", "key", "contact", "action_rate", "power", "total")
    assert {f"step/reward/{name}" for name in names} <= set(metrics)
    reasons = ("body", "root_pos", "root_rot", "diverged", "clip_end", "time_limit")
    assert {f"step/end/{name}_count" for name in reasons} <= set(metrics)
    assert {"env/fail_rate/clip/sway", "env/fail_rate/class/sway"} <= set(metrics)
    obs = torch.randn(4, sizes.obs_dim)
    assert not torch.equal(before.act(obs), after.act(obs))
