from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.config import DenoiserConfig
from algorithms.diffusion.denoiser import Denoiser, EncoderLayer, insert_past, sinusoid_table
from algorithms.diffusion.profiles import profile, tiny
from parc_ray.errors import InputError
from parc_ray.motion.features import FeatureLayout

FEATURES = 91


def conditions(config, n=4) -> Conditions:
    yes = torch.ones(n, dtype=torch.bool)
    heights = torch.randn(n, *config.grid.shape)
    return Conditions(heights, torch.randn(n, 2), yes, yes, yes, yes)


def build(config=None) -> Denoiser:
    config = config or tiny()
    return Denoiser(config, FEATURES, config.grid.shape).eval()


@pytest.mark.parametrize(
    ("name", "count", "tokens"),
    [("upstream", 2_177_307, 64), ("paper", 43_073_051, 64), ("base", None, 25)],
)
def test_sizes(humanoid, name, count, tokens):
    """Parameter counts of the published networks."""
    config = profile(name)
    net = Denoiser(config, FeatureLayout(humanoid.skeleton).size, config.grid.shape)
    assert net.terrain.num_tokens == tokens
    assert net.position.shape[0] == tokens + 18
    if count:
        assert sum(p.numel() for p in net.parameters()) == count


def test_layer_equals_the_library_layer():
    """Oracle: torch's own post-norm layer with the same weights and key mask."""
    config = DenoiserConfig(width=32, heads=4, feedforward=48, dropout=0.0, attention_dropout=0.0)
    ours = EncoderLayer(config)
    theirs = nn.TransformerEncoderLayer(32, 4, 48, 0.0, activation="gelu", batch_first=True)
    attention = {"in_proj_weight": ours.in_proj.weight, "in_proj_bias": ours.in_proj.bias}
    attention |= {f"out_proj.{k}": v for k, v in ours.out_proj.state_dict().items()}
    state = {f"self_attn.{k}": v for k, v in attention.items()}
    for part in ("linear1", "linear2", "norm1", "norm2"):
        state |= {f"{part}.{k}": v for k, v in getattr(ours, part).state_dict().items()}
    theirs.load_state_dict(state)
    x, visible = torch.randn(3, 9, 32), torch.rand(3, 9) > 0.3
    visible[:, 0] = True
    expected = theirs(x, src_key_padding_mask=~visible)
    mask = visible[:, None, None, :]
    torch.testing.assert_close(ours(x, mask), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours(x, mask, last=4), expected[:, -4:], rtol=1e-4, atol=1e-5)


def test_sinusoids():
    table = sinusoid_table(5, 4)
    expected = [torch.sin(torch.tensor(3.0)), torch.cos(torch.tensor(3.0))]
    torch.testing.assert_close(table[3, :2], torch.stack(expected))
    torch.testing.assert_close(table[3, 2], torch.sin(torch.tensor(0.03)))


def test_patches_are_row_major_over_x_then_y():
    """A height in one corner of the grid changes only the tokens that can see it."""
    net = build().terrain
    flat = torch.zeros(1, 31, 31)
    bump = flat.clone()
    bump[0, 0, -1] = 1.0
    changed = (net(flat) - net(bump)).abs().amax(dim=-1)[0] > 0
    assert changed.nonzero().flatten().tolist() == [2]


def test_grid_that_does_not_divide_into_patches_is_refused():
    config = tiny()
    terrain = dataclasses.replace(config.terrain, patch=5)
    with pytest.raises(InputError, match=r"terrain\.patch"):
        Denoiser(dataclasses.replace(config, terrain=terrain), FEATURES, (31, 31))


