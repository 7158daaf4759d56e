"""How often clips are drawn: by length, balanced over classes, with a floor for the initial data.

The published code names a class after every generation job and every fifty recordings, so classes
grow in number with each iteration and the initial ones shrink as 8/C. Here a class is a kind of
motion (or of generated terrain), whatever job made it, and the initial clips together keep at least
``initial_share``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip


@dataclass(frozen=True, kw_only=True)
class WeightedClip:
    """What decides how often a clip is drawn."""

    class_name: str
    """Its class."""
    seconds: float
    """Its duration, s."""
    weight: float = 1.0
    """Its own weight."""
    iteration: int = 0
    """PARC iteration that made it; 0 is initial data."""

    @classmethod
    def of(cls, clip: MotionClip) -> WeightedClip:
        """That of a clip."""
        return cls(
            class_name=clip.provenance.class_name,
            seconds=clip.duration_s,
            weight=clip.weight,
            iteration=clip.provenance.iteration,
        )


def clip_probabilities(
    clips: Sequence[MotionClip], *, class_balance: bool = True, initial_share: float = 0.0
) -> Tensor:
    """Probability (C,) float64 of drawing each clip; see ``probabilities``."""
    rows = [WeightedClip.of(clip) for clip in clips]
    return probabilities(rows, class_balance=class_balance, initial_share=initial_share)


def probabilities(
    rows: Sequence[WeightedClip], *, class_balance: bool = True, initial_share: float = 0.0
) -> Tensor:
    """Probability (C,) float64 of drawing each clip.

    All classes are equally likely; within a class a clip counts by its duration times its own
    weight, as in the published code. Classes without any weight are left out. Where initial and
    later clips are mixed and the initial ones together would get less than ``initial_share``, both
    groups are scaled so that they get just that; shares within each group stay.

    Args:
        rows: the clips.
        class_balance: False makes the whole set one class.
        initial_share: least probability of all clips of iteration 0 together, 0 to below 1.

    Raises:
        InputError: all weights are zero, or a share out of range.
    """
    if not 0.0 <= initial_share < 1.0:
        raise InputError(
            f"initial_share: {initial_share:g}; 0 to below 1 is allowed; 0 sets no floor"
        )
    classes: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        classes[row.class_name if class_balance else ""].append(index)
    mass = torch.tensor([row.weight * row.seconds for row in rows], dtype=torch.float64)
    result = torch.zeros_like(mass)
    for members in classes.values():
        total = mass[members].sum()
        if total > 0:
            result[members] = mass[members] / total
    if not bool(result.sum() > 0):
        raise InputError(
            f"clip weights: none of {len(rows)} clips has weight and duration; at least one "
            "weight > 0 is needed; set the weights"
        )
    result = result / result.sum()
    initial = torch.tensor([row.iteration == 0 for row in rows])
    return with_floor(result, initial, initial_share)


def with_floor(result: Tensor, initial: Tensor, share: float) -> Tensor:
    """Probabilities with a floor for some clips.

    Args:
        result: (C,) probabilities, sum 1.
        initial: (C,) bool, clips that together get at least ``share``, if any can be drawn.
        share: 0 to below 1.
    """
    now = float(result[initial].sum())
    if not 0.0 < now < share:
        return result
    return torch.where(initial, result * (share / now), result * ((1.0 - share) / (1.0 - now)))
