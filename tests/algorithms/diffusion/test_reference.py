"""The fast network and sampler against a slow reference of PyTorch's own layers."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.config import DenoiserConfig
from algorithms.diffusion.denoiser import Denoiser, insert_past
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.sampler import (
    few_step_levels,
    predict_blended,
    sample_few_step,
    sample_windows,
)
from algorithms.diffusion.schedule import NoiseSchedule
from benchmarks.reference_denoiser import ReferenceDenoiser, sample_reference

N, FEATURES = 5, 20


@pytest.fixture(params=[1, 3], ids=["one layer", "three layers"])
def parts(request):
    """Both networks with weights that are not small, and inputs with some conditions withheld."""
    config = tiny()
    net = DenoiserConfig(width=32, heads=4, layers=request.param, feedforward=48, frame_hidden=32)
    config = dataclasses.replace(config, denoiser=net)
    fast = Denoiser(config, FEATURES, config.grid.shape).eval()
    for name, value in fast.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(value, std=0.2)
    slow = ReferenceDenoiser(fast, config).eval()
    yes = torch.ones(N, dtype=torch.bool)
    some = torch.tensor([True, True, False, True, True])
    other = torch.tensor([True, True, True, False, True])
    heights = torch.randn(N, *config.grid.shape)
    cond = Conditions(heights, torch.randn(N, 2), yes, yes, some, other)
    past, noise = torch.randn(N, 2, FEATURES), torch.randn(N, config.num_frames, FEATURES)
    return config, fast, slow, cond, past, noise


@torch.no_grad()
def test_one_evaluation(parts):
    _, fast, slow, cond, _, x = parts
    t = torch.tensor([0, 3, 5, 8, 10])
    mixed = dataclasses.replace(
        cond,
        clean_past=torch.tensor([True, False, True, False, True]),
        past_visible=torch.tensor([True, True, False, False, True]),
    )
    torch.testing.assert_close(fast(x, t, mixed), slow(x, t, mixed), rtol=0, atol=1e-5)


@pytest.mark.parametrize("s", [0.0, 0.65, 1.0])
def test_windows(parts, s):
    """The workspace, batched branches and skipped tokens leave every window as it was."""
    _, fast, slow, cond, past, noise = parts
    schedule, project = NoiseSchedule(11), torch.tanh
    ours = sample_windows(
        fast, schedule, cond, past, noise, stride=2, blend=s, blend_end=None, project=project
    )
    theirs = sample_reference(slow, schedule, cond, past, noise, stride=2, blend=s, project=project)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_a_mix_of_one_and_two_branches(parts):
    """s from 1 to 0: the steps at both ends run one branch, in the workspace of two."""
    _, fast, _, cond, past, noise = parts
    schedule, x = NoiseSchedule(11), noise
    ours = sample_windows(
        fast, schedule, cond, past, noise, stride=5, blend=1.0, blend_end=0.0, project=torch.tanh
    )
    with torch.no_grad():
        tokens = fast.encode(cond)
        for level, after, s in ((10, 5, 1.0), (5, 0, 0.5), (0, None, 0.0)):
            t = torch.full((N,), level)
            x0 = torch.tanh(predict_blended(fast, x, t, tokens, past, s))
            a, b = schedule.ddim_coefficients(level, after)
            x = a * x0 + b * x
    torch.testing.assert_close(ours[:, 2:], x[:, 2:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
def test_few_steps_by_hand(parts, first):
    """Two evaluations of the reference, at levels 10 and 5, with the DDIM step in between."""
    _, fast, slow, cond, past, noise = parts
    schedule = NoiseSchedule(11)
    yes = torch.ones(N, dtype=torch.bool)
    given = None if first else past
    ours = sample_few_step(fast, schedule, cond, given, noise, steps=2, project=torch.tanh)
    seen = dataclasses.replace(cond, clean_past=~yes if first else yes, past_visible=yes)

    @torch.no_grad()
    def answer(x, level):
        x = x if first else insert_past(x, past, yes)
        return torch.tanh(slow(x, torch.full((N,), level), seen))

    a, b = schedule.ddim_coefficients(10, 5)
    expected = answer(a * answer(noise, 10) + b * noise, 5)
    torch.testing.assert_close(ours[:, 2:], expected[:, 2:], rtol=0, atol=1e-5)
    if first:
        torch.testing.assert_close(ours[:, :2], expected[:, :2], rtol=0, atol=1e-5)
    else:
        assert torch.equal(ours[:, :2], past)


def test_levels_of_few_steps():
    assert few_step_levels(20, 1) == [20]
    assert few_step_levels(20, 2) == [20, 10]
    assert few_step_levels(20, 4) == [20, 15, 10, 5]
    assert few_step_levels(10, 3) == [10, 7, 3]


def test_low_precision_is_near(parts):
    """bfloat16 moves a window by about its rounding, and only the network's part is rounded."""
    _, fast, _, cond, past, noise = parts
    kwargs = {"stride": 5, "blend": 0.65, "blend_end": None, "project": torch.tanh}
    exact = sample_windows(fast, NoiseSchedule(11), cond, past, noise, **kwargs)
    low = sample_windows(fast, NoiseSchedule(11), cond, past, noise, precision="bfloat16", **kwargs)
    assert low.dtype == torch.float32
    assert torch.equal(low[:, :2], past)
    error = float((low - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert 0 < error < 0.02
