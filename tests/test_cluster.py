"""Where Ray is looked for, and that a silent cluster is an error."""

from __future__ import annotations

import pytest

from parc_ray import cluster
from parc_ray.arguments import override
from parc_ray.config import ResourcesConfig
from parc_ray.demands import GpuDemand, gpu_demands, require_driver_gpu
from parc_ray.errors import InputError
from parc_ray.recipes import get_recipe
from parc_ray.stages.registry import stage_names


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch, tmp_path):
    for name in ("RAY_ADDRESS", "RAY_USAGE_STATS_KUBERAY_IN_USE", "KUBERAY_GEN_RAY_START_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where `ray start` would write


def test_without_a_cluster_ray_is_local():
    assert cluster.find_address(ResourcesConfig()) == "local"


def test_a_known_cluster_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cluster.find_address(ResourcesConfig()) == "auto"
    monkeypatch.delenv("RAY_ADDRESS")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert cluster.find_address(ResourcesConfig()) == "auto"
    assert cluster.find_address(ResourcesConfig(address="local")) == "local"


@pytest.mark.parametrize(
    ("cores", "wanted", "expected"), [(2, None, 4), (64, None, 64), (2, 3, 3), (None, None, 4)]
)
def test_a_local_instance_has_at_least_four_logical_cpus(monkeypatch, cores, wanted, expected):
    monkeypatch.setattr(cluster.os, "cpu_count", lambda: cores)
    assert cluster.logical_cpus(ResourcesConfig(local_cpus=wanted)) == expected


def test_a_silent_cluster_is_an_error_and_no_local_one_is_started(monkeypatch):
    import ray

    calls = []

    def refuse(**options):
        calls.append(options["address"])
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(InputError, match=r"resources\.address: no Ray cluster answers"):
        cluster.connect(ResourcesConfig(address="10.255.0.1:6379"))
    assert calls == ["10.255.0.1:6379"]


def test_an_existing_connection_is_kept(ray_session):
    import ray

    cluster.connect(ResourcesConfig(address="local", local_cpus=99))
    assert ray.cluster_resources()["CPU"] == 4
    assert ray.get(ray.remote(num_cpus=0.5)(lambda: 7).remote()) == 7


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError(
                "Version mismatch: The cluster was started with:\n    Ray: 2.61.0\n"
                "    Python: 3.12.4\nThis process on node 10.0.0.7 was started with:\n"
                "    Ray: 2.60.0\n    Python: 3.11.9\n"
            ),
            "runs Ray 2.61.0 on Python 3.12.4, this process Ray 2.60.0 on Python 3.11.9",
        ),
        (
            ConnectionError("\n  Could not reach it\nmore"),
            "no Ray cluster answers at 'auto' .Could",
        ),
        (ConnectionError("Authentication failed: bad token"), "refuses this process's token"),
    ],
)
def test_what_keeps_apart_is_said_in_words(monkeypatch, error, said):
    import ray

    def refuse(**options):
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(InputError, match=said):
        cluster.connect(ResourcesConfig(address="auto"))


def test_other_errors_of_a_connection_stay_as_they_are(monkeypatch):
    import ray

    def refuse(**options):
        raise RuntimeError("something of Ray's own")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(RuntimeError, match="of Ray's own"):
        cluster.connect(ResourcesConfig(address="auto"))


def test_a_resource_that_no_node_offers_is_refused_where_none_can_come(
    ray_session, tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster, "_AUTOSCALING_FILE", str(tmp_path / "bootstrap.yaml"))
    cluster.require_resources({"record": "CPU"})
    with pytest.raises(InputError, match=r"resources\.places\.record\.node: no node offers 'sim'"):
        cluster.require_resources({"record": "sim"})
    (tmp_path / "bootstrap.yaml").write_text("")
    cluster.require_resources({"record": "sim"})  # the autoscaler may bring one
    assert cluster.driver_has({"CPU": 4, "GPU": 0})
    assert not cluster.driver_has({"GPU": 1})
    assert not cluster.driver_has({"sim": 0.001})


def learning(gpus: float) -> list[GpuDemand]:
    return [GpuDemand(setting="tracker.gpus_per_learner", gpus=gpus)]


def with_nodes(monkeypatch, tmp_path, *gpus: float, alive: bool = True) -> None:
    """A cluster of nodes with these GPUs, without Ray."""
    import ray

    nodes = [{"Alive": alive, "Resources": {"CPU": 8.0, "GPU": n}} for n in gpus]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(cluster, "_AUTOSCALING_FILE", str(tmp_path / "bootstrap.yaml"))


@pytest.mark.parametrize(
    ("gpus", "asked", "refused"),
    [((0, 0), 0.5, True), ((1, 1), 2, True), ((0, 2), 2, False), ((), 0.5, True)],
)
def test_a_gpu_that_no_node_has_is_refused(monkeypatch, tmp_path, gpus, asked, refused):
    with_nodes(monkeypatch, tmp_path, *gpus)
    cluster.require_gpus([])
    if not refused:
        cluster.require_gpus(learning(asked))
        return
    most = max(gpus, default=0)
    with pytest.raises(InputError, match=rf"^tracker\.gpus_per_learner: .* more than {most};"):
        cluster.require_gpus(learning(asked))


def test_gpus_of_lost_nodes_do_not_count(monkeypatch, tmp_path):
    with_nodes(monkeypatch, tmp_path, 8, alive=False)
    with pytest.raises(InputError, match="more than 0"):
        cluster.require_gpus(learning(1))


