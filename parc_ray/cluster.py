"""Connecting to Ray: the cluster that is there, or a local instance that behaves like one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from parc_ray.config import ResourcesConfig
from parc_ray.errors import InputError

logger = logging.getLogger(__name__)

_CLUSTER_FILE = Path("/tmp/ray/ray_current_cluster")  # where `ray start` writes the address
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
_MIN_LOGICAL_CPUS = 4  # Ray Train and Ray Data starve each other on two


def logical_cpus(resources: ResourcesConfig) -> int:
    """CPUs that a local Ray instance is told to have: the cores, but never fewer than four.

    Stages ask for fractions of a CPU, so that all of their processes are admitted on two cores.
    """
    return resources.local_cpus or max(_MIN_LOGICAL_CPUS, os.cpu_count() or 1)


def find_address(resources: ResourcesConfig) -> str:
    """Address to connect to: the configured one, else ``auto`` if a cluster is known, else local.

    A cluster is known when ``RAY_ADDRESS`` is set or ``ray start`` left its address behind.
    """
    if resources.address != "detect":
        return resources.address
    if os.environ.get("RAY_ADDRESS") or _CLUSTER_FILE.exists():
        return "auto"
    return "local"


def connect(resources: ResourcesConfig) -> None:
    """Connect this process to Ray; a connection that exists already is kept.

    A cluster that is announced but cannot be reached is an error: falling back to a local
    instance would hide it (docs/design/ray.md, Connecting).

    Raises:
        InputError: the cluster does not answer.
    """
    import ray

    if ray.is_initialized():
        return
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    address = find_address(resources)
    options: dict[str, Any] = {"logging_level": "WARNING", "log_to_driver": resources.worker_logs}
    if address == "local":
        options |= {"num_cpus": logical_cpus(resources), "include_dashboard": False}
        if resources.object_store_mb:
            options["object_store_memory"] = resources.object_store_mb * 2**20
    try:
        ray.init(address=address, **options)
    except ConnectionError as error:
        raise InputError(
            f"resources.address: no Ray cluster answers at {address!r} ({error}); allowed are "
            "detect, local, auto or host:port; start the cluster or pass --resources.address local"
        ) from error
    have = ray.cluster_resources()
    logger.info(
        "Ray %s: %s, %g CPUs, %g GPUs",
        ray.__version__,
        "local instance" if address == "local" else f"cluster {address}",
        have.get("CPU", 0),
        have.get("GPU", 0),
    )


def disconnect() -> None:
    """Leave Ray; a local instance ends with it. No error where there is no connection."""
    import ray

    if ray.is_initialized():
        ray.shutdown()
