from __future__ import annotations

import pytest
import torch

from envs.tracking.config import PRESETS as TRACKING_PRESETS
from envs.tracking.config import SamplingConfig
from envs.tracking.sampling import (
    StartSampler,
    class_balanced,
    ema_update,
    focus_weights,
    look_ahead,
    visited_segments,
    with_initial_share,
)
from parc_ray.errors import InputError

LENGTHS = torch.tensor([61, 31])


def sampler(**kwargs):
    weights = kwargs.pop("weights", torch.ones(2))
    return StartSampler(SamplingConfig(**kwargs), LENGTHS.clone(), weights, 30.0)


def rng():
    return torch.Generator().manual_seed(0)


def test_ema_equals_the_formula_one_by_one():
    rate, seen = torch.ones(2), torch.zeros(2)
    for outcome in (1.0, 0.0, 0.0, 1.0):
        ema_update(rate, seen, torch.tensor([1]), torch.tensor([outcome]), 0.01, warm_up=False)
    expected = 1.0
    for outcome in (1.0, 0.0, 0.0, 1.0):
        expected = 0.99 * expected + 0.01 * outcome
    assert float(rate[1]) == pytest.approx(expected, rel=1e-6)
    assert float(rate[0]) == 1.0


def test_459_successes_reach_the_floor():
    """PARC's own figure: from 1.0, 459 straight successes to reach 0.01."""
    rate, seen = torch.ones(1), torch.zeros(1)
    for k in range(459):
        assert k == 458 or float(rate) > 0.01
        ema_update(rate, seen, torch.tensor([0]), torch.zeros(1), 0.01, warm_up=False)
    assert float(rate) < 0.01


def test_warm_up_averages_the_first_outcomes():
    rate, seen = torch.ones(1), torch.zeros(1)
    index = torch.zeros(3, dtype=torch.long)
    ema_update(rate, seen, index, torch.tensor([0.0, 1.0, 0.0]), 0.01)
    assert float(rate) == pytest.approx(1 / 3)
    ema_update(rate, seen, index[:1], torch.tensor([1.0]), 0.01)
    assert float(rate) == pytest.approx(0.5)


def test_visited_segments_lists_every_segment_between():
    episode, segment = visited_segments(torch.tensor([0, 5]), torch.tensor([2, 5]), 9)
    assert episode.tolist() == [0, 0, 0, 1]
    assert segment.tolist() == [0, 1, 2, 5]


def test_look_ahead_stays_within_a_clip():
    hazard = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0])
    clip = torch.tensor([0, 0, 0, 1, 1])
    got = look_ahead(hazard, clip, (1.0, 0.7, 0.4))
    torch.testing.assert_close(got, torch.tensor([0.4, 0.7, 1.0, 0.7, 1.0]))


def test_segments_cover_clips_and_failures_land_in_theirs():
    s = sampler()
    assert s.segment_clip.tolist() == [0, 0, 0, 0, 1, 1]
    assert s.segment_of(torch.tensor([0, 0, 1]), torch.tensor([14, 15, 30])).tolist() == [0, 1, 5]
    for _ in range(5):
        s.update(torch.tensor([0]), torch.tensor([0.0]), torch.tensor([40.0]), torch.tensor([True]))
    assert s.hazard.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    s.update(torch.tensor([1]), torch.tensor([3.0]), torch.tensor([30.0]), torch.tensor([False]))
    assert s.hazard.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert float(s.start_fail[0]) == 1.0
    assert float(s.clip_fail[1]) == 0.0
    assert float(s.start_fail[1]) == 1.0  # that episode did not start at frame 0


def test_starts_follow_the_hazard():
    s = sampler(start_share=0.0, uniform_share=0.0, look_ahead=(1.0,), min_weight=0.1)
    s.hazard[:] = torch.tensor([0.1, 0.5, 0.1, 0.1, 0.1, 0.1])
    starts = s.sample(40_000, rng())
    counts = torch.bincount(s.segment_of(starts.clip, starts.frame), minlength=6) / 40_000
    torch.testing.assert_close(counts, s.segment_probability(), atol=0.01, rtol=0)
    # clip 0 has 45 starts (margin 0.5 s): segments of 15, 15, 15, 0; clip 1 has 15: 15, 0
    # clip 0 has twice the seconds of clip 1
    raw = torch.tensor([0.2 / 3, 1.0 / 3, 0.2 / 3, 0.0, 0.1, 0.0])
    torch.testing.assert_close(s.segment_probability(), raw / raw.sum())


def test_shares_of_starts_at_frame_zero_and_uniform():
    s = sampler(start_share=0.25, uniform_share=0.5, weights=torch.tensor([3.0, 1.0]))
    s.start_fail[:] = torch.tensor([0.1, 0.9])
    starts = s.sample(40_000, rng())
    zero = starts.frame == 0
    assert float(zero.float().mean()) == pytest.approx(0.25 + 0.75 / 30, abs=0.03)
    torch.testing.assert_close(
        s.start_probability(), torch.tensor([0.3 / 1.2, 0.9 / 1.2]), atol=1e-6, rtol=0
    )
    only_uniform = sampler(start_share=0.0, uniform_share=1.0, weights=torch.tensor([3.0, 1.0]))
    starts = only_uniform.sample(40_000, rng())
    assert float((starts.clip == 0).float().mean()) == pytest.approx(6 / 7, abs=0.01)
    assert float(starts.frame[starts.clip == 0].mean()) == pytest.approx(22.0, abs=0.3)


