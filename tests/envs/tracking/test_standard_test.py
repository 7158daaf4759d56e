"""The standard test told by class and by terrain difficulty."""

from __future__ import annotations

import pytest
import torch

from envs.sims.registry import backend_factory
from envs.tracking import config as presets
from envs.tracking.rollouts import EpisodeRunner
from envs.tracking.standard_test import (
    EPISODES,
    LEVELS,
    difficulty_of,
    level_of,
    standard_test,
)
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import stand_clip, sway_clip


@pytest.fixture(scope="module")
def clips(humanoid):
    """Standing and a short wild motion on level ground, standing before a wall."""
    heights = torch.zeros(24, 24)
    heights[14:, :] = 1.2
    walled = stand_clip(humanoid, 21, "walled")
    walled.terrain = Heightfield(heights=heights, origin=torch.tensor([-4.6, -4.6]))
    wild = sway_clip(humanoid, 31, "wild", amplitude=1.4)
    return [stand_clip(humanoid, 21), wild, walled]


def test_rows_are_means_over_the_episodes_of_their_clips(humanoid, clips):
    factory = backend_factory("mujoco_cpu", humanoid)
    runner = EpisodeRunner(humanoid, clips, presets.base(), factory, 6)
    test = standard_test(runner, None, episodes=2)
    runner.close()
    rows = {(row["by"], row["group"]): row for row in test.rows()}
    assert set(rows) == {
        ("all", "all"),
        ("class", "stand"),
        ("class", "sway"),
        ("terrain", "level"),
        ("terrain", level_of(difficulty_of(clips[2]))),
    }
    stand = rows["class", "stand"]
    assert (stand["clips"], stand["episodes"]) == (2.0, 4.0)
    mine = test.first.clip != 1
    assert stand["completed_from_start"] == float(test.first.completed[mine].float().mean())
    everything = rows["all", "all"]
    assert everything["episodes"] == 6.0
    mean = float(test.first.errors[:, 1].nanmean())
    assert everything["body_error_global_m"] == pytest.approx(mean, rel=1e-5)
    assert rows["terrain", "level"]["difficulty"] == 0.0
    assert rows["terrain", "level"]["clips"] == 2.0


def test_levels_rise_with_the_measure(clips):
    assert difficulty_of(clips[0]) == 0.0
    assert difficulty_of(clips[2]) > 0.1
    names = [level_of(value) for value in (0.0, 0.1, 0.3, 2.0)]
    assert names == [name for name, _ in LEVELS]


def test_the_definition_is_fixed(humanoid, clips):
    """64 episodes, 5 cm, 0.05: what published figures of this project mean."""
    from envs.tracking.rollouts import STANDARD_NOISE

    assert EPISODES == 64
    assert (STANDARD_NOISE.pos, STANDARD_NOISE.vel, STANDARD_NOISE.shift) == (0.05, 0.05, 0.0)
