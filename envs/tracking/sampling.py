"""Where episodes start: by clip failure rate as in PARC, or by the hazard of short segments.

Kernels at the top are pure; `StartSampler` holds the running failure rates. Frame numbers count
from the start of a clip. Shapes: C clips, S segments of all clips, K episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.tracking.config import SamplingConfig
from parc_ray.data.weights import with_floor

_START_EMA = 0.05
_PER_FRAME = 1024.0
_STATE = ("hazard", "seen", "clip_fail", "clip_seen", "start_fail", "start_seen")


def ema_update(
    rate: Tensor,
    seen: Tensor,
    index: Tensor,
    value: Tensor,
    alpha: float,
    warm_up: bool = True,
) -> None:
    """Move failure rates towards new outcomes, in place, all outcomes of one index at once.

    Args:
        rate: (M,) failure rates.
        seen: (M,) outcomes counted so far.
        index: (K,) long, which rates.
        value: (K,) outcomes in [0, 1].
        alpha: weight of one new outcome.
        warm_up: average the first outcomes plainly (bias-corrected) until ``alpha`` is reached.
    """
    count = torch.zeros_like(rate).index_add_(0, index, torch.ones_like(value))
    total = torch.zeros_like(rate).index_add_(0, index, value)
    touched = count > 0
    mean = total / count.clamp(min=1.0)
    seen += count
    share = 1.0 - (1.0 - alpha) ** count
    if warm_up:
        share = torch.maximum(share, count / seen.clamp(min=1.0))
    rate += torch.where(touched, share * (mean - rate), torch.zeros_like(rate))


def visited_segments(first: Tensor, last: Tensor, num_segments: int) -> tuple[Tensor, Tensor]:
    """Pairs (episode, segment) of all segments ``first`` to ``last`` (K,) that episodes crossed."""
    span = last - first + 1
    episode = torch.repeat_interleave(torch.arange(len(first)), span)
    offset = torch.arange(int(span.sum())) - torch.repeat_interleave(span.cumsum(0) - span, span)
    return episode, (first[episode] + offset).clamp(max=num_segments - 1)


def look_ahead(hazard: Tensor, clip_of: Tensor, weights: Sequence[float]) -> Tensor:
    """Sum of a segment's hazard and of those after it in the same clip, weighted, (S,)."""
    out = torch.zeros_like(hazard)
    for step, weight in enumerate(weights):
        if step >= len(hazard):
            break
        ahead = hazard[step:] * (clip_of[step:] == clip_of[: len(hazard) - step])
        out[: len(hazard) - step] += weight * ahead
    return out


def focus_weights(hazard: Tensor, clip_of: Tensor, num_clips: int, power: float) -> Tensor:
    """Preference (C,) for clips that are nearly completed, mean 1.

    A clip's chance of completion is the product of (1 - hazard) over its segments. The weight is
    (chance + 0.05)^power (1.1 - chance): it rises as the clip comes within reach and falls once it
    is mastered, without ever reaching zero.

    Args:
        hazard: (S,) failure rate within each segment.
        clip_of: (S,) long, clip of each segment.
        num_clips: C.
        power: 0 gives equal weights.
    """
    if power == 0:
        return torch.ones(num_clips)
    log_alive = torch.log1p(-hazard.clamp(0.0, 1.0 - 1e-4))
    chance = torch.zeros(num_clips).index_add_(0, clip_of, log_alive).exp()
    weight = (chance + 0.05) ** power * (1.1 - chance)
    return weight / weight.mean()


@dataclass
class Starts:
    """Places where episodes start.

    Attributes:
        clip: (K,) long.
        frame: (K,) float, whole where starts are on frames.
    """

    clip: Tensor
    frame: Tensor


def class_balanced(weights: Tensor, lengths: Tensor, class_names: Sequence[str]) -> Tensor:
    """Weights per second (C,) under which the clips of every class weigh the same in sum."""
    names = sorted(set(class_names))
    index = torch.tensor([names.index(name) for name in class_names])
    seconds = weights * (lengths - 1)
    total = torch.zeros(len(names)).index_add_(0, index, seconds)
    return weights / total[index]


def with_initial_share(
    weights: Tensor, lengths: Tensor, initial: Sequence[bool], share: float
) -> Tensor:
    """Weights per second (C,) under which the initial clips have at least ``share`` in sum.

    The floor of ``parc_ray.data.weights``, before failure rates count. Shares among the initial
    clips, and among the others, stay; without clips of both kinds nothing changes.

    Args:
        weights: (C,) weight per second of each clip.
        lengths: (C,) frames per clip.
        initial: whether a clip is of iteration 0, C of them.
        share: least share, 0 to below 1; 0 sets no floor.
    """
    seconds = weights.double() * (lengths - 1)
    floored = with_floor(seconds / seconds.sum(), torch.tensor(list(initial)), share)
    return (floored / (lengths - 1)).to(weights) if share > 0.0 else weights


