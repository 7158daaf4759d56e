"""Where Ray is looked for, and that a silent cluster is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from parc_ray import cluster
from parc_ray.config import ResourcesConfig
from parc_ray.errors import InputError


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "_CLUSTER_FILE", tmp_path / "ray_current_cluster")


def test_without_a_cluster_ray_is_local():
    assert cluster.find_address(ResourcesConfig()) == "local"


def test_a_known_cluster_is_used(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert cluster.find_address(ResourcesConfig()) == "auto"
    monkeypatch.delenv("RAY_ADDRESS")
    Path(cluster._CLUSTER_FILE).write_text("10.0.0.1:6379")
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
