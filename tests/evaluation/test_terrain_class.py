"""Classes of the ground under a path."""

from __future__ import annotations

import math

import pytest
import torch

from parc_ray.evaluation.terrain_class import (
    CLASSES,
    class_shares,
    classify_clip,
    classify_line,
    coverage,
)
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import sway_clip


def ground(*heights: float) -> Heightfield:
    """Strips of two cells, 0.8 m, along x."""
    row = torch.tensor([h for h in heights for _ in range(2)])
    return Heightfield(heights=row[:, None].expand(-1, 5).clone(), origin=torch.zeros(2))


def along(terrain: Heightfield) -> torch.Tensor:
    length = 0.4 * (terrain.heights.shape[0] - 1)
    return torch.tensor([[0.0, 0.8], [length, 0.8]])


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ((0.0, 0.0, 0.0), "level"),
        ((0.0, 0.09, 0.0), "level"),
        ((0.0, 0.1, 0.2), "step"),
        ((0.0, 0.3, 0.0), "step"),
        ((0.5, 0.5, 0.1), "drop"),
        ((0.0, 0.5, 0.5), "climb"),
        ((0.0, 0.5, 0.0), "climb"),
        ((0.0, -0.5, 0.0), "gap"),
        ((1.0, 0.0, 0.5), "gap"),
        ((1.0, 0.0, 0.3), "drop"),
        ((0.0, -0.5, -0.5, -0.5, -0.5, 0.0), "climb"),
    ],
)
def test_the_hardest_thing_names_the_class(heights, expected):
    terrain = ground(*heights)
    assert classify_line(terrain, along(terrain)) == expected


def test_only_the_ground_under_the_line_counts():
    terrain = ground(0.0, 0.0, 0.0)
    terrain.heights[:, 4] = 2.0
    assert classify_line(terrain, along(terrain)) == "level"
    assert classify_line(terrain, torch.tensor([[0.0, 0.0], [0.0, 1.6]])) == "climb"
    assert classify_line(terrain, torch.tensor([[0.3, 0.3]])) == "level"


def test_a_clip_is_classed_by_its_path_or_else_by_its_root(humanoid):
    clip = sway_clip(humanoid, 61, speed=0.8, terrain=ground(0.0, 0.5, 0.5), origin=(0.0, 0.8))
    assert classify_clip(clip) == "climb"
    clip.path_nodes = torch.tensor([[1.2, 0.8, 0.5], [2.0, 0.8, 0.5]])
    assert classify_clip(clip) == "level"


def test_shares_and_coverage():
    shares = class_shares(["level", "gap", "level", "level"])
    assert list(shares) == list(CLASSES)
    assert shares["level"] == 0.75
    assert sum(shares.values()) == 1.0
    assert set(class_shares([]).values()) == {0.0}
    assert coverage(["level", "gap", "gap", "step"], [True, False, True, False]) == 2 / 3
    assert math.isnan(coverage([], []))
