from __future__ import annotations

import json

import pytest

from algorithms.diffusion.config import (
    DiffusionConfig,
    LossConfig,
    SamplingConfig,
    TrainConfig,
    config_from_dict,
)
from algorithms.diffusion.profiles import PROFILES, profile
from parc_ray.errors import InputError


@pytest.mark.parametrize("name", PROFILES)
def test_round_trip_through_json(name):
    config = profile(name)
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_published_values():
    upstream, paper = profile("upstream"), profile("paper")
    assert (upstream.diffusion_steps, paper.diffusion_steps) == (21, 1001)
    assert (upstream.loss.penetration, paper.loss.penetration) == (0.0, 15.0)
    assert (upstream.loss.target, paper.loss.target) == (0.0, 0.02)
    assert (upstream.conditioning.ood_chance, paper.conditioning.ood_chance) == (0.0, 0.1)
    assert upstream.loss.score_clean_past
    assert upstream.train.learning_rate == 1e-5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrainConfig(batch_size=0), "train.batch_size"),
        (lambda: SamplingConfig(blend=1.5), "sampling.blend"),
        (lambda: LossConfig(root_pos=-1.0), "loss.root_pos"),
        (lambda: DiffusionConfig(sampling=SamplingConfig(stride=7)), "sampling.stride"),
        (lambda: DiffusionConfig(num_past=15), "num_past"),
        (lambda: profile("hugh"), "tiny"),
        (lambda: config_from_dict({"trian": {}}), "trian"),
        (lambda: config_from_dict({"train": {"step": 3}}), "diffusion.train.step"),
    ],
)
def test_wrong_values_are_named(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_published_profiles_have_none_of_our_devices():
    """PARC's values of every switch that only our small profile turns on."""
    for name in ("paper", "upstream"):
        config = profile(name)
        assert not config.denoiser.past_anchor
        assert config.terrain.near_cells == 0
        cond = config.conditioning
        drift = (cond.drift_height, cond.drift_turn, cond.drift_tilt, cond.drift_joint)
        assert drift == (0.0, 0.0, 0.0, 0.0)
        assert (config.sampling.blend_fade, config.sampling.start) == (0, "noise")
        assert config.train.start_windows == 0
    ours = profile("small")
    assert ours.denoiser.past_anchor
    assert ours.sampling.start == "data"
    assert ours.train.start_windows > 0
