"""Which clips of a catalogue are listed, and in what order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from parc_ray.errors import InputError
from parc_ray.viewer.catalog import ClipEntry

ANY = "any"
SORT_FIELDS = ("order", "name", "seconds", "iteration", "class")


@dataclass(frozen=True, kw_only=True)
class ClipFilter:
    """What is listed."""

    text: str = ""
    """Part of the id, in any case of letters."""
    iteration: str = ANY
    """Number of the PARC iteration."""
    class_name: str = ANY
    """Class of the motion."""
    maker: str = ANY
    """What made it, or "refused" for recordings that the gate refused."""
    metric: str = ""
    """Only clips that have this figure, between ``low`` and ``high``."""
    low: float = -math.inf
    """Least value of the metric."""
    high: float = math.inf
    """Greatest value of the metric."""
    sort: str = "order"
    """One of ``SORT_FIELDS``, or the name of a metric; clips without it come last."""
    descending: bool = False
    """Greatest first."""

    def apply(self, entries: Iterable[ClipEntry]) -> list[ClipEntry]:
        """The entries that pass, sorted.

        Raises:
            InputError: no listed clip has the metric that is to be sorted by.
        """
        kept = [entry for entry in entries if self.passes(entry)]
        if self.sort == "order":
            return kept[::-1] if self.descending else kept
        if self.sort in SORT_FIELDS:
            return sorted(kept, key=lambda e: _field(e, self.sort), reverse=self.descending)
        having = [e for e in kept if math.isfinite(e.metrics.get(self.sort, math.nan))]
        if kept and not having:
            raise InputError(f"sort: no listed clip has a figure {self.sort!r}; choose another")
        rest = [e for e in kept if not math.isfinite(e.metrics.get(self.sort, math.nan))]
        having.sort(key=lambda e: e.metrics[self.sort], reverse=self.descending)
        return [*having, *rest]

    def passes(self, entry: ClipEntry) -> bool:
        """Whether an entry is listed."""
        made, value = entry.provenance, entry.metrics.get(self.metric, math.nan)
        return (
            self.text.lower() in entry.clip_id.lower()
            and self.iteration in (ANY, str(made.iteration))
            and self.class_name in (ANY, made.class_name)
            and self.maker in (ANY, "refused" if entry.refused else made.maker)
            and (not self.metric or self.low <= value <= self.high)
        )


def _field(entry: ClipEntry, name: str) -> tuple[float, str]:
    made = entry.provenance
    number = {"seconds": entry.seconds, "iteration": float(made.iteration)}.get(name, 0.0)
    text = {"name": entry.clip_id, "class": made.class_name}.get(name, "")
    return number, text


def choices(entries: Iterable[ClipEntry]) -> dict[str, list[str]]:
    """Values that occur: of iteration, class and maker (``ANY`` first), and metrics' names."""
    iterations: set[int] = set()
    classes: set[str] = set()
    makers: set[str] = set()
    metrics: set[str] = set()
    for entry in entries:
        iterations.add(entry.provenance.iteration)
        classes.add(entry.provenance.class_name)
        makers.add("refused" if entry.refused else entry.provenance.maker)
        metrics |= entry.metrics.keys()
    return {
        "iteration": [ANY, *map(str, sorted(iterations))],
        "class": [ANY, *sorted(c for c in classes if c)],
        "maker": [ANY, *sorted(makers)],
        "metric": sorted(metrics),
    }
