"""How fast the operators of a chain worked: a table, figures and curves."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from parc_ray.stages.base import StageRun
from parc_ray.stages.pool import ItemResult

COLUMNS = (
    "operator",
    "items",
    "motions",
    "cpu_s",
    "wall_s",
    "wall_share",
    "items_per_s",
    "motions_per_cpu_h",
)


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What one operator did.

    Attributes:
        items: items done.
        motions: motions handed on (a planner: paths).
        cpu_s: CPU time of all its actors, s.
        wall_s: time that its actors were busy, added up, s.
        wall_share: share of the busy time of all operators, 0..1.
    """

    items: int
    motions: int
    cpu_s: float
    wall_s: float
    wall_share: float

    @property
    def items_per_s(self) -> float:
        """Rate of one busy actor, 1/s; nan where nothing took time."""
        return self.items / self.wall_s if self.wall_s > 0 else math.nan

    @property
    def motions_per_cpu_h(self) -> float:
        """Motions per CPU-hour of this operator alone; nan where nothing took time."""
        return 3600.0 * self.motions / self.cpu_s if self.cpu_s > 0 else math.nan


def throughput(results: Sequence[ItemResult]) -> dict[str, Throughput]:
    """By operator, over all finished items, in whichever attempt of the stage."""
    names = list(dict.fromkeys(name for r in results for name in r.efforts))
    efforts = {name: [r.efforts[name] for r in results if name in r.efforts] for name in names}
    busy = {name: sum(e.wall_s for e in efforts[name]) for name in names}
    whole = sum(busy.values())
    return {
        name: Throughput(
            items=len(efforts[name]),
            motions=sum(e.motions for e in efforts[name]),
            cpu_s=sum(e.cpu_s for e in efforts[name]),
            wall_s=busy[name],
            wall_share=busy[name] / whole if whole > 0 else math.nan,
        )
        for name in names
    }


def write_throughput(run: StageRun, results: Sequence[ItemResult]) -> dict[str, float]:
    """Write ``throughput.csv`` into the stage's directory; the same as figures of the stage."""
    table = throughput(results)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    figures: dict[str, float] = {}
    for operator, row in table.items():
        values = {name: getattr(row, name) for name in COLUMNS[1:]}
        writer.writerow([operator, *(f"{v:.6g}" for v in values.values())])
        figures |= {f"throughput/{operator}/{k}": float(v) for k, v in values.items()}
    run.dir.write_bytes_atomic("throughput.csv", stream.getvalue().encode())
    return figures


def log_item(run: StageRun, step: int, result: ItemResult) -> None:
    """Scalars of an item that was just finished: what each operator spent on it."""
    for operator, effort in result.efforts.items():
        tag = f"curve/throughput/{operator}"
        values = {f"{tag}/item_cpu_s": effort.cpu_s, f"{tag}/item_wall_s": effort.wall_s}
        run.scalars.add_all({**values, f"{tag}/item_motions": float(effort.motions)}, step)
