"""Work items on a pool of Ray Data actors, each item written once and for all.

An item is done when its record ``items/<id>.json`` exists; its clips lie beside it in
``items/<id>.parquet``. Items depend on nothing but their own payload and seed, so a killed run that
goes on makes the same files as an undisturbed one, and a lost actor costs the item it was at.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
import torch
from ray.data import ActorPoolStrategy, DataContext

from parc_ray.data.manifest import Part
from parc_ray.data.storage import Storage
from parc_ray.data.store import write_part
from parc_ray.motion.clip import MotionClip
from parc_ray.pool_config import PoolConfig

ITEM_RETRIES = 3
"""How often an item is tried again after its actor died; then the stage ends with an error."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkItem:
    """One independent piece of work.

    Attributes:
        id: file-name safe and unique within the stage.
        payload: JSON values only; decides, with the worker's arguments, what comes out.
    """

    id: str
    payload: dict[str, Any]


@dataclass(kw_only=True)
class ItemOutput:
    """What a worker makes of an item.

    Attributes:
        clips: motions to keep, possibly none.
        record: JSON values: metrics, rejections, reasons.
    """

    clips: list[MotionClip] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ItemResult:
    """A finished item.

    Attributes:
        id: the item's id.
        part: its Parquet part, relative to the stage directory, or None where it made no clip.
        record: the worker's record.
        cpu_s: CPU time of the worker process spent on the item.
    """

    id: str
    part: Part | None
    record: dict[str, Any]
    cpu_s: float


class Worker(Protocol):
    """Lives in an actor; built once, called for many items."""

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Do one item."""
        ...


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
        pool: how many actors and what each may use.
        label: name for the progress lines.
    """
    ids = [item.id for item in items]
    if len(set(ids)) != len(ids):
        raise ValueError(f"{label}: item ids repeat")
    missing = [item for item in items if not directory.exists(_record_path(item.id))]
    if len(missing) < len(items):
        logger.info("[%s] %d of %d found done", label, len(items) - len(missing), len(items))
    if missing:
        began = time.monotonic()
        finished = _stream(directory, missing, make_worker, arguments, pool)
        for count, item_id in enumerate(finished, 1):
            logger.info(
                "[%s] %d/%d %s (%.0f s)",
                label,
                count,
                len(missing),
                item_id,
                time.monotonic() - began,
            )
    return [read_item(directory, item.id) for item in items]


def read_item(directory: Storage, item_id: str) -> ItemResult:
    """Read the record of a finished item."""
    stored = directory.read_json(_record_path(item_id))
    part = Part(**stored["part"]) if stored["part"] else None
    return ItemResult(id=item_id, part=part, record=stored["record"], cpu_s=stored["cpu_s"])


def _record_path(item_id: str) -> str:
    return f"items/{item_id}.json"


def _stream(
    directory: Storage,
    items: Sequence[WorkItem],
    make_worker: Callable[..., Worker],
    arguments: Mapping[str, Any],
    pool: PoolConfig,
) -> Iterator[str]:
    """Yield the ids of items as they finish."""
    if pool.actors == 0:
        threads = torch.get_num_threads()
        try:
            runner = _ItemRunner(directory, make_worker, dict(arguments), pool.threads)
            for item in items:
                yield runner.run(item)
        finally:
            torch.set_num_threads(threads)
        return
    DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = [{"id": item.id, "payload": json.dumps(item.payload)} for item in items]
    with warnings.catch_warnings():
        # Ray 2.60 has no other way to bound the retries of an item (see ``_retries``).
        warnings.filterwarnings("ignore", message=".*ray_remote_args_fn.*")
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _ItemRunner,  # pyright: ignore[reportArgumentType]
            batch_size=1,
            compute=ActorPoolStrategy(
                size=min(pool.actors, len(rows)), max_tasks_in_flight_per_actor=1
            ),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus or None,
            ray_remote_args_fn=_retries,
            fn_constructor_args=(directory, make_worker, ray.put(dict(arguments)), pool.threads),
        )
    for row in dataset.iter_rows():
        yield str(row["id"])


def _retries() -> dict[str, Any]:
    """Options of an actor: Ray Data's own retries of an item are without end."""
    return {"max_task_retries": ITEM_RETRIES}


class _ItemRunner:
    """The callable that Ray Data keeps in each actor."""

    def __init__(
        self,
        directory: Storage,
        make_worker: Callable[..., Worker],
        arguments: Mapping[str, Any] | ray.ObjectRef,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        if isinstance(arguments, ray.ObjectRef):
            arguments = ray.get(arguments)
        self._directory = directory
        self._worker = make_worker(**arguments)  # pyright: ignore[reportCallIssue]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = [
            self.run(WorkItem(id=str(item_id), payload=json.loads(str(payload))))
            for item_id, payload in zip(batch["id"], batch["payload"], strict=True)
        ]
        return {"id": done}

    def run(self, item: WorkItem) -> str:
        """Do one item; its record is written last."""
        began = time.process_time()
        output = self._worker(item)
        part = None
        if output.clips:
            part = write_part(self._directory, f"items/{item.id}.parquet", output.clips)
        stored = {
            "id": item.id,
            "part": vars(part) if part else None,
            "record": output.record,
            "cpu_s": time.process_time() - began,
        }
        self._directory.write_json_atomic(_record_path(item.id), stored)
        return item.id
