"""What ``parc info --cluster`` tells: nodes, resources, versions, storage, simulators."""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from parc_ray import cluster
from parc_ray.config import ParcConfig, ResourcesConfig
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.versions import versions

ANSWER_S = 120.0
"""How long a node may take to answer, s; its first process imports what it is asked about."""
_SHOWN = ("CPU", "GPU", "memory", "object_store_memory")


def cluster_facts(address: str, storage: str | None) -> dict[str, Any]:
    """Ask every living node about itself.

    Args:
        address: as ``resources.address``.
        storage: directory of runs; None: the default.

    Raises:
        InputError: there is no cluster, it does not answer, or its versions or token are others.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resources = ResourcesConfig(address=address)
    if address == "detect" and cluster.find_address(resources) == "local":
        raise InputError(
            "--address: detect finds no Ray cluster here; allowed are auto, host:port or local (a "
            "Ray of this command's own); start the cluster, set RAY_ADDRESS or give --address"
        )
    cluster.connect(resources)
    place = Storage.from_uri(storage or ParcConfig().storage)
    probe = f".parc-probe-{uuid.uuid4().hex}"
    fresh = not place.exists()
    facts: dict[str, Any] = {
        "address": ray.get_runtime_context().gcs_address,
        "driver": {"host": socket.gethostname(), "versions": versions()},
        "storage": str(place),
    }
    nodes = [node for node in ray.nodes() if node["Alive"]]
    try:
        facts["driver"]["storage"] = _write_probe(place, probe)
        ask = ray.remote(num_cpus=0, max_retries=0)(node_facts)
        asked = [
            ask.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(place, probe)
            for node in nodes
        ]
        ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
        facts["nodes"] = [_node(n, ref) for n, ref in zip(nodes, asked, strict=True)]
    finally:
        place.delete(probe)
        if fresh and place.is_local:  # whatever else was put there meanwhile stays
            with contextlib.suppress(OSError):
                place.local_path().rmdir()
    facts["dead_nodes"] = sum(not node["Alive"] for node in ray.nodes())
    facts["problems"] = problems(facts)
    return facts


def node_facts(place: Storage, probe: str) -> dict[str, Any]:
    """What a process on a node finds there: versions, the driver's probe file, simulators."""
    from envs.sims.registry import BACKENDS, found_by_trying

    return {
        "host": socket.gethostname(),
        "versions": versions(),
        "storage": _read_probe(place, probe),
        "simulators": {name: found_by_trying(name) for name in BACKENDS},
    }


def problems(facts: Mapping[str, Any]) -> list[str]:
    """What would make a run fail, a sentence each."""
    found = []
    ours = facts["driver"]["versions"]
    if facts["driver"]["storage"]:
        found.append(f"driver: {facts['driver']['storage']}")
    for node in facts["nodes"]:
        where = f"node {node['address']}"
        if "error" in node:
            found.append(f"{where}: {node['error']}")
            continue
        theirs = node["versions"]
        found += [
            f"{where}: {name} {theirs.get(name)}, the driver has {version}"
            for name, version in ours.items()
            if _public(theirs.get(name)) != _public(version)
        ]
        if node["storage"]:
            found.append(f"{where}: {node['storage']}")
    return found


def _public(version: str | None) -> str | None:
    """A version without what a build adds (``+cpu``, ``+cu128``): nodes with GPUs have another."""
    return None if version is None else version.partition("+")[0]


def cluster_text(facts: Mapping[str, Any]) -> str:
    """The same for people."""
    lines = [f"cluster    {facts['address']}, {len(facts['nodes'])} nodes"]
    if facts["dead_nodes"]:
        lines[0] += f", {facts['dead_nodes']} lost"
    lines.append(f"storage    {facts['storage']}")
    for node in facts["nodes"]:
        lines += ["", f"node       {node['address']}{' (head)' if node['head'] else ''}"]
        lines.append(f"resources  {_resources(node['resources'])}")
        if "error" in node:
            lines.append(f"problem    {node['error']}")
            continue
        lines.append(f"versions   {', '.join(f'{k} {v}' for k, v in node['versions'].items())}")
        lines.append(f"storage    {node['storage'] or 'reached'}")
        for name, lack in node["simulators"].items():
            lines.append(f"simulator  {name}: {lack or 'runs here'}")
    lines += ["", *(f"problem    {text}" for text in facts["problems"])]
    return "\n".join(lines if facts["problems"] else [*lines, "no problems"])


def _write_probe(place: Storage, probe: str) -> str | None:
    try:
        place.write_bytes_atomic(probe, probe.encode())
    except OSError as error:
        return f"storage {place} cannot be written ({error.strerror or error})"
    return None


def _read_probe(place: Storage, probe: str) -> str | None:
    """None where this machine sees the driver's file, else what it sees."""
    try:
        seen = place.exists(probe) and place.read_bytes(probe) == probe.encode()
    except (OSError, InputError) as error:
        return f"storage {place} cannot be read here ({error})"
    if seen:
        return None
    return f"storage {place} is another directory here; every node must mount the driver's"


def _node(node: Mapping[str, Any], reference: Any) -> dict[str, Any]:
    import ray
    from ray.exceptions import GetTimeoutError

    resources = {k: v for k, v in node["Resources"].items() if not k.startswith("node:")}
    facts = {
        "address": node["NodeManagerAddress"],
        "head": "node:__internal_head__" in node["Resources"],
        "resources": resources,
    }
    try:
        found: Any = ray.get(reference, timeout=0)
        return {**facts, **found}
    except GetTimeoutError:
        return {**facts, "error": f"no answer within {ANSWER_S:g} s"}
    except Exception as error:  # whatever keeps a process from running there
        first: Sequence[str] = [line for line in str(error).splitlines() if line.strip()]
        return {**facts, "error": (first[-1] if first else type(error).__name__).strip()}


def _resources(resources: Mapping[str, float]) -> str:
    """CPUs and GPUs, memory in GB, then what else it offers."""
    parts = [f"{resources.get('CPU', 0):g} CPUs", f"{resources.get('GPU', 0):g} GPUs"]
    parts.append(f"{resources.get('memory', 0) / 1e9:.1f} GB")
    parts.append(f"{resources.get('object_store_memory', 0) / 1e9:.1f} GB object store")
    return ", ".join([*parts, *(f"{k} {v:g}" for k, v in resources.items() if k not in _SHOWN)])
