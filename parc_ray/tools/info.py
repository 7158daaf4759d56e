"""``parc info``: versions and machine, and how far a run is."""

from __future__ import annotations

import json
import os
import platform

from parc_ray.tools.base import OneLineParser
from parc_ray.tools.runs import open_run, progress
from parc_ray.versions import versions


def run(argv: list[str]) -> None:
    """``parc info [--json] [RUN_DIRECTORY]``.

    Raises:
        InputError: a directory that is no run.
    """
    options = arguments().parse_args(argv)
    facts: dict[str, object] = {
        "versions": versions(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
    }
    stages = progress(*open_run(options.run)) if options.run else {}
    if options.run:
        facts["stages"] = stages
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    for name, version in versions().items():
        print(f"{name:<10} {version}")
    print(f"{'system':<10} {facts['system']}")
    print(f"{'cores':<10} {facts['cores']}")
    print(f"{'gpus':<10} {', '.join(_gpus()) or 'none'}")
    for label, state in stages.items():
        print(f"{label:<26} {state}")


def arguments() -> OneLineParser:
    """The command's options."""
    parser = OneLineParser(prog="parc info", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", nargs="?", help="run directory, <storage>/<name>")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
