"""A chain of three operators that take no time, leave a trail, and die where they are told to.

``python -m tests.stages.chains FOLDER`` runs it on a Ray of its own, every operator apart and slow
enough to be killed in the middle.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from parc_ray.data.storage import Storage
from parc_ray.pool_config import PoolConfig
from parc_ray.stages.pool import Handover, ItemOutput, Operator, WorkItem, run_chain
from tests.data.clips import random_clip

NAMES = ("plan", "roll-out", "optimise")
INLINE = PoolConfig(actors=0)
SMALL = PoolConfig(actors=1, cpus=0.5)
ITEMS = 6


@dataclass
class Link:
    """Adds its name to what it was handed; the last one makes clips."""

    name: str
    trail: str
    deadly: str = ""
    pause_s: float = 0.0

    def __call__(self, item: WorkItem, data: bytes) -> Handover | ItemOutput:
        """Note when it starts and ends; the first call for item ``deadly`` ends the process."""
        self._note("starts", item)
        if item.id == self.deadly and trail(self.trail).count((self.name, "starts", item.id)) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause_s)
        data = data + f"{self.name}({item.id})".encode() + b"\0"
        record = {self.name: len(data)}
        self._note("ends", item)
        if self.name != NAMES[-1]:
            return Handover(data=data, record=record, motions=2)
        count = item.payload["clips"]
        clips = [
            random_clip(
                len(data) + k, clip_id=f"{item.id}-{k}", metrics={"bytes": float(sum(data))}
            )
            for k in range(count)
        ]
        return ItemOutput(clips=clips, record=record, motions=count)

    def _note(self, what: str, item: WorkItem) -> None:
        with Path(self.trail).open("a") as file:  # short lines: appended whole
            file.write(f"{self.name} {what} {item.id}\n")


def trail(path: str | Path) -> list[tuple[str, ...]]:
    """(operator, starts or ends, item) in the order in which it happened."""
    file = Path(path)
    return [tuple(line.split()) for line in file.read_text().splitlines()] if file.exists() else []


def chain(folder: Path, pause_s: float = 0.0, **deadly: str) -> list[Operator]:
    """Three operators; ``deadly`` names an item by operator (with _ for -)."""
    return [
        Operator(
            name=name,
            make=Link,
            arguments={
                "name": name,
                "trail": str(folder / "trail"),
                "deadly": deadly.get(name.replace("-", "_"), ""),
                "pause_s": pause_s,
            },
            pool=SMALL,
        )
        for name in NAMES
    ]


def work(count: int = ITEMS) -> list[WorkItem]:
    """Items that make 0, 1, 2, 0, ... clips."""
    return [WorkItem(id=f"item-{k}", payload={"clips": k % 3}) for k in range(count)]


def run(folder: Path, operators: list[Operator], together: PoolConfig | None, **options):
    """Send the items through; ``folder / "stage"`` holds what is made."""
    folder.mkdir(exist_ok=True)
    items = options.pop("items", work())
    return run_chain(
        Storage.from_uri(folder / "stage"), items, operators, "test", together=together, **options
    )


def files(folder: Path) -> dict[str, bytes]:
    """All parts."""
    return {p.name: p.read_bytes() for p in sorted((folder / "stage/items").glob("*.parquet"))}


if __name__ == "__main__":
    import ray

    target = Path(sys.argv[1])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    run(target, chain(target, pause_s=0.4), None)
