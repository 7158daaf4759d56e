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
