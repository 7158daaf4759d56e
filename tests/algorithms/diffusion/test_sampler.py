from __future__ import annotations

import pytest
import torch

from algorithms.diffusion.conditions import Conditions
from algorithms.diffusion.denoiser import Denoiser, insert_past
from algorithms.diffusion.profiles import tiny
from algorithms.diffusion.sampler import (
    blend_weights,
    frame_weights,
    predict_blended,
    sample_windows,
)
from algorithms.diffusion.schedule import NoiseSchedule

N, FEATURES = 3, 20


@pytest.fixture
def parts():
    """A network, its conditions, past frames and noise."""
    config = tiny()
    net = Denoiser(config, FEATURES, config.grid.shape).eval()
    yes = torch.ones(N, dtype=torch.bool)
    heights = torch.randn(N, *config.grid.shape)
    cond = Conditions(heights, torch.randn(N, 2), yes, yes, yes, yes)
    past, noise = torch.randn(N, 2, FEATURES), torch.randn(N, config.num_frames, FEATURES)
    return net, cond, past, noise


def run(parts, **changes):
    net, cond, past, noise = parts
    settings = {"stride": 5, "blend": 0.65, "blend_end": None, "project": lambda x: x}
    return sample_windows(
        net, NoiseSchedule(11), cond, changes.pop("past", past), noise, **(settings | changes)
    )


@pytest.mark.parametrize("s", [0.0, 0.25, 0.65, 1.0])
def test_blend_is_an_interpolation_of_two_passes(parts, s):
    net, cond, past, x = parts
    t = torch.full((N,), 7)
    yes = torch.ones(N, dtype=torch.bool)
    with torch.no_grad():
        tokens = net.encode(cond)
        given = net.denoise(insert_past(x, past, yes), t, tokens, yes, yes)
        free = net.denoise(x, t, tokens, ~yes, ~yes)
        blended = predict_blended(net, x, t, tokens, past, s)
    torch.testing.assert_close(blended, (1 - s) * given + s * free, rtol=1e-4, atol=1e-5)


def test_full_blend_forgets_the_past(parts):
    _, _, past, _ = parts
    first, second = run(parts, blend=1.0), run(parts, blend=1.0, past=past + 1.0)
    assert torch.equal(first[:, 2:], second[:, 2:])
    assert not torch.equal(run(parts)[:, 2:], run(parts, past=past + 1.0)[:, 2:])


@pytest.mark.parametrize("s", [0.0, 0.65, 1.0])
def test_given_frames_come_back(parts, s):
    assert torch.equal(run(parts, blend=s)[:, :2], parts[2])


def test_nothing_is_written_in_place(parts):
    _, cond, past, noise = parts
    copies = [x.clone() for x in (cond.heights, cond.target, cond.clean_past, past, noise)]
    run(parts)
    for copy, value in zip(
        copies, (cond.heights, cond.target, cond.clean_past, past, noise), strict=True
    ):
        assert torch.equal(copy, value)


def test_first_window_needs_no_past(parts):
    out = run(parts, past=None)
    assert out.shape == parts[3].shape
    assert torch.isfinite(out).all()


def test_last_prediction_is_projected(parts):
    out = run(parts, project=lambda x: x.clamp(-0.01, 0.01))
    assert float(out[:, 2:].abs().max()) <= 0.01


def test_scheduled_blend():
    assert blend_weights(0.6, None, 3) == [0.6] * 3
    assert blend_weights(1.0, 0.0, 5) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_terrain_is_encoded_once(parts, monkeypatch):
    net = parts[0]
    calls = []
    encode = net.encode
    monkeypatch.setattr(net, "encode", lambda cond: calls.append(1) or encode(cond))
    run(parts, stride=1)
    assert len(calls) == 1


def test_blend_rises_over_the_first_new_frames(parts):
    """Past frames have no share of s, then 1/4, 2/4, 3/4 and all of it."""
    expected = [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert frame_weights(7, 2, 3)[:, 0].tolist() == expected
    net, cond, past, x = parts
    t = torch.full((N,), 7)
    with torch.no_grad():
        tokens = net.encode(cond)
        given, whole, faded, free = (
            predict_blended(net, x, t, tokens, past, s, fade)
            for s, fade in ((0.0, 0), (0.6, 0), (0.6, 3), (1.0, 3))
        )
    torch.testing.assert_close(faded[:, 5:], whole[:, 5:])
    torch.testing.assert_close(
        faded[:, 2], given[:, 2] + 0.25 * (whole[:, 2] - given[:, 2]), rtol=1e-4, atol=1e-5
    )
    assert not torch.equal(free[:, 2], predict_blended(net, x, t, tokens, past, 1.0)[:, 2])
