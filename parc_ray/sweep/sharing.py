"""Which stages all trials of a sweep have in common, so that they are run once.

A stage's key is decided by what its marker would hold: its settings, its seed and the keys of the
stages it reads. Stages of equal key give equal outputs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from parc_ray.config import ParcConfig
from parc_ray.config_io import config_hash
from parc_ray.errors import InputError
from parc_ray.inputs import stage_label
from parc_ray.plan import PlannedStage, plan
from parc_ray.stages.base import DONE
from parc_ray.stages.registry import get_stage

LEFT_OUT = ("evaluate", "report")
"""Stages of the loop that a sweep replaces by its own tests and tables."""


def trial_stages(config: ParcConfig, until: str | None) -> list[PlannedStage]:
    """The stages of a trial: all, or those that lead to ``until`` and itself.

    Raises:
        InputError: the plan has no such stage.
    """
    stages = [s for s in plan(config) if s.name not in LEFT_OUT]
    if until is None:
        return stages
    found = [s for s in stages if until in (s.label, s.name)]
    if not found:
        have = ", ".join(s.label for s in stages)
        raise InputError(f"until: {until!r} is no stage of the plan; allowed are {have}")
    wanted = {found[-1].label}
    for stage in reversed(stages):
        if stage.label in wanted:
            wanted |= {stage_label(source) for source in stage.inputs.values()}
    return [s for s in stages if s.label in wanted]


def stage_keys(config: ParcConfig, stages: Sequence[PlannedStage]) -> dict[str, str]:
    """Key of every stage by label; ``stages`` in the order of the plan."""
    keys: dict[str, str] = {}
    for stage in stages:
        section = get_stage(stage.name).section(config, stage.iteration)
        inputs = {name: keys[stage_label(source)] for name, source in stage.inputs.items()}
        outputs = {name: source.output for name, source in stage.inputs.items()}
        keys[stage.label] = config_hash(
            {
                "label": stage.label,
                "seed": config.seed,
                "section": section,
                "inputs": inputs,
                "outputs": outputs,
                "data": config.data.path if stage.reads_data else "",
            }
        )
    return keys


def shared_stages(configs: Sequence[ParcConfig], until: str | None) -> list[PlannedStage]:
    """Stages of equal key in all trials, in the order of the plan."""
    planned = [trial_stages(config, until) for config in configs]
    keys = [stage_keys(c, stages) for c, stages in zip(configs, planned, strict=True)]
    return [stage for stage in planned[0] if len({k.get(stage.label) for k in keys}) == 1]


def link_stages(home: Path, run: Path, stages: Sequence[PlannedStage]) -> None:
    """Let a run see finished stages of another one, as links to their directories.

    Raises:
        InputError: a stage is not finished there, or the run has one of its own in its place.
    """
    for stage in stages:
        source, link = home / stage.label, run / stage.label
        if not (source / DONE).exists():
            raise InputError(
                f"{home}: stage {stage.label} is not finished, the sweep builds on it; finish that "
                "run first"
            )
        if link.is_symlink() and link.resolve() == source.resolve():
            continue
        if link.is_symlink() or link.exists():
            raise InputError(
                f"{link}: something else is there than the stage of {home}; remove it, or choose "
                "another --name"
            )
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(source, link.parent), target_is_directory=True)
