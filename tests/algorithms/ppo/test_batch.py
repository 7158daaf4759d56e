"""Returns against brute force and worked numbers."""

from __future__ import annotations

import pytest
import torch

from algorithms.ppo.batch import advantages, explained_variance, next_values, td_lambda


def brute_force_return(rewards, follow, done, t, gamma, lam):
    """TD(lambda) as the definition has it: a lambda-weighted mean of all n-step returns.

    n-step return from t: discounted rewards of steps t..t+n-1 plus gamma^n times the value of
    what follows the last of them. The chain stops at the first step that ends the episode or the
    fragment; the last return takes all remaining weight.
    """
    last = t
    while last < len(rewards) - 1 and not done[last]:
        last += 1
    returns = []
    for end in range(t, last + 1):
        discounted = sum(gamma ** (k - t) * rewards[k] for k in range(t, end + 1))
        returns.append(discounted + gamma ** (end - t + 1) * follow[end])
    weights = [(1 - lam) * lam**n for n in range(len(returns) - 1)]
    weights.append(lam ** (len(returns) - 1))
    return sum(w * g for w, g in zip(weights, returns, strict=True))


def random_fragment(steps=13, envs=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(steps, envs, generator=g, dtype=torch.float64)
    values = torch.randn(steps + 1, envs, generator=g, dtype=torch.float64)
    terminated = torch.rand(steps, envs, generator=g) < 0.12
    truncated = torch.rand(steps, envs, generator=g) < 0.12
    done = terminated | truncated
    index = torch.nonzero(done.flatten()).flatten()
    finals = torch.randn(len(index), generator=g, dtype=torch.float64)
    return rewards, values, terminated, truncated, done, index, finals


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_td_lambda_equals_brute_force_with_terminations_and_truncations(lam):
    rewards, values, terminated, truncated, done, index, finals = random_fragment()
    assert (terminated & truncated).any()  # the case where both flags are set is in the data
    follow = next_values(values, terminated, index, finals)
    got = td_lambda(rewards, follow, done, 0.9, lam)
    final_at = dict(zip(index.tolist(), finals.tolist(), strict=True))
    steps, envs = rewards.shape
    for env in range(envs):
        chain = []
        for t in range(steps):
            if terminated[t, env]:
                chain.append(0.0)
            elif truncated[t, env]:
                chain.append(final_at[t * envs + env])
            else:
                chain.append(float(values[t + 1, env]))
        column = rewards[:, env].tolist()
        for t in range(steps):
            want = brute_force_return(column, chain, done[:, env].tolist(), t, 0.9, lam)
            assert float(got[t, env]) == pytest.approx(want, abs=1e-12)


def test_advantages_plus_values_are_the_td_lambda_returns():
    rewards, values, terminated, _, done, index, finals = random_fragment(seed=3)
    follow = next_values(values, terminated, index, finals)
    adv = advantages(rewards, values, follow, done, 0.97, 0.95)
    returns = td_lambda(rewards, follow, done, 0.97, 0.95)
    torch.testing.assert_close(adv + values[:-1], returns, atol=1e-12, rtol=0)


def test_worked_numbers():
    # gamma 0.5, lambda 0.5. Step 0 runs on, step 1 is truncated with final value 8, step 2 fails.
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    values = torch.tensor([[10.0], [4.0], [6.0], [100.0]])
    terminated = torch.tensor([[False], [False], [True]])
    done = torch.tensor([[False], [True], [True]])
    index, finals = torch.tensor([1, 2]), torch.tensor([8.0, 77.0])
    follow = next_values(values, terminated, index, finals)
    assert follow.flatten().tolist() == [4.0, 8.0, 0.0]
    # G2 = 3; G1 = 2 + .5*8 = 6; G0 = 1 + .5*(.5*4 + .5*6) = 3.5
    returns = td_lambda(rewards, follow, done, 0.5, 0.5)
    assert returns.flatten().tolist() == [3.5, 6.0, 3.0]
    adv = advantages(rewards, values, follow, done, 0.5, 0.5)
    assert adv.flatten().tolist() == [-6.5, 2.0, -3.0]


def test_bounds_clamp_bootstraps_but_not_failures():
    values = torch.tensor([[0.0, 0.0], [500.0, -3.0]])
    terminated = torch.tensor([[False, True]])
    empty = torch.zeros(0, dtype=torch.long)
    follow = next_values(values, terminated, empty, torch.zeros(0), bounds=(1.0, 100.0))
    assert follow.tolist() == [[100.0, 0.0]]


def test_next_values_leaves_its_input_alone():
    values = torch.arange(6.0).reshape(3, 2)
    before = values.clone()
    terminated = torch.tensor([[True, False], [False, False]])
    next_values(values, terminated, torch.tensor([1]), torch.tensor([9.0]))
    assert torch.equal(values, before)


def test_explained_variance_is_one_for_perfect_and_zero_for_constant_values():
    returns = torch.randn(50, generator=torch.Generator().manual_seed(1))
    assert float(explained_variance(returns, returns)) == pytest.approx(1.0)
    assert float(explained_variance(torch.zeros(50), returns)) == pytest.approx(0.0, abs=1e-6)
