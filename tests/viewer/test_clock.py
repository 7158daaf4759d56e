"""Time of a playback."""

from __future__ import annotations

import pytest

from parc_ray.errors import InputError
from parc_ray.viewer.clock import PlaybackClock


def test_it_plays_at_its_speed_and_wraps():
    clock = PlaybackClock(length_s=2.0, playing=True, speed=0.5)
    assert clock.advance(1.0)
    assert clock.time_s == pytest.approx(0.5)
    clock.advance(3.4)
    assert clock.time_s == pytest.approx(0.2)


def test_without_loop_it_stops_at_its_end_and_begins_again():
    clock = PlaybackClock(length_s=1.0, playing=True, loop=False)
    clock.advance(5.0)
    assert (clock.time_s, clock.playing) == (1.0, False)
    assert not clock.advance(1.0)
    clock.toggle()
    assert (clock.time_s, clock.playing) == (0.0, True)


def test_backwards_it_begins_again_at_the_end():
    clock = PlaybackClock(length_s=1.0, playing=True, loop=False, speed=-1.0)
    clock.advance(0.5)
    assert clock.time_s == 0.0
    clock.toggle()
    assert clock.time_s == 1.0


def test_a_shorter_time_line_keeps_the_place_within_it():
    clock = PlaybackClock(length_s=4.0, time_s=3.0)
    clock.set_length(2.0)
    assert clock.time_s == 2.0
    clock.seek(-1.0)
    assert clock.time_s == 0.0


def test_nothing_moves_while_it_pauses_or_is_empty():
    assert not PlaybackClock(length_s=1.0).advance(1.0)
    assert not PlaybackClock(playing=True).advance(1.0)


def test_speeds_have_a_limit():
    with pytest.raises(InputError, match="speed: 20"):
        PlaybackClock().set_speed(20.0)
