"""Starts prepared in advance: drawing, disturbing and observing many at once costs little more.

A finished episode is replaced by the next start of the queue. When it is empty, the outcomes of
the episodes that ended meanwhile are learnt from and as many new starts are made as it holds, so
failure rates lag behind by at most one queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from envs.tracking.lookahead import Sight
from envs.tracking.sampling import Starts, StartSampler
from parc_ray.protocols import SimState

_OUTCOMES = ("clip", "start", "end", "failed")


@dataclass
class PreparedStarts:
    """K places where episodes start and everything that is needed there.

    Attributes:
        clip: (K,) long.
        frame: (K,) place in the clip.
        state: (K, ...) disturbed state for the simulator.
        obs: (K, O) first observations.
        sight: what lies ahead.
    """

    clip: Tensor
    frame: Tensor
    state: SimState
    obs: Tensor
    sight: Sight

    def index(self, ids: slice) -> PreparedStarts:
        """A stretch of them."""
        return PreparedStarts(
            self.clip[ids],
            self.frame[ids],
            self.state.index(ids),
            self.obs[ids],
            self.sight.index(ids),
        )


class StartQueue:
    """Hands out starts and collects how episodes end.

    Args:
        sampler: draws places and learns from outcomes.
        prepare: makes starts of places.
        see: looks ahead from clips (K,) and places (K,).
        size: starts made at a time, at least.
    """

    def __init__(
        self,
        sampler: StartSampler,
        prepare: Callable[[Starts], PreparedStarts],
        see: Callable[[Tensor, Tensor], Sight],
        size: int,
    ) -> None:
        """Begin empty."""
        self.sampler, self.prepare, self.see, self.size = sampler, prepare, see, size
        self._ready: PreparedStarts | None = None
        self._used = 0
        self._ended: list[tuple[Tensor, ...]] = []

    def ended(self, clip: Tensor, start: Tensor, end: Tensor, failed: Tensor) -> None:
        """Note how episodes ended, see `StartSampler.update`; (K,) each."""
        self._ended.append((clip, start, end, failed))

    def take(self, count: int, rng: torch.Generator) -> PreparedStarts:
        """The next ``count`` starts."""
        if self._ready is None or self._used + count > len(self._ready.clip):
            self._learn()
            self._ready = self.prepare(self.sampler.sample(max(count, self.size), rng))
            self._used = 0
        first, self._used = self._used, self._used + count
        return self._ready.index(slice(first, self._used))

    def _learn(self) -> None:
        if self._ended:
            self.sampler.update(*(torch.cat(parts) for parts in zip(*self._ended, strict=True)))
            self._ended = []

    def state_dict(self) -> dict[str, Any]:
        """What is ready, and outcomes not yet learnt from."""
        out: dict[str, Any] = {"ready": {}, "ended": {}}
        if self._ready is not None and self._used < len(self._ready.clip):
            left = self._ready.index(slice(self._used, None))
            out["ready"] = {
                "clip": left.clip.clone(),
                "frame": left.frame.clone(),
                "obs": left.obs.clone(),
                **{f"state/{k}": v.clone() for k, v in vars(left.state).items()},
            }
        if self._ended:
            parts = zip(*self._ended, strict=True)
            out["ended"] = dict(zip(_OUTCOMES, (torch.cat(p) for p in parts), strict=True))
        return out

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; an empty mapping empties the queue."""
        self._ready, self._used, self._ended = None, 0, []
        ready, ended = state.get("ready"), state.get("ended")
        if ready:
            sim = SimState(**{f.name: ready[f"state/{f.name}"].clone() for f in fields(SimState)})
            clip, frame = ready["clip"].clone(), ready["frame"].clone()
            sight = self.see(clip, frame)
            self._ready = PreparedStarts(clip, frame, sim, ready["obs"].clone(), sight)
        if ended:
            self._ended = [tuple(ended[name].clone() for name in _OUTCOMES)]