def test_masked_past_cannot_be_read():
    """Neither values nor gradients pass from hidden past frames to the others."""
    config = tiny()
    net, cond = build(config), conditions(config)
    hidden = dataclasses.replace(cond, past_visible=torch.zeros(4, dtype=torch.bool))
    x = torch.randn(4, config.num_frames, FEATURES, requires_grad=True)
    t = torch.full((4,), 3)
    (gradient,) = torch.autograd.grad(net(x, t, hidden)[:, 2:].square().sum(), x)
    assert gradient[:, :2].abs().max() == 0
    assert gradient[:, 2:].abs().max() > 0
    (gradient,) = torch.autograd.grad(net(x, t, cond)[:, 2:].square().sum(), x)
    assert gradient[:, :2].abs().max() > 0


@pytest.mark.parametrize("name", ["heights", "target"])
def test_withheld_conditions_do_not_matter(name):
    config = tiny()
    net, cond = build(config), conditions(config)
    x, t = torch.randn(4, config.num_frames, FEATURES), torch.full((4,), 3)
    other = dataclasses.replace(cond, **{name: getattr(cond, name) + 1.0})
    assert not torch.equal(net(x, t, cond), net(x, t, other))
    flag = {"heights": "terrain_visible", "target": "target_visible"}[name]
    off = {flag: torch.zeros(4, dtype=torch.bool)}
    first = net(x, t, dataclasses.replace(cond, **off))
    second = net(x, t, dataclasses.replace(other, **off))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_indicator_matters_and_inputs_stay():
    config = tiny()
    net, cond = build(config), conditions(config)
    x, t = torch.randn(4, config.num_frames, FEATURES), torch.full((4,), 3)
    before = x.clone()
    noised = dataclasses.replace(cond, clean_past=torch.zeros(4, dtype=torch.bool))
    assert not torch.equal(net(x, t, cond), net(x, t, noised))
    assert torch.equal(x, before)


def test_insert_past_copies():
    x, past = torch.zeros(2, 5, 3), torch.ones(2, 2, 3)
    out = insert_past(x, past, torch.tensor([True, False]))
    assert out.sum(dim=(1, 2)).tolist() == [6.0, 0.0]
    assert x.abs().sum() == 0


def test_every_parameter_is_trained():
    config = tiny()
    net, cond = build(config), conditions(config)
    x, t = torch.randn(4, config.num_frames, FEATURES), torch.full((4,), 3)
    half = torch.tensor([True, True, False, False])
    net(x, t, dataclasses.replace(cond, clean_past=half)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0 or name.endswith("in_proj.bias"), name


def test_near_heights_reach_the_frames_unless_withheld():
    """The short way reads the points around the root only, and is closed with the terrain."""
    config = tiny()
    config = dataclasses.replace(
        config, terrain=dataclasses.replace(config.terrain, near_cells=2, near_scale=0.5)
    )
    net, cond = build(config), conditions(config)
    i, j = config.grid.root_cell
    heights = cond.heights.clone().requires_grad_()
    near = net.encode(dataclasses.replace(cond, heights=heights)).near
    assert near is not None
    (gradient,) = torch.autograd.grad(near.square().sum(), heights)
    inside = torch.zeros_like(gradient[0], dtype=torch.bool)
    inside[i - 2 : i + 3, j - 2 : j + 3] = True
    assert gradient[:, ~inside].abs().max() == 0
    assert bool((gradient[:, inside].abs().amax(0) > 0).all())
    hidden = dataclasses.replace(cond, terrain_visible=torch.zeros(4, dtype=torch.bool))
    other = dataclasses.replace(hidden, heights=cond.heights + 0.1)
    x, t = torch.randn(4, config.num_frames, FEATURES), torch.full((4,), 3)
    with torch.no_grad():
        assert torch.equal(net(x, t, hidden), net(x, t, other))
        assert not torch.equal(net(x, t, cond), net(x, t, hidden))
        assert net.encode(cond).repeat(2).near.shape == (8, config.denoiser.width)
    with pytest.raises(InputError, match="near_cells"):
        dataclasses.replace(config, terrain=dataclasses.replace(config.terrain, near_cells=11))
