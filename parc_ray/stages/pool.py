"""Work items, each written once and for all; one pool of actors or a chain of them does the work.

An item is done when its record ``items/<id>.json`` exists; its clips lie beside it in
``items/<id>.parquet``. Items depend on nothing but their own payload and seed, so a killed run that
goes on makes the same files as an undisturbed one, and a lost actor costs the item it was at.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from parc_ray.data.storage import Storage
from parc_ray.pool_config import PoolConfig
from parc_ray.stages._items import (
    Effort,
    Handover,
    ItemOutput,
    ItemResult,
    Operator,
    Step,
    Worker,
    WorkItem,
    read_item,
    record_path,
)
from parc_ray.stages._segments import Segment, Ticket

__all__ = [
    "Effort",
    "Handover",
    "ItemOutput",
    "ItemResult",
    "Operator",
    "Step",
    "WorkItem",
    "Worker",
    "read_item",
    "run_chain",
    "run_items",
]

logger = logging.getLogger(__name__)


def run_items(
    directory: Storage,
    items: Sequence[WorkItem],
    make_worker: Callable[..., Worker],
    arguments: Mapping[str, Any],
    pool: PoolConfig,
    label: str,
) -> list[ItemResult]:
    """Do all items that are not done yet; return the results of all, in the order of ``items``.

    Args:
        directory: the stage's directory.
        items: the work, with unique ids.
        make_worker: called with ``arguments`` once in every actor.
        arguments: pickled to the actors once, through the object store.
        pool: how many actors and what each may use; 0 actors: this process, without Ray.
        label: name for the progress lines.
    """
    whole = {"make_worker": make_worker, "arguments": arguments}
    operator = Operator(name="work", make=_WholeItem, arguments=whole, pool=pool)
    return run_chain(directory, items, [operator], label, together=pool)


def run_chain(
    directory: Storage,
    items: Sequence[WorkItem],
    operators: Sequence[Operator],
    label: str,
    *,
    together: PoolConfig | None,
    queued: int = 2,
    watch: Callable[[ItemResult], None] | None = None,
) -> list[ItemResult]:
    """Send all items that are not done yet through a chain of operators.

    What an item becomes does not depend on ``together``, ``queued`` or any number of actors:
    between operators it is bytes in every case.

    Args:
        directory: the stage's directory.
        items: the work, with unique ids.
        operators: first to last.
        label: name for the progress lines.
        together: one pool whose actors run the whole chain; None gives every operator its own
            pool, so that they overlap and scale on their own.
        queued: items that may wait before an operator; see ``parc_ray.stages.streams``.
        watch: called in this process with every item that was finished in this call.

    Returns:
        The results of all items, in their order.
    """
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        raise ValueError(f"{label}: item ids repeat")
    missing = [item for item in items if not _is_whole(directory, item.id)]
    if len(missing) < len(items):
        logger.info("[%s] %d of %d found done", label, len(items) - len(missing), len(items))
    if missing:
        progress = _Progress(label, len(missing))
        for item_id in _finish(directory, missing, operators, together, queued):
            result = read_item(directory, item_id)
            progress.add(result)
            if watch is not None:
                watch(result)
    return [read_item(directory, item.id) for item in items]


def _is_whole(directory: Storage, item_id: str) -> bool:
    """Whether an item is done and its part is as it was written; a damaged one is done again."""
    if not directory.exists(record_path(item_id)):
        return False
    part = read_item(directory, item_id).part
    if part is None or (directory.exists(part.path) and directory.sha256(part.path) == part.sha256):
        return True
    logger.warning("%s/%s: damaged, making it again", directory, part.path)
    directory.delete(record_path(item_id))
    return False


def _finish(
    directory: Storage,
    items: Sequence[WorkItem],
    operators: Sequence[Operator],
    together: PoolConfig | None,
    queued: int,
) -> Iterator[str]:
    """Yield the ids of items as they finish."""
    if together is not None and together.actors == 0:
        threads = torch.get_num_threads()
        try:
            segment = Segment(directory, operators, together.threads, last=True)
            for item in items:
                segment.run(Ticket.of(item))
                yield item.id
        finally:
            torch.set_num_threads(threads)
        return
    from parc_ray.stages.streams import stream  # Ray only where actors are wanted

    yield from stream(directory, items, operators, together, queued)


class _WholeItem:
    """A worker of whole items as the only operator of a chain."""

    def __init__(self, make_worker: Callable[..., Worker], arguments: Mapping[str, Any]) -> None:
        self._worker = make_worker(**arguments)

    def __call__(self, item: WorkItem, data: bytes) -> ItemOutput:
        """Do one item."""
        return self._worker(item)


class _Progress:
    """One line per finished item: rate so far and where the time went."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, total
        self._began, self._count = time.monotonic(), 0
        self._wall: defaultdict[str, float] = defaultdict(float)

    def add(self, result: ItemResult) -> None:
        """Count an item and say so."""
        self._count += 1
        for name, effort in result.efforts.items():
            self._wall[name] += effort.wall_s
        elapsed = time.monotonic() - self._began
        whole = sum(self._wall.values()) or 1.0
        shares = ", ".join(f"{n} {100 * s / whole:.0f} %" for n, s in self._wall.items())
        logger.info(
            "[%s] %d/%d %s, %d clips (%.0f s, %.3g items/s%s)",
            self._label,
            self._count,
            self._total,
            result.id,
            result.part.rows if result.part else 0,
            elapsed,
            self._count / max(elapsed, 1e-9),
            f"; {shares}" if len(self._wall) > 1 else "",
        )
