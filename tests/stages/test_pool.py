"""Items are done once, survive lost actors, and come back in order."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from ray.exceptions import RayError

from parc_ray.data.storage import Storage
from parc_ray.data.store import read_part
from parc_ray.pool_config import PoolConfig
from parc_ray.stages._segments import Segment, Ticket
from parc_ray.stages.pool import ItemOutput, Operator, WorkItem, read_item, run_items
from tests.data.clips import random_clip, tensors_of
from tests.integration.growing import meet

INLINE = PoolConfig(actors=0)


@dataclass
class Recorder:
    """Leaves a line per call; item ``deadly`` ends its process the first ``deaths`` times."""

    log: str
    deaths: int = 0

    def __call__(self, item: WorkItem) -> ItemOutput:
        """Note the call; make as many clips as the payload says."""
        with Path(self.log).open("a") as file:
            file.write(f"{item.id} {os.getpid()}\n")
        if item.payload.get("deadly") and calls(self.log).count(item.id) <= self.deaths:
            os._exit(1)
        if item.payload.get("wrong"):
            raise ZeroDivisionError(item.id)
        clips = [random_clip(i, clip_id=f"{item.id}-{i}") for i in range(item.payload["clips"])]
        return ItemOutput(clips=clips, record={"square": item.payload["clips"] ** 2})


def calls(log: str | Path) -> list[str]:
    path = Path(log)
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def items(**changes: dict) -> list[WorkItem]:
    return [
        WorkItem(id=name, payload={"clips": number, **changes.get(name, {})})
        for number, name in enumerate("dbca")
    ]


def run(tmp_path, work, pool=INLINE, deaths=0):
    arguments = {"log": str(tmp_path / "log"), "deaths": deaths}
    storage = Storage.from_uri(tmp_path / "stage")
    return run_items(storage, work, Recorder, arguments, pool, "test")


def test_results_come_in_the_order_of_the_items_with_their_clips(tmp_path):
    results = run(tmp_path, items())
    assert [r.id for r in results] == ["d", "b", "c", "a"]
    assert [r.record for r in results] == [{"square": n * n} for n in range(4)]
    assert results[0].part is None
    assert results[3].part is not None
    clips = read_part(Storage.from_uri(tmp_path / "stage"), results[3].part)
    assert [c.clip_id for c in clips] == ["a-0", "a-1", "a-2"]
    assert tensors_of(clips[1]).keys() == tensors_of(random_clip(1)).keys()
    assert all(r.cpu_s >= 0 for r in results)


def test_finished_items_are_not_done_again(tmp_path):
    first = run(tmp_path, items())
    before = {p: p.read_bytes() for p in (tmp_path / "stage").rglob("*") if p.is_file()}
    assert run(tmp_path, items()) == first
    assert calls(tmp_path / "log") == ["d", "b", "c", "a"]
    assert {p: p.read_bytes() for p in (tmp_path / "stage").rglob("*") if p.is_file()} == before


def test_an_error_keeps_what_was_finished_and_the_rest_is_made_up(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, items(c={"wrong": True}))
    run(tmp_path, items())
    assert calls(tmp_path / "log") == ["d", "b", "c", "c", "a"]


@dataclass
class Counter:
    """Notes every call."""

    log: str

    def __call__(self, item: WorkItem, data: bytes) -> ItemOutput:
        """Note the call."""
        with Path(self.log).open("a") as file:
            file.write(f"{item.id} {os.getpid()}\n")
        return ItemOutput(record={"told": item.id})


def test_a_finished_item_that_ray_asks_for_again_is_left_as_it_is(tmp_path):
    arguments = {"log": str(tmp_path / "log")}
    operator = Operator(name="count", make=Counter, arguments=arguments, pool=INLINE)
    segment = Segment(Storage.from_uri(tmp_path), [operator], 1, last=True)
    item = WorkItem(id="a", payload={})
    segment.run(Ticket.of(item))
    before = (tmp_path / "items/a.json").stat()
    again = segment.run(Ticket(item=item, data=b"of an operator before"))
    assert calls(tmp_path / "log") == ["a"]
    assert (tmp_path / "items/a.json").stat() == before
    assert (again.item, again.data) == (item, b"")


def test_clips_without_their_record_do_not_count(tmp_path):
    run(tmp_path, items())
    (tmp_path / "stage/items/a.json").unlink()
    run(tmp_path, items())
    assert calls(tmp_path / "log") == ["d", "b", "c", "a", "a"]


def test_the_drivers_threads_are_left_as_they_were(tmp_path):
    before = torch.get_num_threads()
    run(tmp_path, items(), PoolConfig(actors=0, threads=before + 1))
    assert torch.get_num_threads() == before


def test_repeated_ids_are_refused(tmp_path):
    with pytest.raises(ValueError, match="repeat"):
        run(tmp_path, [*items(), WorkItem(id="a", payload={"clips": 0})])


def test_records_are_plain_json(tmp_path):
    run(tmp_path, items())
    stored = json.loads((tmp_path / "stage/items/b.json").read_text())
    assert stored["record"] == {"square": 1}
    assert stored["part"]["rows"] == 1
    assert read_item(Storage.from_uri(tmp_path / "stage"), "b").record == {"square": 1}


def test_nothing_to_do_needs_no_ray(tmp_path):
    assert run(tmp_path, [], PoolConfig(actors=2)) == []
    run(tmp_path, items())
    run(tmp_path, items(), PoolConfig(actors=2))
    assert calls(tmp_path / "log") == ["d", "b", "c", "a"]


@pytest.mark.slow
def test_actors_make_the_same_files_as_the_driver_itself(tmp_path, ray_session):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone = run(tmp_path / "one", items())
    pooled = run(tmp_path / "two", items(), PoolConfig(actors=2, cpus=0.5))
    assert [(r.id, r.part, r.record) for r in pooled] == [(r.id, r.part, r.record) for r in alone]
    pids = {line.split()[1] for line in (tmp_path / "two/log").read_text().splitlines()}
    assert str(os.getpid()) not in pids


@pytest.mark.slow
def test_a_pool_grows_while_items_wait(tmp_path, ray_session):
    """No item ends before two actors are at work."""
    results = meet(tmp_path, PoolConfig(actors=1, most=2, cpus=0.5))
    assert len({r.record["pid"] for r in results}) == 2


@pytest.mark.slow
def test_a_dying_actor_costs_only_the_item_it_was_at(tmp_path, ray_session):
    work = items(b={"deadly": True})
    results = run(tmp_path, work, PoolConfig(actors=1, cpus=0.5), deaths=1)
    assert [r.id for r in results] == ["d", "b", "c", "a"]
    done = calls(tmp_path / "log")
    assert done.count("b") == 2
    assert all(done.count(name) == 1 for name in "dca")


@pytest.mark.slow
def test_an_item_that_kills_every_actor_ends_the_stage_and_keeps_the_others(tmp_path, ray_session):
    work = items(a={"deadly": True})
    with pytest.raises(RayError):
        run(tmp_path, work, PoolConfig(actors=1, cpus=0.5), deaths=100)
    assert 2 <= calls(tmp_path / "log").count("a") <= 5
    kept = {p.stem for p in (tmp_path / "stage/items").glob("*.json")}
    assert kept == {"b", "c", "d"}


@pytest.mark.parametrize("damage", ["changed", "lost"])
def test_an_item_whose_part_was_damaged_is_done_again(tmp_path, damage):
    before = run(tmp_path, items())
    part = tmp_path / "stage" / before[2].part.path
    whole = part.read_bytes()
    if damage == "changed":
        part.write_bytes(whole[:-9] + b"x" + whole[-8:])
    else:
        part.unlink()
    after = run(tmp_path, items())
    assert calls(tmp_path / "log") == ["d", "b", "c", "a", "c"]
    assert [r.part for r in after] == [r.part for r in before]
    assert part.read_bytes() == whole
