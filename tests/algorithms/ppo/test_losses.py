"""Loss terms against torch.distributions and worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from algorithms.ppo.losses import adapt_lr, bound_loss, entropy, gaussian_kl, log_prob, surrogate


@pytest.fixture
def gaussians():
    g = torch.Generator().manual_seed(0)
    mean_0, mean_1 = torch.randn(2, 11, 4, generator=g)
    log_0, log_1 = 0.3 * torch.randn(2, 4, generator=g)
    return mean_0, log_0, mean_1, log_1


def test_kl_log_prob_and_entropy_agree_with_torch_distributions(gaussians):
    mean_0, log_0, mean_1, log_1 = gaussians
    p = Independent(Normal(mean_0, log_0.exp()), 1)
    q = Independent(Normal(mean_1, log_1.exp()), 1)
    torch.testing.assert_close(gaussian_kl(mean_0, log_0, mean_1, log_1), kl_divergence(p, q))
    action = mean_0 + 0.7
    torch.testing.assert_close(log_prob(mean_1, log_1, action), q.log_prob(action))
    torch.testing.assert_close(entropy(log_0).expand(11), p.entropy())


def test_surrogate_worked_numbers():
    # ratios 2 and 0.5 with clip 0.2: A = 1 takes 1.2; A = -1 takes the worse of -0.5 and -0.8.
    log_ratio = torch.tensor([math.log(2.0), math.log(0.5)])
    advantage = torch.tensor([1.0, -1.0])
    assert float(surrogate(log_ratio, advantage, 0.2)) == pytest.approx(-(1.2 - 0.8) / 2)


def test_surrogate_has_no_gradient_where_clipped():
    log_ratio = torch.tensor([1.0, 0.05], requires_grad=True)
    surrogate(log_ratio, torch.tensor([1.0, 1.0]), 0.2).backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad[0] == 0.0
    assert log_ratio.grad[1] < 0.0


def test_bound_loss_only_counts_what_lies_outside():
    mean = torch.tensor([[0.5, -1.0], [2.0, -1.5]])
    assert float(bound_loss(mean)) == pytest.approx((1.0 + 0.25) / 2)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.3, 1e-3 / 1.5), (0.05, 1e-3 * 1.5), (0.12, 1e-3), (0.0, 1e-3 * 1.5)],
)
def test_learning_rate_moves_towards_the_target(kl, expected):
    assert adapt_lr(1e-3, kl, 0.12, 1e-5, 1e-2) == pytest.approx(expected)


def test_learning_rate_stays_within_its_bounds():
    assert adapt_lr(1.1e-5, 9.0, 0.1, 1e-5, 1e-2) == 1e-5
    assert adapt_lr(9e-3, 0.0, 0.1, 1e-5, 1e-2) == 1e-2
