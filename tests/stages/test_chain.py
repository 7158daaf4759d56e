"""Chains of operators: the same files however they are placed, whoever dies."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from parc_ray.config import ResourcesConfig
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_part
from parc_ray.errors import InputError
from parc_ray.pool_config import Capacity, ChainPools, PoolConfig
from parc_ray.scalars import read_scalars
from parc_ray.stages._throughput import COLUMNS, log_item, throughput, write_throughput
from parc_ray.stages.base import StageOutputs
from parc_ray.stages.generate import round_size
from parc_ray.stages.pool import Effort, Handover, ItemOutput, ItemResult, Operator
from tests.integration.processes import descendants, end, survivors
from tests.stages.chains import INLINE, ITEMS, NAMES, SMALL, chain, files, run, trail, work
from tests.stages.helpers import run_body


def told(results):
    """What does not depend on the time that it took."""
    motions = [{name: e.motions for name, e in r.efforts.items()} for r in results]
    return [(r.id, r.part, r.record, m) for r, m in zip(results, motions, strict=True)]


def test_what_is_handed_over_and_recorded(tmp_path):
    results = run(tmp_path, chain(tmp_path), INLINE)
    assert [r.id for r in results] == [f"item-{k}" for k in range(ITEMS)]
    assert [r.part.rows if r.part else 0 for r in results] == [0, 1, 2, 0, 1, 2]
    first = len("plan(item-0)") + 1  # and a zero byte, which must not get lost
    second = first + len("roll-out(item-0)") + 1
    third = second + len("optimise(item-0)") + 1
    assert results[0].record == {"plan": first, "roll-out": second, "optimise": third}
    assert list(results[0].efforts) == list(NAMES)
    assert [e.motions for e in results[2].efforts.values()] == [2, 2, 2]
    assert [e.motions for e in results[1].efforts.values()] == [2, 2, 1]
    assert all(e.wall_s >= 0 and e.cpu_s >= 0 for r in results for e in r.efforts.values())
    clip = read_part(Storage.from_uri(tmp_path / "stage"), results[1].part)[0]
    said = "".join(f"{name}(item-1)\0" for name in NAMES)
    assert clip.metrics["bytes"] == sum(said.encode())


def test_finished_items_are_not_done_again(tmp_path):
    first = run(tmp_path, chain(tmp_path), INLINE, items=work(2))
    before = trail(tmp_path / "trail")
    seen = []
    again = run(tmp_path, chain(tmp_path), INLINE, items=work(3), watch=seen.append)
    assert again[:2] == first
    assert {item for _, _, item in trail(tmp_path / "trail")[len(before) :]} == {"item-2"}
    assert seen == again[2:]


def test_only_the_last_operator_makes_clips(tmp_path):
    def only(name, made):
        return Operator(name=name, make=lambda: lambda *_: made, arguments={}, pool=SMALL)

    early, late = only("early", ItemOutput()), only("late", Handover(data=b""))
    for operators, name in (([early, *chain(tmp_path)], "early"), ([late], "late")):
        with pytest.raises(TypeError, match=name):
            run(tmp_path, operators, INLINE)
    assert not (tmp_path / "stage/items").exists()


@pytest.mark.slow
def test_apart_together_and_alone_make_the_same_files(tmp_path, ray_session):
    alone = run(tmp_path / "alone", chain(tmp_path), INLINE)
    together = run(tmp_path / "together", chain(tmp_path), PoolConfig(actors=2, cpus=0.5))
    apart = run(tmp_path / "apart", chain(tmp_path), None)
    assert told(alone) == told(together) == told(apart)
    assert files(tmp_path / "alone") == files(tmp_path / "together") == files(tmp_path / "apart")
    assert len(files(tmp_path / "alone")) == 4


@pytest.mark.slow
def test_operators_overlap_and_queues_between_them_are_bounded(tmp_path, ray_session):
    operators = chain(tmp_path)
    operators[2] = chain(tmp_path, pause_s=0.5)[2]
    run(tmp_path, operators, None, items=work(14), queued=1)
    ahead, most = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    for name, what, _ in trail(tmp_path / "trail"):
        if what == "ends":
            ahead[name] += 1
        elif name != NAMES[0]:
            before = NAMES[NAMES.index(name) - 1]
            most[before] = max(most[before], ahead[before])
            ahead[before] -= 1
    # One waits, one is under way when the queue fills, one may be on its way to the next actor; a
    # busy machine adds two. Without bounds all 14 would be there before the first is optimised.
    assert 1 <= most["plan"] <= 5
    assert 1 <= most["roll-out"] <= 5
    events = trail(tmp_path / "trail")
    last = events.index(("plan", "starts", "item-13"))
    assert events.index(("optimise", "ends", "item-0")) < last


@pytest.mark.slow
def test_actors_killed_in_the_middle_cost_only_their_item(tmp_path, ray_session):
    calm = run(tmp_path / "calm", chain(tmp_path / "calm"), INLINE)
    hit = tmp_path / "hit"
    results = run(hit, chain(hit, roll_out="item-1", optimise="item-4"), None)
    assert told(results) == told(calm)
    assert files(hit) == files(tmp_path / "calm")
    starts = [(name, item) for name, what, item in trail(hit / "trail") if what == "starts"]
    assert len(starts) == 3 * ITEMS + 2
    assert starts.count(("roll-out", "item-1")) == 2
    assert starts.count(("optimise", "item-4")) == 2
    assert len(list((hit / "stage/items").iterdir())) == ITEMS + 4, "a record each, and the parts"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_killed_driver_goes_on_with_what_is_missing(tmp_path):
    calm = run(tmp_path / "calm", chain(tmp_path / "calm"), INLINE)
    hit = tmp_path / "hit"
    hit.mkdir()
    _kill_driver(hit, records=2)
    kept = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (hit / "stage/items").iterdir()}
    finished = {p.stem for p in kept if p.suffix == ".json"}
    assert 2 <= len(finished) < ITEMS
    before = len(trail(hit / "trail"))
    results = run(hit, chain(hit), INLINE)
    assert told(results) == told(calm)
    assert files(hit) == files(tmp_path / "calm")
    done_now = {item for _, _, item in trail(hit / "trail")[before:]}
    assert done_now == {r.id for r in results} - finished
    records = [p for p in kept if p.stem in finished]
    assert all((p.stat().st_ino, p.stat().st_mtime_ns) == kept[p] for p in records)
    assert not [p for p in hit.rglob("*.tmp")]


def _kill_driver(folder: Path, records: int) -> None:
    """Start a driver, kill it with signal 9 at so many finished items, and what it left."""
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.stages.chains", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    limit = time.monotonic() + 240.0
    try:
        while len(list(folder.glob("stage/items/*.json"))) < records:
            assert driver.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        family = descendants(driver.pid)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    end(survivors(family, 10.0))


def pools(placement="auto", **changes) -> ChainPools:
    values = {"cpus_per_worker": 1.0, "generate_operators": placement, **changes}
    return ResourcesConfig(**values).generate_pools()


def test_operators_are_apart_where_every_actor_has_a_core():
    ten = Capacity(cpus=10, cores=10, gpus=0)
    assert pools().shared(ten) is None
    assert pools().shared(Capacity(cpus=5, cores=5, gpus=0)) is None  # 1 + 2 + 2 actors
    two = Capacity(cpus=8, cores=2, gpus=0)  # Ray was told eight
    assert pools().shared(two) == PoolConfig(actors=2, cpus=1.0)
    assert pools(cpus_per_worker=0.1).shared(two) is not None
    assert pools("apart").shared(two) is None
    assert pools("together").shared(ten) is not None


def test_gpus_of_operators():
    made = pools(gpus_per_worker=0.5, optimize_gpus=0.25, rollout_gpus=0.75, optimize_actors=3)
    assert [(p.actors, p.gpus, p.device) for p in made.operators.values()] == [
        (1, 0.0, "cpu"),
        (2, 0.75, "cuda"),
        (3, 0.25, "cuda"),
    ]
    assert made.together.gpus == 0.75
    plenty = {"cpus": 99.0, "cores": 99.0}
    assert made.shared(Capacity(gpus=2.25, **plenty)) is None
    assert made.shared(Capacity(gpus=2.0, **plenty)) == made.together
    on_cpu = pools(gpus_per_worker=1.0, optimize_gpus=0.0)
    assert on_cpu.operators["optimise"].device == "cpu"
    assert on_cpu.operators["roll-out"].gpus == 1.0


def test_pools_that_do_not_fit_are_refused_instead_of_waiting_for_ever():
    with pytest.raises(InputError, match=r"generate_operators: apart takes 5 CPUs and 0 GPUs"):
        pools("apart").shared(Capacity(cpus=4, cores=4, gpus=0))
    for wrong in ({"queued_items": 0}, {"plan_actors": 0}, {"optimize_actors": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            ResourcesConfig(**wrong)
    with pytest.raises(InputError, match="rollout_gpus"):
        ResourcesConfig(rollout_gpus=-0.5)


def result(name, plan, last):
    efforts = {
        operator: Effort(cpu_s=cpu_s, wall_s=wall_s, motions=motions)
        for operator, (cpu_s, wall_s, motions) in (("plan", plan), ("optimise", last))
    }
    return ItemResult(id=name, part=None, record={}, efforts=efforts)


RESULTS = [result("a", (1.0, 2.0, 3), (4.0, 6.0, 1)), result("b", (2.0, 3.0, 2), (5.0, 9.0, 2))]


def test_throughput_by_operator():
    table = throughput(RESULTS)
    assert list(table) == ["plan", "optimise"]
    plan, last = table.values()
    assert (plan.items, plan.motions, plan.cpu_s, plan.wall_s) == (2, 5, 3.0, 5.0)
    assert (plan.wall_share, last.wall_share) == (0.25, 0.75)
    assert (plan.items_per_s, last.items_per_s) == (pytest.approx(0.4), pytest.approx(2 / 15))
    assert last.motions_per_cpu_h == pytest.approx(3600 * 3 / 9)
    assert throughput([]) == {}


def test_throughput_is_written_and_logged(tmp_path):
    class Config:
        seed = 3

    def body(run):
        for step, item in enumerate(RESULTS):
            log_item(run, step, item)
        return StageOutputs(paths={}, metrics=write_throughput(run, RESULTS))

    made = run_body(tmp_path, "generate", body, {}, Config(), 1)
    assert made.metrics["throughput/optimise/wall_share"] == 0.75
    stored = (tmp_path / "it_01/generate/throughput.csv").read_bytes()
    frame = pd.read_csv(io.BytesIO(stored))
    assert tuple(frame.columns) == COLUMNS
    assert list(frame["operator"]) == ["plan", "optimise"]
    assert list(frame["motions"]) == [5, 3]
    logged = {(r.tag, r.step): r.value for r in read_scalars(Storage.from_uri(tmp_path))}
    assert logged["curve/throughput/plan/item_wall_s", 1] == 3.0
    assert logged["generate/throughput/plan/items", 1] == 2.0


def test_rounds_follow_from_the_share_kept_so_far_in_whole_items():
    assert round_size(0, 0, motions=7, top_k=1) == 9
    assert round_size(0, 0, motions=7, top_k=4) == 3
    assert round_size(9, 0, motions=7, top_k=1) == 36
    assert round_size(9, 3, motions=7, top_k=1) == 12  # a third was kept, four are missing
    assert round_size(9, 1, motions=1000, top_k=1) == 36
