"""What workers of each kind ask for, and which stages leave the driver."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import fs

from parc_ray import cluster, dispatch
from parc_ray.arguments import override
from parc_ray.config import ParcConfig, ResourcesConfig
from parc_ray.data.storage import Storage
from parc_ray.dispatch import Dispatcher
from parc_ray.errors import InputError
from parc_ray.hosting import Hosted, _hosted, needs_host
from parc_ray.placement import NODE_SHARE, PlaceConfig
from parc_ray.plan import PlannedStage
from parc_ray.pool_config import PoolConfig
from parc_ray.recipes import get_recipe
from parc_ray.stages.base import StageContext, StageResult
from parc_ray.stages.streams import _strategy

TRACKER = PlannedStage(iteration=1, name="train-tracker", inputs={})


def configured(*words: str) -> ParcConfig:
    return override(get_recipe("quick"), words)


def test_without_places_everything_is_as_the_section_says():
    resources = get_recipe("base").resources
    assert resources.per_worker() == {"CPU": 1.0, "GPU": 0.5}
    assert resources.recording_pool() == PoolConfig(actors=2, cpus=1.0, gpus=0.0, threads=4)
    assert resources.testing_pool().gpus == 0.5
    assert not resources.places.nodes()


def test_places_change_what_workers_of_a_kind_ask_for():
    config = configured(
        *["--resources.places.record.node", "sim", "--resources.places.record.cpus", "2"],
        *["--resources.places.generator.gpus", "1", "--resources.places.generator.node", "big"],
        *["--resources.places.generate.most", "9", "--resources.places.evaluate.gpus", "0.25"],
    )
    resources = config.resources
    pool = resources.recording_pool()
    assert (pool.cpus, pool.gpus, pool.custom()) == (2.0, 0.0, {"sim": NODE_SHARE})
    assert resources.per_worker() == {"CPU": 0.5, "GPU": 1.0, "big": NODE_SHARE}
    pools = resources.generate_pools()
    assert [p.most for p in pools.operators.values()] == [None, 9, 9]  # planning is cheap
    assert pools.together.most == 9
    assert resources.testing_pool().device == "cuda"
    assert resources.places.nodes() == {"record": "sim", "generator": "big"}
    assert config.identity() == get_recipe("quick").identity()  # results do not depend on it


@pytest.mark.parametrize(
    ("size", "most", "items", "expected"),
    [(2, None, 9, (2, 2)), (2, 6, 9, (2, 6)), (2, 6, 4, (2, 4)), (4, 2, 3, (3, 3))],
)
def test_a_pool_grows_to_no_more_actors_than_allowed_and_of_use(size, most, items, expected):
    strategy = _strategy(PoolConfig(actors=size, most=most), items)
    assert (strategy.min_size, strategy.max_size) == expected


@pytest.mark.parametrize(
    "words",
    ["record.node a,b", "record.cpus -1", "generate.gpus -0.5", "generate.most 0"],
)
def test_places_that_make_no_sense_are_refused(words):
    name, value = words.split()
    with pytest.raises(InputError, match=name.split(".")[1]):
        configured(f"--resources.places.{name}", value)


@pytest.mark.parametrize(
    ("words", "offered", "expected"),
    [
        ("", {}, False),
        ("--tracker.gpus_per_learner 1", {"GPU": 1}, False),  # the driver's machine has one
        ("--tracker.gpus_per_learner 1", {"CPU": 8}, True),
        ("--resources.places.tracker.node sim", {"CPU": 8}, True),
        ("--resources.places.tracker.node sim", {"CPU": 8, "sim": 1}, False),
        ("--resources.tracker_host cluster", {"GPU": 1}, True),
        ("--resources.tracker_host driver --tracker.gpus_per_learner 1", {}, False),
        (
            "--tracker.placement colocated --tracker.num_learners 2 --tracker.gpus_per_learner 1",
            {},
            False,  # its learners are actors already
        ),
    ],
)
def test_a_tracker_leaves_a_driver_that_lacks_what_it_asks_for(
    monkeypatch, words, offered, expected
):
    def has(wanted):
        return all(offered.get(k, 0) >= v for k, v in wanted.items() if v)

    monkeypatch.setattr(cluster, "connect", lambda resources: None)
    monkeypatch.setattr(cluster, "driver_has", has)
    config = configured(*words.split())
    assert needs_host(config, TRACKER) is expected
    assert not needs_host(config, replace(TRACKER, name="record"))


def result_of(context: StageContext, stage: PlannedStage) -> StageResult:
    """A stage that kills its process as often as ``kills`` says, and leaves its process id."""
    home = context.run.local_path()
    with (home / "tries").open("a") as file:
        file.write(f"{os.getpid()}\n")
    tries = (home / "tries").read_text().split()
    if len(tries) <= int((home / "kills").read_text()):
        os._exit(1)
    if (home / "wrong").exists():
        raise InputError("data: it is wrong; change it")
    return done(stage)


def done(stage: PlannedStage) -> StageResult:
    return StageResult(
        name=stage.name,
        iteration=stage.iteration,
        outputs={},
        inputs={},
        metrics={},
        config_hash="",
        seconds=1.0,
        cpu_seconds=1.0,
    )


def context(home: Path, kills: int, retries: int = 2) -> StageContext:
    (home / "kills").write_text(str(kills))
    resources = ResourcesConfig(stage_retries=retries, tracker_host="cluster")
    config = replace(get_recipe("quick"), resources=resources)
    config = replace(config, tracker=replace(config.tracker, cpus_per_actor=0.5))
    return StageContext(run=Storage.from_uri(home), iteration=1, config=config)


@pytest.mark.slow
def test_a_stage_in_its_own_process_begins_again_when_that_is_lost(
    ray_session, tmp_path, monkeypatch
):
    monkeypatch.setattr(dispatch, "_RETRY_WAIT_S", 0.0)
    monkeypatch.setattr(dispatch, "work", result_of)
    first = context(tmp_path, kills=1)
    assert Dispatcher(first.config).run(first, TRACKER).name == "train-tracker"
    tries = (tmp_path / "tries").read_text().split()
    assert len(tries) == 2
    assert str(os.getpid()) not in tries
    assert "it_01/train-tracker" in (tmp_path / "run.log").read_text()
    hopeless = context(tmp_path, kills=99, retries=1)
    with pytest.raises(Exception, match=r"died|crashed"):
        Dispatcher(hopeless.config).run(hopeless, TRACKER)
    assert len((tmp_path / "tries").read_text().split()) == 4  # once more, not once more each
    (tmp_path / "wrong").touch()
    hosted = Hosted(result_of, context(tmp_path, kills=0), TRACKER)
    with pytest.raises(InputError, match="it is wrong"):
        hosted.result()
    assert hosted.finished()


def test_a_hosted_stage_on_an_object_store_says_on_its_console_what_it_does(
    tmp_path, capsys, monkeypatch
):
    import ray

    node = SimpleNamespace(get_node_id=lambda: "n1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: node)
    monkeypatch.chdir(tmp_path)

    def function(context: StageContext, stage: PlannedStage) -> StageResult:
        logging.getLogger("parc_ray.stages.x").info("[%s] at work", stage.label)
        return done(stage)

    remote = Storage(filesystem=fs._MockFileSystem(), root="bucket/run")
    for run in (remote, Storage.from_uri(tmp_path)):
        where = StageContext(run=run, iteration=1, config=get_recipe("smoke"))
        _hosted(function, where, TRACKER, str(tmp_path))
        said = capsys.readouterr().err
        assert "[it_01/train-tracker] works on node n1" in said
        assert "[it_01/train-tracker] at work" in said
    assert "at work" in (tmp_path / "run.log").read_text()


def test_a_place_names_one_resource():
    assert PlaceConfig().custom() == {}
    assert PlaceConfig(node="sim").custom() == {"sim": NODE_SHARE}
