"""What a run has done so far, read from the markers and tables that its stages left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from parc_ray.data.storage import Storage
from parc_ray.stages.base import DONE

STAGE_ORDER = (
    "import",
    "augment",
    "train-generator",
    "generate",
    "train-tracker",
    "record",
    "merge",
    "evaluate",
)
"""Stages in the order in which an iteration runs them."""


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """One finished stage.

    Attributes:
        iteration: 0 for the correction of the initial data.
        name: stage name.
        directory: the stage's directory.
        metrics: its figures; None where a figure was not finite.
        seconds: wall time.
        cpu_seconds: CPU time of driver and workers.
    """

    iteration: int
    name: str
    directory: Storage
    metrics: dict[str, float | None]
    seconds: float
    cpu_seconds: float

    def table(self, name: str) -> pd.DataFrame | None:
        """A CSV table that the stage wrote, or None where it wrote none."""
        if not self.directory.exists(name):
            return None
        data = self.directory.read_bytes(name)
        return csv.read_csv(pa.BufferReader(data)).to_pandas()

    def records(self, name: str = "records.json") -> list[dict[str, Any]]:
        """The per-item records that the stage wrote."""
        return self.directory.read_json(name) if self.directory.exists(name) else []


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """All finished stages of a run, iteration by iteration."""

    name: str
    stages: tuple[StageSummary, ...]

    @property
    def iterations(self) -> list[int]:
        """Iterations that have at least one finished stage."""
        return sorted({stage.iteration for stage in self.stages})

    def stage(self, iteration: int, name: str) -> StageSummary | None:
        """The finished stage of that name, or None."""
        found = [s for s in self.stages if s.iteration == iteration and s.name == name]
        return found[0] if found else None

    def time_table(self) -> pd.DataFrame:
        """Wall and CPU seconds per iteration and stage."""
        rows = [
            {
                "iteration": s.iteration,
                "stage": s.name,
                "wall_s": s.seconds,
                "cpu_s": s.cpu_seconds,
            }
            for s in self.stages
        ]
        return pd.DataFrame(rows, columns=["iteration", "stage", "wall_s", "cpu_s"])


def summarise(run: Storage, name: str) -> RunSummary:
    """Read every stage marker below the run directory."""
    stages = []
    for directory in run.list_dirs():
        head, _, number = directory.rpartition("_")
        if head != "it" or not number.isdigit():
            continue
        stages += [
            _read_stage(run, path, int(number))
            for path in run.list_dirs(directory)
            if run.exists(f"{path}/{DONE}")
        ]
    stages.sort(key=lambda s: (s.iteration, _position(s.name)))
    return RunSummary(name=name, stages=tuple(stages))


def _position(name: str) -> int:
    return STAGE_ORDER.index(name) if name in STAGE_ORDER else len(STAGE_ORDER)


def _read_stage(run: Storage, path: str, iteration: int) -> StageSummary:
    marker = run.read_json(f"{path}/{DONE}")
    return StageSummary(
        iteration=iteration,
        name=path.rsplit("/", 1)[-1],
        directory=run.join(path),
        metrics=dict(marker["metrics"]),
        seconds=marker["seconds"],
        cpu_seconds=marker["cpu_seconds"],
    )
