"""``parc info``: versions and machine, a cluster's nodes, how far a run is, what data hold."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from envs.sims.registry import BACKENDS, found_by_trying
from parc_ray.data.importers.pipeline import holds_motions
from parc_ray.errors import InputError
from parc_ray.loop import CONFIG_FILE
from parc_ray.tools.base import OneLineParser
from parc_ray.tools.info_data import dataset_facts, dataset_text, is_dataset
from parc_ray.tools.runs import open_run, progress
from parc_ray.versions import versions


def run(argv: list[str]) -> None:
    """``parc info [--json] [--verify] [RUN_DIRECTORY | DATA_SET]``, or ``parc info --cluster``.

    Raises:
        InputError: a path that is neither, a data set that is damaged, no cluster that answers.
    """
    options = arguments().parse_args(argv)
    if options.cluster:
        if options.path or options.verify:
            raise InputError("--cluster: stands alone; leave out the path and --verify")
        from parc_ray.tools.info_cluster import cluster_facts, cluster_text

        found = cluster_facts(options.address, options.storage)
        print(json.dumps(found, indent=2) if options.json else cluster_text(found))
        return
    if options.storage or options.address != "detect":
        raise InputError("--storage, --address: belong to --cluster; add it or leave them out")
    if options.path and is_dataset(options.path):
        held = dataset_facts(options.path, verify=options.verify)
        print(json.dumps(held, indent=2) if options.json else dataset_text(held))
        return
    if options.path and _is_motions(options.path):
        raise InputError(
            f"{options.path}: motion files, no data set; "
            f"'parc import {options.path} --out DIR' makes a data set of them"
        )
    if options.verify:
        raise InputError("--verify: compares the hashes of a data set's parts; name a data set")
    lacking = {name: found_by_trying(name) for name in BACKENDS}
    installed, gpus = versions(), _gpus()
    facts: dict[str, object] = {
        "versions": installed,
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "simulators": lacking,
    }
    stages = progress(*open_run(options.path)) if options.path else {}
    if options.path:
        facts["stages"] = stages
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    for name, version in installed.items():
        print(f"{name:<10} {version}")
    print(f"{'system':<10} {facts['system']}")
    print(f"{'cores':<10} {facts['cores']}")
    print(f"{'gpus':<10} {', '.join(gpus) or 'none'}")
    for name, lack in lacking.items():
        print(f"{'simulator':<10} {name}: {lack or 'runs here'}")
    for label, state in stages.items():
        print(f"{label:<26} {state}")


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(prog="parc info", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "path", nargs="?", help="run directory (<storage>/<name>), or a data set or its manifest"
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare hashes of a data set's parts"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="nodes of the Ray cluster, their versions, simulators, and whether they see --storage",
    )
    parser.add_argument(
        "--storage", help="holds runs: a mounted directory, s3:// or gs:// (with --cluster)"
    )
    parser.add_argument("--address", default="detect", help="of the cluster (%(default)s)")
    return parser


def _is_motions(path: str) -> bool:
    """Whether there are motion files and no run."""
    place = Path(path)
    return place.exists() and not (place / CONFIG_FILE).exists() and holds_motions(place)


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
