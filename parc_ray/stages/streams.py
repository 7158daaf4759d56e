"""Chains of operators on Ray Data: actor pools, bounded queues between them, bounded retries."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.data._internal.execution.backpressure_policy import (
    ENABLED_BACKPRESSURE_POLICIES,
    ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY,
)
from ray.data._internal.execution.backpressure_policy.backpressure_policy import (
    BackpressurePolicy,
)

from parc_ray.data.storage import Storage
from parc_ray.pool_config import Capacity, PoolConfig
from parc_ray.stages._items import Operator, WorkItem
from parc_ray.stages._segments import Segment, Ticket

ITEM_RETRIES = 3
"""How often an item is tried again after its actor died; then the stage ends with an error."""
FULL = 1.0
"""Share of a pool's actors that are at work when it grows. Ray Data's own 1.75 counts items that
wait in an actor too, of which there are none here: no pool would ever grow."""
_QUEUED_KEY = "parc_ray.queued_items"
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("payload", pa.large_string()),
        ("so_far", pa.large_string()),
        ("data", pa.large_binary()),
    ]
)


def capacity() -> Capacity:
    """What the Ray cluster that this process is connected to has; a single node is this machine."""
    have = ray.cluster_resources()
    cpus = have.get("CPU", 0.0)
    alone = len(ray.nodes()) == 1
    cores = min(cpus, float(os.cpu_count() or 1)) if alone else cpus
    return Capacity(cpus=cpus, cores=cores, gpus=have.get("GPU", 0.0))


def stream(
    directory: Storage,
    items: Sequence[WorkItem],
    operators: Sequence[Operator],
    together: PoolConfig | None,
    queued: int,
) -> Iterator[str]:
    """Yield the ids of items as actors finish them.

    An operator starts no item while ``queued`` or more wait before the next one. So no more than
    ``queued`` plus the number of its own actors ever wait there, and the object store holds no
    more than that of what operators hand over.

    Args:
        directory: the stage's directory.
        items: the work.
        operators: first to last.
        together: a pool whose actors run all operators; None: one pool each.
        queued: items that may wait before an operator.
    """
    DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = pa.Table.from_pylist([Ticket.of(item).to_row() for item in items], schema=_SCHEMA)
    dataset = ray.data.from_arrow([rows.slice(i, 1) for i in range(len(rows))])
    if together is not None:
        segments = [(list(operators), together)]
    else:
        segments = [([operator], operator.pool) for operator in operators]
    for number, (part, pool) in enumerate(segments, 1):
        last = number == len(segments)
        dataset = _add_pool(dataset, directory, part, pool, len(items), last=last)
    dataset.context.set_config(
        ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY, [*ENABLED_BACKPRESSURE_POLICIES, QueueLimit]
    )
    dataset.context.set_config(_QUEUED_KEY, queued)
    scaling = dataset.context.autoscaling_config
    scaling.actor_pool_util_upscaling_threshold = FULL
    for row in dataset.iter_rows():
        yield str(row["id"])


def _add_pool(
    dataset: Dataset,
    directory: Storage,
    operators: list[Operator],
    pool: PoolConfig,
    items: int,
    *,
    last: bool,
) -> Dataset:
    """The data set, taken through ``operators`` by one pool of actors."""
    arguments = ray.put([dict(operator.arguments) for operator in operators])
    bare = [replace(operator, arguments={}) for operator in operators]
    # The class's name is the operator's name in Ray's process titles, dashboard and statistics.
    name = re.sub(r"\W+", "_", "_".join(operator.name for operator in operators))
    with warnings.catch_warnings():
        # Ray 2.60 has no other way to bound the retries of an item (see ``_retries``).
        warnings.filterwarnings("ignore", message=".*ray_remote_args_fn.*")
        return dataset.map_batches(
            type(name, (_SegmentActor,), {}),  # pyright: ignore[reportArgumentType]
            batch_size=1,
            batch_format="pyarrow",
            compute=_strategy(pool, items),
            num_cpus=pool.cpus,
            resources=pool.custom() or None,
            num_gpus=pool.gpus or None,
            ray_remote_args_fn=_retries,
            fn_constructor_args=(directory, bare, arguments, pool.threads, last),
        )


def _strategy(pool: PoolConfig, items: int) -> ActorPoolStrategy:
    """A pool of fixed size, or one that grows while items wait; never more actors than items."""
    size = min(pool.actors, items)
    most = min(pool.most or size, items)
    if most <= size:
        return ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1)
    return ActorPoolStrategy(
        min_size=size, max_size=most, initial_size=size, max_tasks_in_flight_per_actor=1
    )


def _retries() -> dict[str, Any]:
    """Options of an actor: Ray Data's own retries of an item are without end."""
    return {"max_task_retries": ITEM_RETRIES}


class _SegmentActor:
    """The callable that Ray Data keeps in each actor."""

    def __init__(
        self,
        directory: Storage,
        operators: list[Operator],
        arguments: ray.ObjectRef,
        threads: int,
        last: bool,
    ) -> None:
        known = ray.get(arguments)
        whole = [replace(op, arguments=a) for op, a in zip(operators, known, strict=True)]
        self._segment = Segment(directory, whole, threads, last=last)

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = [self._segment.run(Ticket.from_row(row)).to_row() for row in batch.to_pylist()]
        return pa.Table.from_pylist(rows, schema=_SCHEMA)


class QueueLimit(BackpressurePolicy):
    """Counts waiting items, where Ray Data's own limits count bytes of the object store."""

    def can_add_input(self, op: Any) -> bool:
        """Whether operator ``op`` may start an item: the queues after it are short."""
        queued = self._data_context.get_config(_QUEUED_KEY)
        after = op.output_dependencies
        return all(self._topology[o].total_enqueued_input_blocks() < queued for o in after)
