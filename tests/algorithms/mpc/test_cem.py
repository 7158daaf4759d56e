from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from algorithms.mpc.cem import best, knot_weights, sample_plans, shift, spread
from algorithms.mpc.config import MpcConfig, MpcCostConfig, PolishConfig
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


def test_candidates_keep_the_mean_and_the_limit():
    mean, std = torch.full((7, 3), 0.2), torch.full((4, 3), 5.0)
    plans = sample_plans(mean, std, 64, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(plans[0], mean)
    assert plans.abs().max() <= 0.5
    again = sample_plans(mean, std, 64, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(plans, again)


def test_noise_is_that_of_the_knots_and_smooth_between_them():
    std = torch.tensor([[0.1], [0.4], [0.1]])
    mean = torch.zeros(9, 1)
    plans = sample_plans(mean, std, 4000, 10.0, torch.Generator().manual_seed(0))[1:]
    assert torch.allclose(spread(plans, 3), std, rtol=0.06)
    between = 0.5 * (plans[:, 0] + plans[:, 4])
    assert torch.allclose(plans[:, 2], between, atol=1e-6)


def test_the_cheapest_come_first_and_nan_never_wins():
    cost = torch.tensor([3.0, float("nan"), 1.0, 2.0, torch.inf])
    assert best(cost, 2).tolist() == [2, 3]
    assert best(cost, 3).tolist() == [2, 3, 0]


def test_shift_moves_plans_and_holds_the_end():
    plan = torch.arange(5.0)[:, None]
    assert shift(plan, 2)[:, 0].tolist() == [2.0, 3.0, 4.0, 4.0, 4.0]
    both = shift(torch.stack((plan, -plan)), 2)
    assert both[1, :, 0].tolist() == [-2.0, -3.0, -4.0, -4.0, -4.0]


def test_search_finds_the_minimum_of_a_bowl():
    goal = torch.tensor([[0.3, -0.2], [0.1, 0.4], [-0.3, 0.0]])
    rng = torch.Generator().manual_seed(1)
    mean = torch.zeros_like(goal)
    std = torch.full_like(goal, 0.3)
    for _ in range(15):
        plans = sample_plans(mean, std, 200, 1.0, rng)
        cost = (plans - goal).square().sum((1, 2))
        elites = plans[best(cost, 20)]
        mean, std = elites.mean(dim=0), spread(elites, 3)
    assert torch.allclose(mean, goal, atol=0.02)


def test_config_refuses_out_of_range_values_by_name():
    with pytest.raises(InputError, match=r"mpc\.samples"):
        MpcConfig(samples=1)
    with pytest.raises(InputError, match=r"mpc\.cost\.joint"):
        MpcCostConfig(joint=-1.0)
    assert MpcConfig(samples=100, elite_share=0.1).num_elites == 10
    assert MpcConfig().stronger().execute == 1
    with pytest.raises(InputError, match=r"mpc\.polish\.passes"):
        PolishConfig(passes=-1)


def test_survivors_are_a_share_but_never_fewer_than_the_elites():
    config = MpcConfig(samples=100, elite_share=0.2, prune_at=3, prune_share=0.3)
    assert (config.prunes, config.num_survivors) == (True, 30)
    assert replace(config, prune_share=0.05).num_survivors == 20
    assert replace(config, prune_at=0).num_survivors == 100
    assert not replace(config, prune_at=15, horizon=15).prunes
