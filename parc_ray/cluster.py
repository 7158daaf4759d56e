"""Connecting to Ray: the cluster that is there, or a local instance that behaves like one."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from parc_ray.config import ResourcesConfig
from parc_ray.demands import GpuDemand
from parc_ray.errors import InputError

logger = logging.getLogger(__name__)

_AUTOSCALING_FILE = "~/ray_bootstrap_config.yaml"  # on heads that the cluster launcher made
_KUBERAY = "RAY_USAGE_STATS_KUBERAY_IN_USE"  # 1 in all containers of KubeRay's
_KUBERAY_START = "KUBERAY_GEN_RAY_START_CMD"  # how Ray was started in this one
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
    from ray._common.utils import get_ray_address_file

    if resources.address != "detect":
        return resources.address
    if os.environ.get("RAY_ADDRESS") or Path(get_ray_address_file(None)).exists():
        return "auto"
    return "local"


def connect(resources: ResourcesConfig) -> None:
    """Connect this process to Ray; a connection that exists already is kept.

    A cluster that is announced but cannot be reached is an error: falling back to a local
    instance would hide it (docs/design/ray.md, Connecting).

    Raises:
        InputError: the cluster does not answer, has other versions or another token, or no node
            offers a custom resource that the config asks for.
    """
    import ray
    from ray.exceptions import AuthenticationError

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
    except (ConnectionError, RuntimeError, AuthenticationError) as error:
        mended = _explain(address, error)
        if mended is None:
            raise
        raise mended from error
    require_resources(resources.places.nodes())
    have = ray.cluster_resources()
    logger.info(
        "Ray %s: %s, %g CPUs, %g GPUs",
        ray.__version__,
        "local instance" if address == "local" else f"cluster {address}",
        have.get("CPU", 0),
        have.get("GPU", 0),
    )


def _explain(address: str, error: Exception) -> InputError | None:
    """What a failed connection means for the user; None where it is no mistake of theirs."""
    from ray.exceptions import AuthenticationError

    text = str(error)
    versions = re.findall(r"Ray:\s*(\S+)\s+Python:\s*(\S+)", text)
    if "ersion mismatch" in text and len(versions) == 2:
        (their_ray, their_python), (our_ray, our_python) = versions
        return InputError(
            f"resources.address: the cluster at {address!r} runs Ray {their_ray} on Python "
            f"{their_python}, this process Ray {our_ray} on Python {our_python}; both must be "
            "equal on all machines; start the driver from the environment of the cluster"
        )
    if isinstance(error, AuthenticationError) or "authentication" in text.lower():
        return InputError(
            f"resources.address: the cluster at {address!r} refuses this process's token "
            f"({_first_line(text)}); the same ~/.ray/auth_token must be on all machines; copy the "
            "cluster's, and set RAY_AUTH_MODE=token here if it is set there"
        )
    if isinstance(error, ConnectionError):
        return InputError(
            f"resources.address: no Ray cluster answers at {address!r} ({_first_line(text)}); "
            "allowed are detect, local, auto or host:port; start the cluster or pass "
            "--resources.address local"
        )
    return None


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def driver_has(wanted: Mapping[str, float]) -> bool:
    """Whether the node that this process runs on offers these resources in all."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    node = next((n for n in ray.nodes() if n["NodeID"] == here), None)
    offered = node["Resources"] if node is not None else {}
    return all(offered.get(name, 0.0) >= amount for name, amount in wanted.items() if amount > 0)


def require_resources(nodes: Mapping[str, str]) -> None:
    """Refuse custom resources that no node of the cluster offers, for work would wait for ever.

    With an autoscaler a node may still come; then this is only said.

    Args:
        nodes: kind of work to the custom resource that it asks for.

    Raises:
        InputError: a resource that no node offers on a cluster of fixed size.
    """
    import ray

    offered = ray.cluster_resources()
    for kind, name in nodes.items():
        if name in offered:
            continue
        text = (
            f"resources.places.{kind}.node: no node offers {name!r}; there are "
            f"{', '.join(sorted(k for k in offered if ':' not in k)) or 'no resources'}; start a "
            f"node with --resources '{{\"{name}\": 1}}', or leave the value empty"
        )
        if not _nodes_may_come():
            raise InputError(text)
        logger.warning("%s; waiting for the autoscaler", text)


def require_gpus(demands: Iterable[GpuDemand]) -> None:
    """Refuse workers for whose GPUs the nodes have no room, for they would wait for ever.

    With an autoscaler a node may still come; then this is only said.

    Args:
        demands: of each kind of worker.

    Raises:
        InputError: a demand that a cluster of fixed size does not meet.
    """
    import ray

    offered: list[float] | None = None
    for demand in demands:
        if offered is None:
            offered = [n["Resources"].get("GPU", 0.0) for n in ray.nodes() if n["Alive"]]
        places, most = demand.places(offered), max(offered, default=0.0)
        if places >= demand.workers:
            continue
        if places:
            text = (
                f"{demand.count}: {demand.workers} workers of {demand.gpus:g} GPUs each "
                f"({demand.setting}) start together, Ray's nodes have room for {places}; allowed "
                f"is up to {places}; lower the value, or give Ray nodes with GPUs"
            )
        else:
            text = (
                f"{demand.setting}: a worker asks for {demand.gpus:g} GPUs, no node of Ray's has "
                f"more than {most:g}; allowed is up to {most:g}{'' if most else ' (on the CPU)'}; "
                "lower the value, or give Ray a node with a GPU"
            )
        if not _nodes_may_come():
            raise InputError(text)
        logger.warning("%s; waiting for the autoscaler", text)


def _nodes_may_come() -> bool:
    """Whether an autoscaler may add nodes to this cluster.

    The cluster launcher leaves a file on its head, also for machines that are there (``provider:
    type: local``), which get no others. KubeRay tells its containers by their environment; where
    it scales, it has its heads started without Ray's own monitor.
    """
    if os.environ.get(_KUBERAY) == "1":
        start = os.environ.get(_KUBERAY_START, "")
        return "--head" not in start or "--no-monitor" in start
    path = Path(_AUTOSCALING_FILE).expanduser()
    if not path.exists():
        return False
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError):
        return True  # of a launcher, in whatever form
    provider = found.get("provider") if isinstance(found, dict) else None
    return not isinstance(provider, dict) or provider.get("type") != "local"


def disconnect() -> None:
    """Leave Ray; a local instance ends with it. No error where there is no connection."""
    import ray

    if ray.is_initialized():
        ray.shutdown()
