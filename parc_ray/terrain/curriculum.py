"""Terrain difficulty by PARC iteration: on a schedule, or led by what could be corrected.

PARC changes the kind of terrain after two iterations and never its difficulty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from parc_ray.errors import InputError
from parc_ray.terrain.spec import TerrainSpec


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """Terrain difficulty by PARC iteration: a factor on that of each iteration's terrain."""

    by: Literal["schedule", "success"] = "schedule"
    """What moves the factor: the number of the iteration, or how much of the motions of the
    iterations before the correction kept. PARC: none of both."""
    start: float = 1.0
    """Factor in iteration 1. PARC: 1, the same terrain difficulty throughout."""
    end: float = 1.0
    """By schedule: factor from iteration ``iterations`` on, reached in equal steps. PARC: 1."""
    iterations: int = 4
    """By schedule: iterations over which the factor changes. PARC runs 4."""
    step: float = 0.1
    """By success: change of the factor from one iteration to the next."""
    raise_above: float = 0.7
    """By success: where correction kept more than this share of the seconds generated, the next
    iteration is harder."""
    lower_below: float = 0.3
    """By success: where it kept less than this share, the next iteration is easier."""
    bounds: tuple[float, float] = (0.1, 1.5)
    """By success: least and greatest factor."""

    def __post_init__(self) -> None:
        """Refuse what is no curriculum."""
        _require(self.by in ("schedule", "success"), "by", self.by, "'schedule' or 'success'")
        for name in ("start", "end", "step"):
            value = getattr(self, name)
            _require(0.0 <= value < math.inf, name, value, "a number >= 0")
        _require(self.iterations >= 1, "iterations", self.iterations, "1 or more")
        _require(0.0 <= self.raise_above <= 1.0, "raise_above", self.raise_above, "0 to 1")
        ok = 0.0 <= self.lower_below <= self.raise_above
        _require(ok, "lower_below", self.lower_below, "0 to curriculum.raise_above")
        low, high = self.bounds
        _require(0.0 <= low <= high < math.inf, "bounds", self.bounds, "(low, high), 0 <= low")

    def factor(self, iteration: int) -> float:
        """Factor of a PARC iteration (from 1) on a schedule."""
        if self.iterations == 1:
            return self.end
        done = min(max(iteration - 1, 0) / (self.iterations - 1), 1.0)
        return self.start + (self.end - self.start) * done

    def factor_after(self, success: Sequence[float]) -> float:
        """Factor after iterations of known success: up a step, down a step, or the same.

        A pure function of the whole history, so that a resumed run comes to the same value.

        Args:
            success: share (0 to 1) of the generated seconds that correction kept, for each
                iteration so far that was corrected, first one first.

        Raises:
            InputError: a success that is no share.
        """
        low, high = self.bounds
        level = min(max(self.start, low), high)
        for rate in success:
            if not 0.0 <= rate <= 1.0:
                raise InputError(f"success: {rate} is not a share; give numbers from 0 to 1")
            change = self.step * ((rate > self.raise_above) - (rate < self.lower_below))
            level = min(max(level + change, low), high)
        return level

    def scheduled(self, spec: TerrainSpec, iteration: int) -> TerrainSpec:
        """The terrain of a PARC iteration (from 1), as far as the config decides it alone."""
        return spec if self.by == "success" else scaled(spec, self.factor(iteration))


def scaled(spec: TerrainSpec, factor: float) -> TerrainSpec:
    """A family with its difficulty multiplied; the same object where the factor is 1."""
    return spec if factor == 1.0 else replace(spec, difficulty=spec.difficulty * factor)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InputError(f"curriculum.{name}: {value!r} is not allowed; give {allowed}")
