"""What correction made of one kinematic motion."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
        cpu_s: CPU time, s; the clip's share where many ran at once.
        seed: seed of the try.
        reason: why it ended early, "" if it did not.
        failed_frame: frame of the source at which it ended early, None if it did not.
        rewinds: how often MPC went back within the try.
    """

    corrector: Corrector
    start_frame: int
    frames: int
    wanted: int
    cpu_s: float = 0.0
    seed: int = 0
    reason: str = ""
    failed_frame: int | None = None
    rewinds: int = 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a motion, or a recording of it, was not kept.

    Attributes:
        corrector: who had tried.
        rule: short name: a rule of the gate, or ``ended`` where no try was long enough.
        frame: frame of the source where it went wrong, None where that is not known.
        reason: one line.
    """

    corrector: Corrector
    rule: str
    frame: int | None
    reason: str


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
        failures: why the motion was refused, if it was.
        refused: a recording that the gate refused, kept to be looked at.
        metrics: figures of the recording.
    """

    source_id: str
    clip: MotionClip | None = None
    corrector: Corrector | None = None
    whole: bool = False
    start_frame: int = 0
    end_frame: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    refused: MotionClip | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def reasons(self) -> list[str]:
        """One line per failure."""
        return [f.reason for f in self.failures]

    @property
    def cpu_s(self) -> float:
        """CPU time of all tries (of the policy: this motion's share), s."""
        return sum(a.cpu_s for a in self.attempts)

    def clips(self) -> list[MotionClip]:
        """What is to be stored: the recording, or the one that was refused."""
        return [c for c in (self.clip, self.refused) if c is not None]

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
            "refused_id": self.refused.clip_id if self.refused else None,
            "failures": [vars(f) for f in self.failures],
            "reasons": self.reasons,
            "metrics": {k: v if v == v else None for k, v in self.metrics.items()},
        }

    @classmethod
    def from_record(cls, record: dict[str, Any], clips: Mapping[str, MotionClip]) -> Outcome:
        """The inverse of `record`, given the clips it speaks of by id."""
        return cls(
            source_id=record["source_id"],
            clip=clips[record["clip_id"]] if record["clip_id"] else None,
            refused=clips[record["refused_id"]] if record["refused_id"] else None,
            corrector=record["corrector"],
            whole=record["whole"],
            start_frame=record["start_frame"],
            end_frame=record["end_frame"],
            attempts=[Attempt(**a) for a in record["attempts"]],
            failures=[Failure(**f) for f in record["failures"]],
            metrics={k: math.nan if v is None else v for k, v in record["metrics"].items()},
        )
