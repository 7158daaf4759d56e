"""Normaliser statistics, block encoders, specs."""

from __future__ import annotations

import json

import pytest
import torch

from algorithms.ppo.config import ObsBlock
from algorithms.ppo.networks import Head, Mlp, NetSpec, ObsNormaliser
from parc_ray.errors import InputError


def data(rows, seed=0, dim=3):
    g = torch.Generator().manual_seed(seed)
    return torch.tensor([1000.0, -2.0, 0.0]) + torch.tensor([5.0, 0.1, 3.0]) * torch.randn(
        rows, dim, generator=g
    )


def test_batches_merge_into_the_statistics_of_all_samples():
    parts = [data(500, 0), data(37, 1), data(2000, 2)]
    normaliser = ObsNormaliser(3)
    for part in parts:
        normaliser.merge(normaliser.sums(part))
    everything = torch.cat(parts).double()
    torch.testing.assert_close(normaliser.mean, everything.mean(0), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(normaliser.var, everything.var(0, unbiased=False), rtol=1e-4, atol=0)
    assert float(normaliser.count) == 2537


def test_sums_of_two_processes_add_up():
    one, two, both = ObsNormaliser(3), ObsNormaliser(3), ObsNormaliser(3)
    for n in (one, two, both):
        n.merge(n.sums(data(100, 9)))
    a, b = data(64, 1), data(64, 2)
    total = one.sums(a) + two.sums(b)
    one.merge(total)
    both.merge(both.sums(torch.cat([a, b])))
    torch.testing.assert_close(one.mean, both.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.var, both.var, rtol=1e-6, atol=0)


def test_memory_lets_old_samples_fade():
    normaliser = ObsNormaliser(1)
    normaliser.merge(normaliser.sums(torch.zeros(1000, 1)))
    normaliser.merge(normaliser.sums(torch.ones(100, 1)), memory=100.0)
    assert float(normaliser.mean) == pytest.approx(0.5)
    assert float(normaliser.count) == 200.0


def test_output_is_standard_clipped_and_skips_what_it_should():
    normaliser = ObsNormaliser(3, skip=((1, 2),), clip=2.0)
    batch = data(4000)
    normaliser.merge(normaliser.sums(batch))
    out = normaliser(batch)
    assert torch.equal(out[:, 1], batch[:, 1])
    assert float(out[:, 0].mean()) == pytest.approx(0.0, abs=0.01)
    assert float(out[:, 0].abs().max()) == 2.0
    huge = torch.tensor([[0.0, 77.0, 0.0]])
    assert float(normaliser(huge)[0, 1]) == 77.0


def test_statistics_travel_in_the_state_dict():
    one, two = ObsNormaliser(3), ObsNormaliser(3)
    one.merge(one.sums(data(100)))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(data(5, 3)), two(data(5, 3)))


def test_prefix_of_an_observation_is_normalised_alike():
    normaliser = ObsNormaliser(3)
    normaliser.merge(normaliser.sums(data(100)))
    batch = data(4, 5)
    assert torch.equal(normaliser(batch)[:, :2], normaliser(batch[:, :2]))


def spec(**changes):
    values = {"obs_dim": 12, "action_dim": 2, "hidden": (8, 8), "activation": "silu"}
    return NetSpec(**(values | changes))


def test_blocks_share_one_encoder():
    block = ObsBlock(start=3, width=2, count=4, hidden=(5,))
    head = Head(spec(blocks=(block,)), 12, 2)
    assert head.trunk.layers[0].in_features == 12 - 8 + 4 * 5
    x = torch.randn(6, 12)
    swapped = x.clone()
    swapped[:, 3:5], swapped[:, 5:7] = x[:, 5:7], x[:, 3:5]
    codes, codes_swapped = head._encode(x), head._encode(swapped)
    torch.testing.assert_close(codes[:, 4:9], codes_swapped[:, 9:14])
    torch.testing.assert_close(codes[:, :4], x[:, [0, 1, 2, 11]])


def test_bf16_keeps_a_float32_output_close_to_the_exact_one():
    head = Head(spec(), 12, 2)
    x = torch.randn(64, 12)
    low = head(x, bf16=True)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, head(x), atol=0.03, rtol=0.03)


def test_residual_mlp_is_the_identity_plus_the_layer():
    mlp = Mlp(4, (4, 4), "relu", residual=True)
    for layer in mlp.layers:
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    x = torch.randn(3, 4)
    assert torch.equal(mlp(x), x)


def test_spec_survives_json():
    original = spec(
        blocks=(ObsBlock(start=0, width=2, count=2, hidden=(3,)),),
        privileged_dims=2,
        normaliser_skip=((1, 4),),
    )
    assert NetSpec.from_dict(json.loads(json.dumps(original.to_dict()))) == original


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": (ObsBlock(start=8, width=3, count=2, hidden=(4,)),)},
        {"privileged_dims": 12},
        {"normaliser_skip": ((3, 13),)},
    ],
)
def test_spec_refuses_what_does_not_fit(changes):
    with pytest.raises(InputError):
        spec(**changes)