def test_no_start_in_the_end_margin_and_all_on_frames():
    starts = sampler(end_margin_s=0.5).sample(20_000, rng())
    last = torch.where(starts.clip == 0, 44, 14)
    assert bool((starts.frame <= last).all())
    assert int(starts.frame[starts.clip == 0].max()) == 44
    assert torch.equal(starts.frame, starts.frame.round())
    fractional = sampler(start_on_frames=False).sample(100, rng()).frame
    assert not torch.equal(fractional, fractional.round())


def test_clip_mode_is_weight_times_failure_rate_with_a_floor():
    s = sampler(mode="clip", start_share=0.0, weights=torch.tensor([1.0, 3.0]))
    s.clip_fail[:] = torch.tensor([0.5, 0.0])
    expected = torch.tensor([2 * 0.25 * 0.5, 0.75 * 0.01])
    torch.testing.assert_close(s.clip_probability(), expected / expected.sum())
    starts = s.sample(20_000, rng())
    share = float((starts.clip == 0).float().mean())
    assert share == pytest.approx(float(s.clip_probability()[0]), abs=0.01)


def test_classes_weigh_the_same():
    weights = torch.tensor([1.0, 1.0, 2.0])
    lengths = torch.tensor([31, 61, 31])
    balanced = class_balanced(weights, lengths, ("walk", "walk", "climb"))
    seconds = balanced * (lengths - 1)
    assert float(seconds[:2].sum()) == pytest.approx(float(seconds[2]))
    assert float(balanced[0]) == pytest.approx(float(balanced[1]))


def test_initial_clips_keep_their_share():
    weights = torch.tensor([1.0, 2.0, 1.0, 3.0])
    lengths = torch.tensor([31, 61, 301, 901])
    held = with_initial_share(weights, lengths, (True, True, False, False), 0.3)
    share = held * (lengths - 1)
    share = share / share.sum()
    assert float(share[:2].sum()) == pytest.approx(0.3)
    # seconds times weight: 1 x 1 to 2 x 2 within the initial ones, 10 x 1 to 30 x 3 within the rest
    torch.testing.assert_close(share, torch.tensor([0.06, 0.24, 0.07, 0.63]))
    s = StartSampler(SamplingConfig(), lengths, held, 30.0)
    torch.testing.assert_close(s.second_weights, share)


@pytest.mark.parametrize(
    ("initial", "share"),
    [((True, True), 0.3), ((False, False), 0.3), ((True, False), 0.2), ((False, True), 0.0)],
)
def test_a_floor_that_holds_already_changes_nothing(initial, share):
    weights, lengths = torch.tensor([1.0, 1.0]), torch.tensor([61, 31])
    held = with_initial_share(weights, lengths, initial, share)
    torch.testing.assert_close(held / held.sum(), weights / weights.sum())


def test_the_published_task_has_no_floor():
    assert TRACKING_PRESETS["paper"]().sampling.initial_share == 0.0


def test_state_dict_round_trip_and_determinism():
    one, other = sampler(), sampler()
    one.update(torch.tensor([0]), torch.tensor([0.0]), torch.tensor([20.0]), torch.tensor([True]))
    other.load_state_dict(one.state_dict())
    a, b = one.sample(50, rng()), other.sample(50, rng())
    assert torch.equal(a.clip, b.clip)
    assert torch.equal(a.frame, b.frame)


def test_very_short_clips_still_have_a_start():
    s = StartSampler(SamplingConfig(), torch.tensor([2, 3]), torch.ones(2), 30.0)
    assert s.sample(10, rng()).frame.tolist() == [0.0] * 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "x"),
        ("ema", 0.0),
        ("start_share", 0.95),
        ("min_weight", 0.0),
        ("initial_share", 1.0),
    ],
)
def test_wrong_settings_are_named(field, value):
    with pytest.raises(InputError, match=field):
        SamplingConfig(**{field: value})


def test_focus_prefers_clips_within_reach_and_lets_go_of_mastered_ones():
    hazard = torch.tensor([0.5, 0.5, 0.1, 0.1, 0.0, 0.0])
    clip_of = torch.tensor([0, 0, 1, 1, 2, 2])
    weight = focus_weights(hazard, clip_of, 3, 2.0)
    chance = torch.tensor([0.25, 0.81, 1.0])
    expected = (chance + 0.05).square() * (1.1 - chance)
    assert torch.allclose(weight, expected / expected.mean(), atol=1e-4)
    assert weight[1] > weight[2] > weight[0] > 0


def test_no_focus_is_no_preference():
    hazard = torch.tensor([0.9, 0.1])
    assert torch.equal(focus_weights(hazard, torch.tensor([0, 1]), 2, 0.0), torch.ones(2))
