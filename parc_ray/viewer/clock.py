"""The time of a playback: play, pause, speed, loop; no threads, no browser."""

from __future__ import annotations

from dataclasses import dataclass

from parc_ray.errors import InputError

MAX_SPEED = 8.0


@dataclass(kw_only=True)
class PlaybackClock:
    """Where a playback stands.

    Attributes:
        length_s: end of the time line, s.
        time_s: present place on it, s.
        speed: seconds of motion per second; negative runs backwards.
        playing: whether ``advance`` moves.
        loop: begin again at the end; else stop there.
    """

    length_s: float = 0.0
    time_s: float = 0.0
    speed: float = 1.0
    playing: bool = False
    loop: bool = True

    def advance(self, seconds: float) -> bool:
        """Let ``seconds`` of real time go by; whether the place changed."""
        if not self.playing or self.length_s <= 0.0 or self.speed == 0.0:
            return False
        place = self.time_s + seconds * self.speed
        if self.loop:
            place %= self.length_s
        elif not 0.0 <= place <= self.length_s:
            place = min(max(place, 0.0), self.length_s)
            self.playing = False
        changed = place != self.time_s
        self.time_s = place
        return changed

    def toggle(self) -> None:
        """Play or pause; a playback that stands at its end begins again."""
        if not self.playing and not self.loop:
            if self.speed > 0 and self.time_s >= self.length_s:
                self.time_s = 0.0
            elif self.speed < 0 and self.time_s <= 0.0:
                self.time_s = self.length_s
        self.playing = not self.playing

    def seek(self, time_s: float) -> None:
        """Go to a place, within the time line."""
        self.time_s = min(max(float(time_s), 0.0), self.length_s)

    def set_length(self, length_s: float) -> None:
        """Another time line; the place is kept within it."""
        self.length_s = max(float(length_s), 0.0)
        self.seek(self.time_s)

    def set_speed(self, speed: float) -> None:
        """Another speed.

        Raises:
            InputError: faster than ``MAX_SPEED`` in either direction.
        """
        if not -MAX_SPEED <= speed <= MAX_SPEED:
            raise InputError(f"speed: {speed:g}; allowed is -{MAX_SPEED:g} to {MAX_SPEED:g}")
        self.speed = float(speed)
