from __future__ import annotations

import pytest
import torch

from algorithms.mpc.cem import elite_statistics, knot_weights, sample_knots, shift_knots
from algorithms.mpc.config import MpcConfig, MpcCostConfig
from parc_ray.errors import InputError


def test_knot_weights_worked_numbers():
    weights = knot_weights(3, 5)
    expected = torch.tensor(
        [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]], dtype=torch.float32
    )
    assert torch.allclose(weights, expected)


@pytest.mark.parametrize(("knots", "horizon"), [(2, 2), (5, 15), (4, 7), (6, 6)])
def test_knot_weights_reproduce_lines(knots, horizon):
    line = torch.linspace(-1.0, 2.0, knots)[:, None]
    plan = knot_weights(knots, horizon) @ line
    assert torch.allclose(plan[:, 0], torch.linspace(-1.0, 2.0, horizon), atol=1e-6)


def test_sample_knots_keeps_the_mean_and_the_limit():
    rng = torch.Generator().manual_seed(0)
    mean = torch.full((5, 3), 0.2)
    knots = sample_knots(mean, torch.full_like(mean, 5.0), 64, 0.5, rng)
    assert torch.equal(knots[0], mean)
    assert knots.abs().max() <= 0.5
    again = sample_knots(
        mean, torch.full_like(mean, 5.0), 64, 0.5, torch.Generator().manual_seed(0)
    )
    assert torch.equal(knots, again)


def test_elites_are_the_cheapest_and_nan_never_wins():
    knots = torch.arange(4.0).reshape(4, 1, 1)
    cost = torch.tensor([3.0, float("nan"), 1.0, 2.0])
    mean, std = elite_statistics(knots, cost, 2)
    assert mean.item() == pytest.approx(2.5)
    assert std.item() == pytest.approx(0.5)


def test_shift_moves_a_ramp_and_holds_the_end():
    mean = torch.linspace(0.0, 4.0, 5)[:, None]
    shifted = shift_knots(mean, horizon=5, steps=2)
    assert shifted[:, 0].tolist() == [2.0, 3.0, 4.0, 4.0, 4.0]


def test_search_finds_the_minimum_of_a_bowl():
    goal = torch.tensor([[0.3, -0.2], [0.1, 0.4], [-0.3, 0.0]])
    rng = torch.Generator().manual_seed(1)
    mean = torch.zeros_like(goal)
    std = torch.full_like(goal, 0.3)
    for _ in range(15):
        knots = sample_knots(mean, std, 200, 1.0, rng)
        cost = (knots - goal).square().sum((1, 2))
        mean, std = elite_statistics(knots, cost, 20)
    assert torch.allclose(mean, goal, atol=0.02)


def test_config_refuses_out_of_range_values_by_name():
    with pytest.raises(InputError, match=r"mpc\.samples"):
        MpcConfig(samples=1)
    with pytest.raises(InputError, match=r"mpc\.cost\.joint"):
        MpcCostConfig(joint=-1.0)
    assert MpcConfig(samples=100, elite_share=0.1).num_elites == 10
    assert MpcConfig().stronger().execute == 1
