"""Ranges, presets and PARC's figures."""

from __future__ import annotations

import dataclasses

import pytest

from algorithms.ppo.config import PRESETS, TrackerConfig, upstream
from parc_ray.errors import InputError


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_build(name):
    config = PRESETS[name]()
    assert config.samples_per_iteration == config.num_envs * config.horizon


def test_upstream_holds_the_published_numbers():
    c = upstream()
    assert c.samples_per_iteration == 65_536
    assert round(c.samples_per_iteration / c.minibatch) * c.epochs == 40  # updates per iteration
    assert (c.gamma, c.lam, c.clip, c.lr, c.momentum) == (0.99, 0.95, 0.2, 5e-5, 0.9)
    assert c.hidden == (2048, 1024, 512)
    assert c.value_bounds == pytest.approx((0.0, 100.0))
    assert c.reward_scale == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"gamma": 1.0},
        {"gamma": 0.0},
        {"lam": 1.1},
        {"clip": 0.0},
        {"num_envs": 0},
        {"hidden": ()},
        {"lr": 1.0},
        {"init_std": 2.0},
        {"kl_target": -0.1},
        {"value_bounds": (1.0, 0.0)},
        {"normaliser_skip": ((4, 2),)},
        {"placement": "split"},
        {"placement": "colocated"},
        {"num_runners": 2},
        {"placement": "split", "num_runners": 1, "num_learners": 3},
        {"warm_std": 0.0},
    ],
)
def test_values_out_of_range_name_the_field(changes):
    with pytest.raises(InputError, match="TrackerConfig"):
        TrackerConfig(**changes)


def test_batch_of_an_iteration_counts_every_simulator():
    assert TrackerConfig(num_envs=8, horizon=4).samples_per_iteration == 32
    split = TrackerConfig(num_envs=8, horizon=4, placement="split", num_runners=3)
    assert split.samples_per_iteration == 96
    both = TrackerConfig(num_envs=8, horizon=4, placement="colocated", num_learners=2)
    assert both.samples_per_iteration == 64


def test_every_field_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrackerConfig().gamma = 0.5  # pyright: ignore