class StartSampler:
    """Samples starts and learns from how episodes end.

    Args:
        config: shares, rates and mode.
        lengths: (C,) frames per clip.
        weights: (C,) weight per second of each clip (PARC: its class factor).
        fps: frames per second.
    """

    def __init__(
        self, config: SamplingConfig, lengths: Tensor, weights: Tensor, fps: float
    ) -> None:
        """Cut the clips into segments; see the class."""
        self.config = config
        self.lengths = lengths
        self.weights = weights / weights.sum()
        seconds = weights * (lengths - 1)
        self.second_weights = seconds / seconds.sum()
        last_start = lengths - 2 - round(config.end_margin_s * fps)
        self.num_starts = last_start.clamp(min=0) + 1
        self._cut(max(1, round(config.segment_s * fps)))
        clips, segments = len(lengths), len(self.segment_clip)
        self.hazard, self.seen = torch.ones(segments), torch.zeros(segments)
        self.clip_fail, self.clip_seen = torch.ones(clips), torch.zeros(clips)
        self.start_fail, self.start_seen = torch.ones(clips), torch.zeros(clips)

    def _cut(self, size: int) -> None:
        """Segments of ``size`` frames over the whole of each clip."""
        per_clip = ((self.lengths - 2).clamp(min=0) // size) + 1
        clips = torch.arange(len(self.lengths))
        self.segment_clip = torch.repeat_interleave(clips, per_clip)
        self.first_segment = per_clip.cumsum(0) - per_clip
        number = torch.arange(len(self.segment_clip)) - self.first_segment[self.segment_clip]
        self.segment_size = size
        self.segment_start = number * size
        room = self.num_starts[self.segment_clip] - self.segment_start
        self.segment_room = room.clamp(min=0, max=size)

    def segment_of(self, clip: Tensor, frame: Tensor) -> Tensor:
        """Segment (K,) in which frames (K,) of clips (K,) lie."""
        last = torch.div(
            (self.lengths[clip] - 2).clamp(min=0), self.segment_size, rounding_mode="floor"
        )
        number = torch.div(frame, self.segment_size, rounding_mode="floor").long()
        return self.first_segment[clip] + torch.minimum(number, last)

    def segment_probability(self) -> Tensor:
        """(S,) probability of the hazard-weighted share, by segment."""
        hazard = look_ahead(
            self.hazard.clamp(min=self.config.min_weight), self.segment_clip, self.config.look_ahead
        )
        size = self.segment_room / self.num_starts[self.segment_clip]
        weight = self.second_weights[self.segment_clip] * size * hazard
        weight = weight * self._focus()[self.segment_clip]
        return weight / weight.sum()

    def clip_probability(self) -> Tensor:
        """(C,) PARC's clip probability: weighted seconds times failure rate with a floor."""
        weight = self.second_weights * self.clip_fail.clamp(min=self.config.min_weight)
        return weight / weight.sum()

    def start_probability(self) -> Tensor:
        """(C,) probability of clips for the share of starts at frame 0."""
        weight = self.weights * self.start_fail.clamp(min=self.config.min_weight)
        weight = weight * self._focus()
        return weight / weight.sum()

    def _focus(self) -> Tensor:
        """(C,) preference for clips within reach."""
        clips = len(self.lengths)
        return focus_weights(self.hazard, self.segment_clip, clips, self.config.focus)

    def sample(self, count: int, rng: torch.Generator) -> Starts:
        """Draw ``count`` starts."""
        if self.config.mode == "clip":
            clip = self._draw(self.clip_probability(), count, rng)
            return self._uniform_in(clip, rng, at_zero=self.config.start_share)
        kind = torch.rand(count, generator=rng)
        segment = self._draw(self.segment_probability(), count, rng)
        clip = self.segment_clip[segment]
        frame = self.segment_start[segment] + self._spread(self.segment_room[segment], rng)
        uniform = self._uniform_in(self._draw(self.second_weights, count, rng), rng, at_zero=0.0)
        first = self._draw(self.start_probability(), count, rng)
        at_zero = kind < self.config.start_share
        anywhere = ~at_zero & (kind < self.config.start_share + self.config.uniform_share)
        clip = torch.where(anywhere, uniform.clip, torch.where(at_zero, first, clip))
        frame = torch.where(anywhere, uniform.frame, frame)
        return Starts(clip, torch.where(at_zero, torch.zeros_like(frame), frame))

    def update(self, clip: Tensor, start_frame: Tensor, end_frame: Tensor, failed: Tensor) -> None:
        """Learn from finished episodes.

        Args:
            clip: (K,) long.
            start_frame: (K,) where they started.
            end_frame: (K,) where they ended.
            failed: (K,) bool, ended early.
        """
        if len(clip) == 0:
            return
        outcome, alpha, warm = failed.float(), self.config.ema, self.config.warm_up
        ema_update(self.clip_fail, self.clip_seen, clip, outcome, alpha, warm)
        zero = start_frame == 0
        rate = max(alpha, _START_EMA)
        ema_update(self.start_fail, self.start_seen, clip[zero], outcome[zero], rate, warm)
        first = self.segment_of(clip, start_frame)
        last = self.segment_of(clip, end_frame)
        episode, segment = visited_segments(first, last, len(self.hazard))
        value = outcome[episode] * (segment == last[episode])
        ema_update(self.hazard, self.seen, segment, value, alpha, warm)

    def state_dict(self) -> dict[str, Any]:
        """Failure rates and counts."""
        return {name: getattr(self, name).clone() for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict` of a sampler over the same clips."""
        for name in _STATE:
            getattr(self, name).copy_(state[name])

    def _draw(self, probability: Tensor, count: int, rng: torch.Generator) -> Tensor:
        return torch.multinomial(probability, count, replacement=True, generator=rng)

    def _spread(self, room: Tensor, rng: torch.Generator) -> Tensor:
        """Uniform place in [0, room), whole if starts are on frames.

        Otherwise a multiple of 1/1024 frame, so that adding frames to it is exact.
        """
        place = torch.rand(len(room), generator=rng) * room
        if self.config.start_on_frames:
            return torch.minimum(place.floor(), (room - 1).clamp(min=0).to(place.dtype))
        return torch.floor(place * _PER_FRAME) / _PER_FRAME

    def _uniform_in(self, clip: Tensor, rng: torch.Generator, at_zero: float) -> Starts:
        frame = self._spread(self.num_starts[clip], rng)
        if at_zero > 0:
            zero = torch.rand(len(clip), generator=rng) < at_zero
            frame = torch.where(zero, torch.zeros_like(frame), frame)
        return Starts(clip, frame)
