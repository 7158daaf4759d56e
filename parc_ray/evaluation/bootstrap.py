"""Confidence intervals of means, by resampling terrains.

Motions on one terrain resemble each other, so terrains are drawn, not motions. Percentile
intervals; the same seed gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
RESAMPLES = 2000
_CHUNK = 250


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with its interval; ``low`` and ``high`` are NaN for fewer than two groups.

    Attributes:
        mean: plain mean over all values that are numbers.
        low, high: ends of the interval.
        values: how many values there were.
        groups: how many groups (terrains) they fell into.
    """

    mean: float
    low: float
    high: float
    values: int
    groups: int


def bootstrap_mean(
    values: ArrayLike,
    groups: Sequence[object] | NDArray,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean of ``values`` and its interval over groups.

    Args:
        values: (N,); what is not finite is left out.
        groups: (N,) group (terrain) of every value.
        level: share of the resampled means inside the interval.
        resamples: number of resampled means.
        seed: of the draws.
    """
    sums, counts, _ = _by_group(values, groups)
    if not len(sums):
        return Interval(mean=math.nan, low=math.nan, high=math.nan, values=0, groups=0)
    means = _resampled(sums[None], counts[None], resamples, seed)[0]
    low, high = _ends(means, level, len(sums))
    total = int(counts.sum())
    mean = float(sums.sum() / total)
    return Interval(mean=mean, low=low, high=high, values=total, groups=len(sums))


def bootstrap_difference(
    first: tuple[ArrayLike, Sequence[object] | NDArray],
    second: tuple[ArrayLike, Sequence[object] | NDArray],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean of ``second`` minus mean of ``first``, on the terrains that both have.

    The same terrains are drawn for both, so that what a terrain does to both cancels.

    Args:
        first: values and their groups.
        second: values and their groups.
        level: as ``bootstrap_mean``.
        resamples: as ``bootstrap_mean``.
        seed: as ``bootstrap_mean``.
    """
    sums_a, counts_a, names_a = _by_group(*first)
    sums_b, counts_b, names_b = _by_group(*second)
    common = [name for name in names_a if name in set(names_b)]
    if not common:
        return Interval(mean=math.nan, low=math.nan, high=math.nan, values=0, groups=0)
    at_a = [names_a.index(name) for name in common]
    at_b = [names_b.index(name) for name in common]
    sums = np.stack([sums_a[at_a], sums_b[at_b]])
    counts = np.stack([counts_a[at_a], counts_b[at_b]])
    drawn = _resampled(sums, counts, resamples, seed)
    low, high = _ends(drawn[1] - drawn[0], level, len(common))
    whole = sums.sum(1) / counts.sum(1)
    mean = float(whole[1] - whole[0])
    return Interval(mean=mean, low=low, high=high, values=int(counts.sum()), groups=len(common))


def _by_group(
    values: ArrayLike, groups: Sequence[object] | NDArray
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[object]]:
    """Sum and count of the finite values of every group that has some, and the groups in order."""
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) != len(groups):
        raise ValueError(f"{len(numbers)} values in {len(groups)} groups")
    sums: dict[object, float] = {}
    counts: dict[object, float] = {}
    for value, group in zip(numbers.tolist(), groups, strict=True):
        if math.isfinite(value):
            sums[group] = sums.get(group, 0.0) + value
            counts[group] = counts.get(group, 0.0) + 1.0
    return np.array(list(sums.values())), np.array(list(counts.values())), list(sums)


def _resampled(
    sums: NDArray[np.float64], counts: NDArray[np.float64], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Means (K, R) of K kinds of values, the same groups drawn for all kinds; (K, G) given."""
    rng = np.random.default_rng(seed)
    size = sums.shape[1]
    parts = []
    for first in range(0, resamples, _CHUNK):
        drawn = rng.integers(0, size, (min(_CHUNK, resamples - first), size))
        parts.append(sums[:, drawn].sum(-1) / counts[:, drawn].sum(-1))
    return np.concatenate(parts, axis=1)


def _ends(means: NDArray[np.float64], level: float, groups: int) -> tuple[float, float]:
    if groups < 2:
        return math.nan, math.nan
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)
