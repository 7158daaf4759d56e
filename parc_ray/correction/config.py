"""Settings of the physical correction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from algorithms.mpc.config import MpcConfig
from parc_ray.errors import InputError

Strategy = Literal["tracker", "mpc", "tracker_then_mpc"]


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Limits that a recording must keep to join the data set."""

    max_mean_body_error_m: float = 0.35
    """Mean world distance of the bodies to the reference (m); PARC checks none."""

    max_root_error_m: float = 0.6
    """Largest root distance to the reference (m); PARC's termination limit."""

    max_high_jerk_share: float = 0.25
    """Largest share of frames with a body above PARC's jerk threshold (11 666 m/s^3)."""

    max_mean_penetration_m: float = 0.03
    """Depth of the deepest surface point below the terrain, mean over frames (m)."""

    min_contact_f1: float = 0.0
    """Least agreement of simulated with reference contacts, 0 to 1; 0 does not check."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, value in vars(self).items():
            if value < 0:
                raise InputError(f"correction.gate.{name}: {value} is negative; allowed is >= 0")
        if self.min_contact_f1 > 1:
            raise InputError("correction.gate.min_contact_f1: above 1; allowed is 0 to 1")


@dataclass(frozen=True, kw_only=True)
class CorrectionConfig:
    """How kinematic motions become physical ones."""

    strategy: Strategy = "tracker_then_mpc"
    """``tracker`` is the paper's way; ``mpc`` needs no policy; both in turn by default."""

    min_segment_s: float = 1.5
    """Shortest recording that is kept (s); PARC drops remainders below 2 s."""

    keep_segments: bool = True
    """Whether the longest recorded piece is kept where no start reaches the end. PARC: no."""

    start_fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    """Where the tracker starts, in turn, as shares of the clip, as in the published code."""

    mpc: MpcConfig = field(default_factory=MpcConfig)
    """The sampling controller."""

    mpc_retries: int = 1
    """Further attempts with another seed after a failed one."""

    mpc_stronger_retry: bool = True
    """Whether the last attempt uses more look-ahead and re-plans at every step."""

    mpc_backoff_s: float = 0.3
    """How much is cut before the failure when a leading segment is kept (s)."""

    mpc_max_s: float = 10.0
    """Only the first seconds of longer clips are attempted by MPC (s)."""

    gate: GateConfig = field(default_factory=GateConfig)
    """What a recording must satisfy."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.min_segment_s < 0.5:
            raise InputError(f"correction.min_segment_s: {self.min_segment_s}; allowed is >= 0.5 s")
        starts = self.start_fractions
        in_range = bool(starts) and all(0 <= f < 1 for f in starts)
        if not in_range or list(starts) != sorted(starts):
            raise InputError(
                f"correction.start_fractions: {starts}; "
                "allowed are one or more shares from 0 up to 1, ascending"
            )
        if self.mpc_retries < 0:
            raise InputError(f"correction.mpc_retries: {self.mpc_retries}; allowed is >= 0")
