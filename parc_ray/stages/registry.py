"""The stages there are: every module of this package that defines ``STAGE`` at its top level.

A stage is added by adding one file, ``parc_ray/stages/<name>.py`` with dashes as underscores and a
line ``STAGE = StageSpec(...)``; its name on the command line and on disk follows from the file's.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parc_ray.stages
from parc_ray.config_io import unknown_name
from parc_ray.errors import InputError
from parc_ray.stages.base import StageBody

_DEFINITION = re.compile(r"^STAGE\b.*=", re.MULTILINE)
_overrides: dict[str, StageSpec] = {}


@dataclass(frozen=True, kw_only=True)
class StageSpec:
    """How one kind of stage is run."""

    section: Callable[[Any, int], Any]
    """(config, iteration) -> the values that decide the result; they are hashed and stored."""
    body: StageBody
    """The work."""
    needs_ray: bool = True
    """Whether Ray is connected before the body runs."""
    check: Callable[[Any], None] = lambda config: None
    """For stages that read initial data: raises ``InputError`` where the config's cannot be used.
    Called before the run directory is made and Ray is started; must be quick."""
    preview: Callable[[Any], str] | None = None
    """(config) -> what the stage would do, as text for ``--dry-run``; writes nothing."""


def stage_names() -> list[str]:
    """Names of all stages, without importing them, sorted."""
    files = (path for folder in parc_ray.stages.__path__ for path in Path(folder).glob("*.py"))
    found = {p.stem.replace("_", "-") for p in files if _DEFINITION.search(p.read_text())}
    return sorted(found | _overrides.keys())


def get_stage(name: str) -> StageSpec:
    """Import stage ``name``.

    Raises:
        InputError: there is no such stage.
    """
    if name in _overrides:
        return _overrides[name]
    names = stage_names()
    if name not in names:
        raise InputError(unknown_name(f"stage {name}", name, names, "stage"))
    module = importlib.import_module(f"parc_ray.stages.{name.replace('-', '_')}")
    return module.STAGE


def override_stage(name: str, spec: StageSpec) -> None:
    """Put ``spec`` in the place of stage ``name`` in this process (experiments and tests)."""
    _overrides[name] = spec


def clear_overrides() -> None:
    """Forget everything that ``override_stage`` did."""
    _overrides.clear()
