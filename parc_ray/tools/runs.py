"""Run directories as tools see them: their config and how far each stage is."""

from __future__ import annotations

from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml
from parc_ray.console import format_seconds
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.loop import CONFIG_FILE
from parc_ray.plan import plan
from parc_ray.stages.base import STARTED, Artifact, StageContext, read_result


def is_run(path: str) -> bool:
    """Whether a path or URI is a run directory."""
    return Storage.from_uri(path).exists(CONFIG_FILE)


def open_run(path: str) -> tuple[Storage, ParcConfig]:
    """Storage and config of a run directory.

    Raises:
        InputError: ``path`` is no run directory, or its config cannot be read.
    """
    run = Storage.from_uri(path)
    if not run.exists(CONFIG_FILE):
        raise InputError(
            f"{path}: no run directory ({CONFIG_FILE} is missing); give <storage>/<name>"
        )
    text = run.read_bytes(CONFIG_FILE).decode()
    return run, from_yaml(ParcConfig, text, f"{path}/{CONFIG_FILE}")


def finished_output(
    run: Storage, config: ParcConfig, iteration: int, stage: str, output: str
) -> Artifact | None:
    """An output (path within the run) of a stage that is done, or None."""
    done = read_result(StageContext(run=run, iteration=iteration, config=config), stage)
    return None if done is None else done.outputs.get(output)


def progress(run: Storage, config: ParcConfig) -> dict[str, str]:
    """State of every planned stage by label: done, started or to do."""
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
