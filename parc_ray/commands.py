"""Commands of ``parc`` that are not stages of the loop. One entry in ``TOOLS`` adds one."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from parc_ray.errors import InputError
from parc_ray.versions import versions


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One command."""

    help: str
    """One line for the overview."""
    run: Callable[[list[str]], None]
    """Called with the arguments after the command's name."""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports mistakes as ``InputError``."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage.

        Raises:
            InputError: always.
        """
        raise InputError(f"{self.prog}: {message}; see {self.prog} --help")


def info(argv: list[str]) -> None:
    """``parc info [--json] [RUN_DIRECTORY]``: versions and machine, and how far a run is."""
    parser = OneLineParser(prog="parc info", description=info.__doc__, allow_abbrev=False)
    parser.add_argument("run", nargs="?", help="run directory, <storage>/<name>")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    facts: dict[str, object] = {
        "versions": versions(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": _gpus(),
    }
    if options.run:
        facts["stages"] = _progress(options.run)
    if options.json:
        print(json.dumps(facts, indent=2))
        return
    for name, version in versions().items():
        print(f"{name:<10} {version}")
    print(f"{'system':<10} {facts['system']}")
    print(f"{'cores':<10} {facts['cores']}")
    print(f"{'gpus':<10} {', '.join(_gpus()) or 'none'}")
    if options.run:
        for label, state in _progress(options.run).items():
            print(f"{label:<26} {state}")


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _progress(path: str) -> dict[str, str]:
    """State of every planned stage of the run at ``path``.

    Raises:
        InputError: ``path`` is not a run directory.
    """
    from parc_ray.config import ParcConfig
    from parc_ray.config_io import from_yaml
    from parc_ray.console import format_seconds
    from parc_ray.data.storage import Storage
    from parc_ray.loop import CONFIG_FILE
    from parc_ray.plan import plan
    from parc_ray.stages.base import STARTED, StageContext, read_result

    run = Storage.from_uri(path)
    if not run.exists(CONFIG_FILE):
        raise InputError(
            f"{path}: no run directory ({CONFIG_FILE} is missing); give <storage>/<name>"
        )
    config = from_yaml(ParcConfig, run.read_bytes(CONFIG_FILE).decode(), f"{path}/{CONFIG_FILE}")
    states = {}
    for stage in plan(config):
        context = StageContext(run=run, iteration=stage.iteration, config=config)
        result = read_result(context, stage.name)
        if result is not None:
            states[stage.label] = f"done in {format_seconds(result.seconds)}"
        elif run.exists(f"{stage.label}/{STARTED}"):
            states[stage.label] = "started"
        else:
            states[stage.label] = "to do"
    return states


TOOLS: dict[str, Tool] = {
    "info": Tool(help="versions, machine, progress of a run", run=info),
}
