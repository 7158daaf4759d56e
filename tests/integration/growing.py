"""Items that one actor alone can never finish: a pool has to grow to do them.

``python -m tests.integration.growing ADDRESS DIRECTORY NODE`` does them on a cluster, by actors
that take three CPUs each of nodes that offer the custom resource NODE. ``DIRECTORY/met`` says which
processes came.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import ray

from parc_ray.data.storage import Storage
from parc_ray.pool_config import PoolConfig
from parc_ray.stages.pool import ItemOutput, ItemResult, WorkItem, run_items

LIMIT_S = 120.0


@dataclass
class Meeting:
    """Waits in every item until two processes have begun one."""

    met: str

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Come, wait for another, say where it happened."""
        folder = Path(self.met)
        (folder / str(os.getpid())).touch()
        limit = time.monotonic() + LIMIT_S
        while len(list(folder.iterdir())) < 2:
            if time.monotonic() > limit:
                raise TimeoutError("no other actor came")
            time.sleep(0.02)
        node = ray.get_runtime_context().get_node_id()
        return ItemOutput(record={"node": node, "pid": os.getpid()})


def meet(directory: Path, pool: PoolConfig) -> list[ItemResult]:
    """Do four items."""
    met = directory / "met"
    met.mkdir(parents=True)
    items = [WorkItem(id=f"meet-{k}", payload={}) for k in range(4)]
    storage = Storage.from_uri(directory / "stage")
    return run_items(storage, items, Meeting, {"met": str(met)}, pool, "growing")


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    meet(Path(sys.argv[2]), PoolConfig(actors=1, most=2, cpus=3.0, node=sys.argv[3]))
