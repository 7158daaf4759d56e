"""Settings of the drift monitor and of the naturalness filter."""

from __future__ import annotations

from dataclasses import dataclass, fields

from parc_ray.errors import InputError


@dataclass(frozen=True, kw_only=True)
class DriftConfig:
    """When the drift monitor raises an alarm; an alarm is a line in the report, it stops nothing.

    PARC has no such monitor. Distances are in the feature space of D0
    (``parc_ray.evaluation.features``).
    """

    max_frechet: float = 40.0
    """Greatest Frechet distance of an iteration's new motions from D0."""
    max_nearest_ratio: float = 3.0
    """Greatest mean distance of new windows from the nearest of D0, over what D0's clips have among
    themselves."""
    max_correction_frechet: float = 40.0
    """Greatest Frechet distance between motions before and after correction."""
    max_class_share: float = 0.9
    """Greatest share of one terrain class among the new motions."""
    max_depth: int = 8
    """Longest line of ancestors of a new motion, in generations."""
    min_survival: float = 0.1
    """Least share of the generated motions that are recorded and kept."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value < 0:
                raise InputError(f"drift.{f.name}: {value!r} is below 0; allowed is 0 or more")


@dataclass(frozen=True, kw_only=True)
class NaturalnessConfig:
    """Which new motions join the data set: those no odder than the initial clips themselves.

    Limits are calibrated on the initial clips (D0): each is the value that the share ``quantile``
    of them stays below, times ``slack``. PARC has no such filter.
    """

    enabled: bool = False
    """Whether merge filters what was recorded. PARC: no."""
    quantile: float = 0.99
    """Share of D0 that each single limit admits."""
    slack: float = 1.25
    """Factor on the limits (on the distance from the limit's neutral value)."""
    max_rejected_share: float = 0.02
    """Greatest share of D0 that all limits together may reject; limits are widened until it
    holds."""
    components: int = 8
    """Principal components of the likelihood model."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, ok, allowed in (
            ("quantile", 0.5 <= self.quantile <= 1.0, "0.5 to 1"),
            ("slack", self.slack >= 1.0, "1 or more"),
            ("max_rejected_share", 0.0 <= self.max_rejected_share < 1.0, "0 to below 1"),
            ("components", self.components >= 1, "1 or more"),
        ):
            if not ok:
                value = getattr(self, name)
                raise InputError(
                    f"naturalness.{name}: {value!r} is out of range; allowed is {allowed}; change "
                    "it"
                )
