from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from algorithms.diffusion.schedule import NoiseSchedule, cosine_alpha_bar
from parc_ray.errors import InputError


def test_signal_fractions_of_the_published_schedule():
    """Figures of the published code for T = 21."""
    abar = cosine_alpha_bar(21)
    assert abar.dtype == torch.float64
    np.testing.assert_allclose(abar[[0, 5, 10, 15]], [0.9927, 0.8049, 0.4568, 0.1315], atol=5e-5)
    assert float(abar[20]) == pytest.approx(5.5e-7, rel=0.01)


def test_against_a_plain_loop():
    steps, s = 51, 0.008
    product, expected = 1.0, []
    for t in range(steps):
        now = math.cos((t / steps + s) / (1 + s) * math.pi / 2) ** 2
        after = math.cos(((t + 1) / steps + s) / (1 + s) * math.pi / 2) ** 2
        product *= 1 - min(max(1 - after / now, 1e-4), 0.9999)
        expected.append(product)
    np.testing.assert_allclose(cosine_alpha_bar(steps).numpy(), expected, rtol=1e-12)


def test_ddim_coefficients():
    """Figures of the published code for T = 21 at stride 5."""
    schedule = NoiseSchedule(21)
    levels = schedule.levels(5)
    assert levels == [20, 15, 10, 5, 0]
    pairs = [
        schedule.ddim_coefficients(a, b) for a, b in zip(levels, [*levels[1:], None], strict=True)
    ]
    expected = [
        (0.36191, 0.93194),
        (0.38910, 0.79085),
        (0.49205, 0.59936),
        (0.82234, 0.19393),
        (1.0, 0.0),
    ]
    np.testing.assert_allclose(pairs, expected, atol=6e-6)


@pytest.mark.parametrize("steps", [11, 21, 1001])
def test_a_perfect_prediction_leads_back_to_the_window(steps):
    """With x0 known, DDIM walks along the forward process with the same noise."""
    schedule = NoiseSchedule(steps)
    x0, noise = torch.randn(2, 3, 4).double(), torch.randn(2, 3, 4).double()
    for stride in (1, 5, (steps - 1) // 2):
        levels = schedule.levels(stride)
        x = schedule.add_noise(x0, noise, torch.full((2,), levels[0]))
        for i, level in enumerate(levels):
            after = levels[i + 1] if i + 1 < len(levels) else None
            a, b = schedule.ddim_coefficients(level, after)
            x = a * x0 + b * x
            if after is not None:
                expected = schedule.add_noise(x0, noise, torch.full((2,), after))
                torch.testing.assert_close(x, expected, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(x, x0)


def test_strides_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match="1, 2, 4, 5, 10, 20"):
        NoiseSchedule(21).levels(3)