def test_an_autoscaler_may_bring_a_gpu(monkeypatch, tmp_path, caplog):
    with_nodes(monkeypatch, tmp_path, 0)
    (tmp_path / "bootstrap.yaml").write_text("provider:\n  type: aws\n")
    cluster.require_gpus(learning(1))
    assert "waiting for the autoscaler" in caplog.text


def test_a_launcher_of_machines_that_are_there_brings_none(monkeypatch, tmp_path):
    with_nodes(monkeypatch, tmp_path, 0)
    (tmp_path / "bootstrap.yaml").write_text("provider:\n  type: local\n  head_ip: 10.0.0.1\n")
    with pytest.raises(InputError, match="more than 0"):
        cluster.require_gpus(learning(1))


@pytest.mark.parametrize(
    ("gpus", "each", "workers", "places"),
    [
        ((1, 1, 2), 1, 5, 4),
        ((8, 8), 1, 17, 16),
        ((1, 2), 0.5, 7, 6),
        ((2,), 0.6, 3, 2),  # a share is of one GPU, never of two halves
        ((4, 3), 2, 4, 3),
        ((1,), 0.1, 11, 10),
    ],
)
def test_workers_that_start_together_need_room_together(
    monkeypatch, tmp_path, gpus, each, workers, places
):
    with_nodes(monkeypatch, tmp_path, *gpus)

    def demand(count: int) -> list[GpuDemand]:
        setting = "resources.gpus_per_worker"
        return [GpuDemand(setting=setting, gpus=each, workers=count, count="resources.some")]

    cluster.require_gpus(demand(places))
    with pytest.raises(InputError, match=rf"^resources\.some: {workers} .* room for {places};"):
        cluster.require_gpus(demand(workers))


@pytest.mark.parametrize(
    ("start", "may_come"),
    [
        ("ulimit -n 65536; ray start --head --no-monitor --block ", True),
        ("ulimit -n 65536; ray start --head --block ", False),
        ("ray start --address=head:6379 --block ", True),  # a worker's cannot tell
        (None, True),
    ],
)
def test_kuberays_autoscaler_is_known(monkeypatch, tmp_path, start, may_come):
    with_nodes(monkeypatch, tmp_path, 0)
    monkeypatch.setenv("RAY_USAGE_STATS_KUBERAY_IN_USE", "1")
    if start is not None:
        monkeypatch.setenv("KUBERAY_GEN_RAY_START_CMD", start)
    if may_come:
        cluster.require_gpus(learning(1))
        return
    with pytest.raises(InputError, match="more than 0"):
        cluster.require_gpus(learning(1))


@pytest.mark.parametrize("address", ["foo", "a:b", "host:0", "host:99999", ":6379", "", "a b:1"])
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(InputError, match=r"resources\.address: .*host:port"):
        ResourcesConfig(address=address)


@pytest.mark.parametrize(
    "address", ["detect", "local", "auto", "10.0.0.1:6379", "head.local:1", "[::1]:6379"]
)
def test_addresses_that_may_be(address):
    assert ResourcesConfig(address=address).address == address


@pytest.mark.parametrize("size", [0, -1, 50])
def test_an_object_store_too_small_for_ray_is_refused(size):
    with pytest.raises(InputError, match=r"resources\.object_store_mb"):
        ResourcesConfig(object_store_mb=size)


def test_what_the_recipes_ask_of_gpus():
    names = stage_names()
    found = {d.setting: d for d in gpu_demands(get_recipe("base"), names)}
    assert found["tracker.gpus_per_learner"].gpus == 1.0
    assert {setting.split(".")[3] for setting in found if "places" in setting} == {
        *("generator", "generate", "evaluate")
    }
    assert gpu_demands(get_recipe("quick"), names) == []
    assert gpu_demands(get_recipe("base"), ["augment", "record"]) == []


def test_how_many_of_them_start_together():
    def demands(stage: str, *words: str) -> list[tuple[str, float, int]]:
        config = override(get_recipe("base"), words)
        return [(d.setting, d.gpus, d.workers) for d in gpu_demands(config, [stage])]

    words = ["--tracker.placement", "split", "--tracker.num_runners", "2"]
    assert demands("train-tracker", *words, "--tracker.gpus_per_runner", "0.25") == [
        ("tracker.gpus_per_runner", 0.25, 2)  # its learner is in the driver
    ]
    words = ["--tracker.placement", "colocated", "--tracker.num_learners", "8"]
    assert demands("train-tracker", *words) == [("tracker.gpus_per_learner", 1.0, 8)]
    words = ["--resources.generator_workers", "16", "--resources.gpus_per_worker", "1"]
    ((_, gpus, workers),) = demands("train-generator", *words)
    assert (gpus, workers) == (1.0, 16)
    ((_, gpus, workers),) = demands("generate", "--resources.generate_actors", "40")
    assert (gpus, workers) == (0.5, 1)  # a pool works with those that found a place


def test_a_tracker_in_the_driver_needs_the_drivers_gpu(monkeypatch):
    import torch

    config = override(get_recipe("base"), ["--resources.tracker_host", "driver"])
    assert gpu_demands(config, ["train-tracker"]) == []  # nothing of Ray
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"^tracker\.gpus_per_learner: .* finds none here"):
        require_driver_gpu(config)
    require_driver_gpu(get_recipe("base"))  # may go elsewhere
    require_driver_gpu(get_recipe("quick"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    require_driver_gpu(config)
