"""The driver: whole runs with fake stages, killed anywhere, continued by the same command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from envs.sims import registry
from parc_ray import cluster, dispatch, loop
from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.inputs import check_inputs
from parc_ray.lock import RunLock
from parc_ray.plan import plan
from parc_ray.scalars import read_scalars
from parc_ray.stages.base import StageContext, StageOutputs
from parc_ray.stages.registry import StageSpec, clear_overrides, get_stage, override_stage
from tests.fakes import fake_config, install

ROOT = Path(__file__).resolve().parent.parent
LABELS = [s.label for s in plan(fake_config("s"))]


@pytest.fixture(autouse=True)
def _fakes():
    install()
    yield
    clear_overrides()


def drive(storage: Path, *kills: str) -> list[int]:
    """Exit codes of one driver process per kill point; an empty one runs to the end."""
    command = [sys.executable, "-m", "tests.fakes", str(storage), *kills]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def digests(storage: Path) -> dict[str, dict[str, str]]:
    """Hashes of all outputs by stage."""
    run = storage / "smoke"
    markers = {label: json.loads((run / label / "_DONE.json").read_text()) for label in LABELS}
    return {
        label: {key: a["sha256"] for key, a in marker["outputs"].items()}
        for label, marker in markers.items()
    }


def executions(storage: Path) -> Counter[str]:
    return Counter((storage / "smoke" / "executions.log").read_text().split())


def test_a_run_makes_every_stage_once_in_order(tmp_path):
    config = fake_config(str(tmp_path), iterations=2)
    results = loop.run(config)
    order = (tmp_path / "smoke/executions.log").read_text().split()
    assert order == [s.label for s in plan(config)] == list(results)
    again = loop.run(config)
    assert all(r.skipped for r in again.values())
    assert (tmp_path / "smoke/executions.log").read_text().split() == order


def test_the_resolved_config_and_the_log_stand_in_the_run_directory(tmp_path):
    config = fake_config(str(tmp_path))
    loop.run(config)
    run = tmp_path / "smoke"
    assert from_yaml(ParcConfig, (run / "config.yaml").read_text()) == config
    log = (run / "run.log").read_text()
    assert "[it_01/generate] started" in log
    assert "[it_01/generate] done in" in log
    assert not (run / "driver.json").exists()


def test_scalars_of_all_stages_are_in_one_tree(tmp_path):
    loop.run(fake_config(str(tmp_path)))
    rows = read_scalars(Storage.from_uri(tmp_path / "smoke"))
    assert {r.group for r in rows} == set(LABELS)
    assert {r.tag for r in rows if r.group == "it_01/record"} >= {"parts", "record/parts"}
    assert list((tmp_path / "smoke/logs/it_01/record").glob("events.*"))


def test_more_iterations_continue_a_run(tmp_path):
    loop.run(fake_config(str(tmp_path)))
    longer = fake_config(str(tmp_path), iterations=2)
    results = loop.run(longer)
    fresh = [label for label, r in results.items() if not r.skipped]
    assert fresh == [label for label in results if label.startswith("it_02")]


def test_a_run_directory_of_another_config_is_refused(tmp_path):
    loop.run(fake_config(str(tmp_path)))
    with pytest.raises(InputError, match=r"made by another config \(seed: 0 -> 1\).*--name"):
        loop.run(fake_config(str(tmp_path), seed=1))


def test_a_mistake_in_the_first_call_is_mended_by_the_next(tmp_path):
    config = fake_config(str(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        loop.run(replace(config, data=replace(config.data, path=str(tmp_path / "typo"))))
    assert len(loop.run(config)) == len(LABELS)


def test_two_drivers_on_one_run_are_refused(tmp_path):
    config = fake_config(str(tmp_path))
    with RunLock(Storage.from_uri(tmp_path / "smoke")):
        with pytest.raises(InputError, match="another driver"):
            loop.run(config)
        assert not (tmp_path / "smoke/config.yaml").exists()
    loop.run(config)


def test_force_redoes_what_changed_and_what_follows_from_it_only(tmp_path):
    config = fake_config(str(tmp_path))
    loop.run(config)
    row = replace(config.iterations[0], motions=9)
    results = loop.run(replace(config, iterations=(row,)), force=True)
    skipped = {label for label, r in results.items() if r.skipped}
    assert skipped == {label for label in LABELS if label.startswith("it_00")}


def test_a_stage_alone_needs_the_ones_before_it(tmp_path):
    config = fake_config(str(tmp_path))
    stages = {s.label: s for s in plan(config)}
    with pytest.raises(InputError, match=r"it_00/train-tracker: input 'motions' .*not finished"):
        loop.run_stages(config, [stages["it_00/train-tracker"]])
    loop.run_stages(config, [stages["it_00/augment"], stages["it_00/train-tracker"]])
    assert not (tmp_path / "smoke/it_00/record").exists()


def test_missing_output_of_an_earlier_stage_is_named(tmp_path):
    spec = get_stage("augment")
    override_stage("augment", replace(spec, body=lambda run: StageOutputs(paths={})))
    with pytest.raises(InputError, match="has no output 'dataset'; it has none"):
        loop.run(fake_config(str(tmp_path)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.mkdir(), "is empty"),
    ],
)
def test_missing_and_empty_data_are_refused(tmp_path, make, message):
    path = tmp_path / "data"
    make(path)
    config = fake_config(str(tmp_path))
    with pytest.raises(InputError, match=f"data.path: .*{message}"):
        loop.run(replace(config, data=replace(config.data, path=str(path))))


def test_changed_data_are_noticed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("1")
    config = fake_config(str(tmp_path / "runs"))
    config = replace(config, data=replace(config.data, path=str(tmp_path / "data")))
    loop.run(config)
    (tmp_path / "data" / "a.txt").write_text("2")
    with pytest.raises(InputError, match="input data has other content"):
        loop.run(config)


def test_lost_workers_are_tried_again_and_errors_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "_RETRY_WAIT_S", 0.0)
    ActorDiedError = type("ActorDiedError", (Exception,), {})
    spec, attempts = get_stage("augment"), []

    def flaky(run):
        attempts.append(run.resumed)
        if len(attempts) < 3:
            raise ActorDiedError("node gone")
        return spec.body(run)

    override_stage("augment", replace(spec, body=flaky))
    loop.run(fake_config(str(tmp_path / "a")))
    assert attempts == [False, True, True]

    def wrong(run):
        attempts.append(run.resumed)
        raise ZeroDivisionError

    attempts.clear()
    override_stage("augment", replace(spec, body=wrong))
    with pytest.raises(ZeroDivisionError):
        loop.run(fake_config(str(tmp_path / "b")))
    assert len(attempts) == 1


def test_ray_is_connected_only_for_a_stage_that_needs_it(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(cluster, "connect", lambda resources: calls.append(resources))
    spec = get_stage("record")
    override_stage("record", StageSpec(section=spec.section, body=spec.body, needs_ray=True))
    config = fake_config(str(tmp_path))
    loop.run(config)
    assert calls == [config.resources] * 2
    loop.run(config)
    assert len(calls) == 2


def test_gpus_that_nobody_has_are_refused_before_any_stage_works(tmp_path, monkeypatch):
    """Those of later stages too, and only those of stages that have to run."""
    import ray

    monkeypatch.setattr(cluster, "connect", lambda resources: None)
    monkeypatch.setattr(cluster, "_AUTOSCALING_FILE", str(tmp_path / "nothing"))
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}])
    spec = get_stage("augment")
    override_stage("augment", StageSpec(section=spec.section, body=spec.body, needs_ray=True))
    config = fake_config(str(tmp_path))
    greedy = replace(config, resources=replace(config.resources, gpus_per_worker=0.5))
    with pytest.raises(InputError, match=r"resources\.gpus_per_worker .*asks for 0\.5 GPUs"):
        loop.run(greedy)
    assert not (tmp_path / "smoke/executions.log").exists()
    loop.run_stages(greedy, [s for s in plan(greedy) if s.label == "it_00/augment"])


@pytest.mark.parametrize("simulator", ["nobodys", "isaacgym"])
def test_a_simulator_is_looked_at_where_a_run_goes_on(tmp_path, monkeypatch, simulator):
    monkeypatch.setattr(registry, "missing", lambda name: None if name == "mujoco_cpu" else "no")
    config = fake_config(str(tmp_path))
    stages = plan(config)
    loop.run_stages(config, stages[:1])
    storage = Storage.from_uri(tmp_path / "smoke")
    check_inputs(storage, config, stages, force=False)
    with pytest.raises(InputError, match=f"^--simulator {simulator}"):
        check_inputs(storage, replace(config, simulator=simulator), stages, force=False)
    check_inputs(storage, replace(config, simulator=simulator), stages[:1], force=False)


def test_killed_within_a_stage_and_continued(tmp_path):
    storage = tmp_path / "killed"
    assert drive(storage, "it_01/generate:within") == [-signal.SIGKILL]
    assert not (storage / "smoke/it_01/generate/_DONE.json").exists()
    assert (storage / "smoke/it_01/generate/out/part-1.txt").exists()
    assert (storage / "smoke/driver.json").exists()
    assert drive(storage, "") == [0]
    loop.run(fake_config(str(tmp_path / "calm")))
    assert digests(storage) == digests(tmp_path / "calm")
    assert executions(storage) == Counter(LABELS)


@pytest.mark.parametrize("points", [("before",), ("within", "after")])
def test_killed_in_and_after_every_stage_and_continued(tmp_path, points):
    """Kill -9 in every stage: the same results, and no finished stage is done again."""
    storage = tmp_path / "killed"
    kills = [f"{label}:{point}" for label in LABELS for point in points]
    assert drive(storage, *kills, "") == [-signal.SIGKILL] * len(kills) + [0]
    loop.run(fake_config(str(tmp_path / "calm")))
    assert digests(storage) == digests(tmp_path / "calm")
    assert executions(storage) == Counter(LABELS)


def test_stage_paths_are_those_of_the_architecture():
    context = StageContext(run=Storage.from_uri("/r"), iteration=3, config=None)
    assert context.stage_path("train-generator") == "it_03/train-generator"
