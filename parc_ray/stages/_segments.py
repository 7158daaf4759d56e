"""Items on their way through a chain of operators, and a process that takes them along."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from parc_ray.data.manifest import Part
from parc_ray.data.storage import Storage
from parc_ray.data.store import write_part
from parc_ray.stages._items import ItemOutput, Operator, WorkItem, record_path


@dataclass(kw_only=True)
class Ticket:
    """An item on its way through a chain.

    Attributes:
        item: the item.
        data: what the last operator handed over.
        record: what the operators recorded so far.
        efforts: what they spent so far.
    """

    item: WorkItem
    data: bytes = b""
    record: dict[str, Any] = field(default_factory=dict)
    efforts: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, item: WorkItem) -> Ticket:
        """An item at the start of its way."""
        return cls(item=item)

    def to_row(self) -> dict[str, Any]:
        """Plain columns: id, text and bytes."""
        so_far = {"record": self.record, "efforts": self.efforts}
        return {
            "id": self.item.id,
            "payload": json.dumps(self.item.payload),
            "so_far": json.dumps(so_far, allow_nan=False),
            "data": self.data,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Ticket:
        """The inverse of ``to_row``."""
        item = WorkItem(id=row["id"], payload=json.loads(row["payload"]))
        return cls(item=item, data=row["data"], **json.loads(row["so_far"]))


class Segment:
    """Neighbouring operators of a chain in one process."""

    def __init__(
        self, directory: Storage, operators: Sequence[Operator], threads: int, *, last: bool
    ) -> None:
        """Build every operator's step.

        Args:
            directory: the stage's directory.
            operators: those of this process, in order.
            threads: threads of PyTorch in this process.
            last: whether the chain ends here, so that items are written.
        """
        torch.set_num_threads(threads)
        self._directory, self._last = directory, last
        self._steps = [(op.name, op.make(**op.arguments)) for op in operators]

    def run(self, ticket: Ticket) -> Ticket:
        """Take an item through; the record of a finished one is written last.

        One that has its record is left as it is: where a node dies, Ray asks again for all that
        was there, also for the news that an item was finished.
        """
        if self._directory.exists(record_path(ticket.item.id)):
            ticket.data = b""
            return ticket
        for place, (name, step) in enumerate(self._steps, 1):
            cpu, wall = time.process_time(), time.monotonic()
            made = step(ticket.item, ticket.data)
            ends = self._last and place == len(self._steps)
            if isinstance(made, ItemOutput) != ends:
                raise TypeError(f"operator {name}: the last one gives clips, all others hand over")
            part, motions = None, made.motions
            if isinstance(made, ItemOutput):
                motions = len(made.clips) if motions is None else motions
                if made.clips:
                    path = f"items/{ticket.item.id}.parquet"
                    part = write_part(self._directory, path, made.clips)
                ticket.data = b""
            else:
                ticket.data = made.data
            ticket.record |= made.record
            ticket.efforts.append(
                {
                    "name": name,
                    "cpu_s": time.process_time() - cpu,
                    "wall_s": time.monotonic() - wall,
                    "motions": motions,
                }
            )
            if ends:
                self._write(ticket, part)
        return ticket

    def _write(self, ticket: Ticket, part: Part | None) -> None:
        stored = {
            "id": ticket.item.id,
            "part": asdict(part) if part else None,
            "record": ticket.record,
            "efforts": ticket.efforts,
        }
        self._directory.write_json_atomic(record_path(ticket.item.id), stored)
