"""Work items, what becomes of them, and the operators that do them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from parc_ray.data.manifest import Part
from parc_ray.data.storage import Storage
from parc_ray.motion.clip import MotionClip
from parc_ray.pool_config import PoolConfig


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
class Handover:
    """What an operator hands to the next one.

    Attributes:
        data: bytes that the next operator reads; they cross the object store.
        record: JSON values that join the item's record.
        motions: how many motions (for a planner: paths) go on.
    """

    data: bytes
    record: dict[str, Any] = field(default_factory=dict)
    motions: int = 0


@dataclass(kw_only=True)
class ItemOutput:
    """What the last operator makes of an item.

    Attributes:
        clips: motions to keep, possibly none.
        record: JSON values: metrics, rejections, reasons.
        motions: how many motions the clips are; None: every clip is one.
    """

    clips: list[MotionClip] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    motions: int | None = None


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What an operator spent on one item.

    Attributes:
        cpu_s: CPU time of its process, s.
        wall_s: wall time, s.
        motions: motions that it handed on or wrote.
    """

    cpu_s: float
    wall_s: float
    motions: int


@dataclass(frozen=True, kw_only=True)
class ItemResult:
    """A finished item.

    Attributes:
        id: the item's id.
        part: its Parquet part, relative to the stage directory, or None where it made no clip.
        record: the operators' records, joined.
        efforts: by operator, in order.
    """

    id: str
    part: Part | None
    record: dict[str, Any]
    efforts: dict[str, Effort]

    @property
    def cpu_s(self) -> float:
        """CPU time of all operators, s."""
        return sum(effort.cpu_s for effort in self.efforts.values())


class Worker(Protocol):
    """Does whole items; lives in an actor, built once, called for many items."""

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Do one item."""
        ...


class Step(Protocol):
    """Does one operator's share of items; lives in an actor likewise."""

    def __call__(self, item: WorkItem, data: bytes) -> Handover | ItemOutput:
        """Do one item, given what the operator before handed over (the first: nothing).

        The last operator returns an ``ItemOutput``, all others a ``Handover``.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of a chain.

    Attributes:
        name: for progress lines, records and process titles.
        make: called with ``arguments`` once in every actor.
        arguments: pickled to the actors once, through the object store.
        pool: how many actors and what each may use.
    """

    name: str
    make: Callable[..., Step]
    arguments: Mapping[str, Any]
    pool: PoolConfig


def read_item(directory: Storage, item_id: str) -> ItemResult:
    """Read the record of a finished item."""
    stored = directory.read_json(record_path(item_id))
    part = Part(**stored["part"]) if stored["part"] else None
    efforts = {effort.pop("name"): Effort(**effort) for effort in stored["efforts"]}
    return ItemResult(id=item_id, part=part, record=stored["record"], efforts=efforts)


def record_path(item_id: str) -> str:
    return f"items/{item_id}.json"
