"""Which clips of a data set to keep, decided from their scalar columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from parc_ray.data.schema import CLIP_SCHEMA
from parc_ray.errors import InputError

SCALAR_COLUMNS = tuple(f.name for f in CLIP_SCHEMA if not pa.types.is_large_list(f.type))
"""Columns with one value per clip, a small share of a part's bytes."""

Keep = Callable[[pa.Table], Any]
"""Takes a table of ``SCALAR_COLUMNS``, returns one bool per row (a list, NumPy or Arrow array)."""


@dataclass(frozen=True, kw_only=True)
class ClipFilter:
    """Keeps clips that pass every condition."""

    min_s: float = 0.0
    """Least duration, s."""
    max_s: float = float("inf")
    """Greatest duration, s."""
    classes: Sequence[str] = ()
    """Classes to keep; all if empty."""
    sources: Sequence[str] = ()
    """Sources to keep; all if empty."""
    max_metrics: Mapping[str, float] = field(default_factory=dict)
    """Greatest value of metrics by name; clips without the metric are left out."""

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        if not 0.0 <= self.min_s <= self.max_s:
            raise InputError(
                f"filter.min_s, max_s: {self.min_s:g}, {self.max_s:g}; 0 <= min_s <= max_s is "
                "allowed; exchange them"
            )

    def __call__(self, table: pa.Table) -> list[bool]:
        """One bool per row of a table of ``SCALAR_COLUMNS``."""
        return [self._passes(row) for row in table.to_pylist()]

    def _passes(self, row: Mapping[str, Any]) -> bool:
        if not self.min_s <= (row["num_frames"] - 1) / row["fps"] <= self.max_s:
            return False
        if self.classes and row["class_name"] not in self.classes:
            return False
        if self.sources and row["source"] not in self.sources:
            return False
        if not self.max_metrics:
            return True
        metrics = json.loads(row["metrics"])
        found = {name: metrics.get(name, float("inf")) for name in self.max_metrics}
        return all(found[name] <= limit for name, limit in self.max_metrics.items())
