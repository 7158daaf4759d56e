"""What correction made of one kinematic motion."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from parc_ray.motion.clip import MotionClip

Corrector = Literal["tracker", "mpc"]


@dataclass(kw_only=True)
class Attempt:
    """One try of one corrector.

    Attributes:
        corrector: who tried.
        start_frame: frame of the source it started from.
        frames: control steps survived.
        wanted: control steps to the end.
        cpu_s: CPU time; 0 where many clips shared it.
        seed: seed of the try.
        reason: why it ended early, "" if it did not.
    """

    corrector: Corrector
    start_frame: int
    frames: int
    wanted: int
    cpu_s: float = 0.0
    seed: int = 0
    reason: str = ""


@dataclass(kw_only=True)
class Outcome:
    """The corrected motion, or why there is none.

    Attributes:
        source_id: the kinematic motion.
        clip: the recording, or None.
        corrector: who made it, or None.
        whole: it covers the source from its first to its last frame.
        start_frame, end_frame: what it covers of the source.
        attempts: all tries in order.
        reasons: why the motion was refused, if it was.
        metrics: figures of the recording.
    """

    source_id: str
    clip: MotionClip | None = None
    corrector: Corrector | None = None
    whole: bool = False
    start_frame: int = 0
    end_frame: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """JSON values for the stage's table; not-a-number becomes None."""
        clip = self.clip
        return {
            "source_id": self.source_id,
            "clip_id": clip.clip_id if clip else None,
            "corrector": self.corrector,
            "whole": self.whole,
            "start_frame": self.start_frame,
            "end_frame": self.end_frame,
            "seconds": clip.duration_s if clip else 0.0,
            "attempts": [vars(a) for a in self.attempts],
            "reasons": self.reasons,
            "metrics": {k: v if v == v else None for k, v in self.metrics.items()},
        }

    @classmethod
    def from_record(cls, record: dict[str, Any], clip: MotionClip | None) -> Outcome:
        """The inverse of `record`, given the clip it speaks of."""
        return cls(
            source_id=record["source_id"],
            clip=clip,
            corrector=record["corrector"],
            whole=record["whole"],
            start_frame=record["start_frame"],
            end_frame=record["end_frame"],
            attempts=[Attempt(**a) for a in record["attempts"]],
            reasons=list(record["reasons"]),
            metrics={k: math.nan if v is None else v for k, v in record["metrics"].items()},
        )
