"""What a sweep file says: which values, over what, measured how, on which scheduler."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from parc_ray.config import ParcConfig
from parc_ray.config_io import canonical_json, from_yaml, unknown_name
from parc_ray.errors import InputError
from parc_ray.evaluation.protocols import get_protocol
from parc_ray.evaluation.results import GENERATOR_FIGURES, TRACKER_FIGURES
from parc_ray.evaluation.write_results import EXTRA
from parc_ray.recipes import get_recipe
from parc_ray.sweep.overrides import apply_overrides


@dataclass(frozen=True, kw_only=True)
class SchedulerSpec:
    """Which trials are run to their end."""

    kind: Literal["grid", "asha"] = "grid"
    """``grid``: all of them. ``asha``: the worse part is stopped after each rung."""
    metric: str = "generator/tpl_in_grid"
    """What ASHA compares: test and figure of the summary."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more of it is better."""
    grace: int = 1
    """PARC iterations that every trial gets."""
    reduction: int = 2
    """One of so many trials goes on from a rung to the next."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, least in (("grace", 1), ("reduction", 2)):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise InputError(
                    f"scheduler.{name}: {value} is out of range; allowed is >= {least}"
                )


@dataclass(frozen=True, kw_only=True)
class PlotSpec:
    """One figure of the report: mean and interval of figures, a point per trial."""

    kind: Literal["trade-off", "lines"] = "lines"
    """``trade-off``: the second figure over the first; ``lines``: each figure over ``over``."""
    over: str = ""
    """The dotted key along which points are joined; default: the first key of the grid."""
    figures: tuple[str, ...] = ("generator/tpl_code", "generator/hjf_frames_percent")
    """Tests and figures of the summary."""
    paper: Literal["none", "blends"] = "none"
    """Whose published rows stand beside ours: those of table 3, over s."""
    log: bool = False
    """Logarithmic axes of the trade-off's first figure."""


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """A sweep file."""

    about: str
    """One or two sentences for the report."""
    recipe: str = "quick"
    """Where the config starts."""
    iterations: int | None = None
    """PARC iterations; None: the recipe's."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys and values of all trials."""
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Dotted keys and the values that are tried; several keys give all combinations."""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Names of variants that change several keys at once; combined with the grid."""
    until: str | None = None
    """Last stage of a trial, such as ``it_01/train-generator``; without ``it_NN/`` that of the
    last iteration. None: all stages."""
    protocol: str = "small"
    """How models are tested; ``evaluation.*`` keys change it."""
    tests: tuple[Literal["generator", "tracker"], ...] = ("generator", "tracker")
    """What is tested; a tracker where there is one."""
    measure: Literal["each", "last"] = "each"
    """Test the models of each PARC iteration, or of the last only."""
    scheduler: SchedulerSpec = field(default_factory=SchedulerSpec)
    """Grid or ASHA."""
    concurrent: int | None = None
    """Trials at once; None: as many as cannot wait for each other."""
    plots: tuple[PlotSpec, ...] = ()
    """Figures."""

    def __post_init__(self) -> None:
        """Check what spans fields."""
        if not self.grid and not self.variants:
            raise InputError("grid: nothing to sweep; a grid or variants are needed; add one")
        for key, values in self.grid.items():
            if not values:
                raise InputError(f"grid.{key}: no value; at least one is needed; add some")
        if self.concurrent is not None and self.concurrent < 1:
            raise InputError(f"concurrent: {self.concurrent} is out of range; allowed is 1 or more")
        if not self.tests:
            raise InputError("tests: nothing is measured; allowed are generator and tracker")
        if self.scheduler.kind == "asha" and self.measure != "each":
            raise InputError("measure: 'last' leaves ASHA nothing to compare; set it to each")
        self._check_figures()

    def _check_figures(self) -> None:
        """What is compared and drawn must be measured: a trial is too late to find out."""
        known = summary_figures()
        named = [(f"plots.figures: {name}", name) for plot in self.plots for name in plot.figures]
        if self.scheduler.kind == "asha":
            named.append((f"scheduler.metric: {self.scheduler.metric}", self.scheduler.metric))
        for where, name in named:
            if name not in known:
                raise InputError(unknown_name(where, name, known, "figure"))
        for plot in self.plots:
            if plot.kind == "trade-off" and len(plot.figures) < 2:
                raise InputError("plots.figures: a trade-off needs two figures; name another")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One point of a sweep.

    Attributes:
        name: directory of its run.
        values: what it changes, by dotted key; ``variant`` is the name of its variant.
        config: its whole config.
    """

    name: str
    values: Mapping[str, Any]
    config: ParcConfig


def summary_figures() -> set[str]:
    """Tests and figures of the summary, as sweep files name them: ``generator/tpl_in_grid``."""
    known = {f"generator/{figure.name}" for figure in (*GENERATOR_FIGURES, *EXTRA)}
    tests = ("tracker", "tracker_reference")
    return known | {f"{test}/{figure.name}" for test in tests for figure in TRACKER_FIGURES}


def load_spec(path: str) -> SweepSpec:
    """Read a sweep file.

    Raises:
        InputError: no such file (those that are shipped are named), or one that cannot be read.
    """
    file = Path(path)
    if not file.is_file():
        shipped = sorted(str(p) for p in Path("tune_configs").glob("*.yaml"))
        have = f"; there are {', '.join(shipped)}" if shipped else ""
        raise InputError(f"{path}: no such sweep file{have}; give the path of a YAML file")
    return from_yaml(SweepSpec, file.read_text(), path)


def base_config(spec: SweepSpec, where: str, data: str | None = None) -> ParcConfig:
    """The config that all trials start from; ``data`` replaces the initial data.

    Raises:
        InputError: unknown recipe, protocol or dotted key.
    """
    config = get_recipe(spec.recipe)
    if spec.iterations is not None:
        config = config.with_iterations(spec.iterations)
    if data is not None:
        config = replace(config, data=replace(config.data, path=data))
    protocol = get_protocol(spec.protocol, config)
    config = replace(config, evaluation=protocol.evaluation)
    return apply_overrides(config, spec.base, f"{where}: base")


def trials_of(spec: SweepSpec, base: ParcConfig, where: str, storage: str) -> list[Trial]:
    """All points, checked: every key, every value and every combination.

    Args:
        spec: the sweep.
        base: what trials start from.
        where: the file, for messages.
        storage: directory that holds the trials' runs.

    Raises:
        InputError: a key or a value that does not fit, or two equal trials.
    """
    for key in spec.grid:
        apply_overrides(base, {key: spec.grid[key][0]}, f"{where}: grid")
    keys = list(spec.grid)
    variants: list[tuple[str | None, Mapping[str, Any]]] = list(spec.variants.items()) or [
        (None, {})
    ]
    out: list[Trial] = []
    for name, changes in variants:
        for point in itertools.product(*(spec.grid[key] for key in keys)):
            values = dict(zip(keys, point, strict=True))
            label = f"{where}: variants.{name}" if name else f"{where}: grid"
            config = apply_overrides(base, {**changes, **values}, label)
            shown = {"variant": name, **values} if name else values
            trial = _name(shown)
            config = replace(config, name=trial, storage=storage)
            out.append(Trial(name=trial, values=shown, config=config))
    names = [trial.name for trial in out]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{where}: trial {twice[0]} appears twice; values must differ; drop one")
    return out


def sweep_identity(spec: SweepSpec, base: ParcConfig) -> dict[str, Any]:
    """What decides the results of a sweep, as plain data."""
    plain = json.loads(canonical_json(spec))
    for key in ("about", "plots", "concurrent"):
        plain.pop(key)
    return {"spec": plain, "base": base.identity()}


def _name(values: Mapping[str, Any]) -> str:
    """A directory name that tells the values, and a digest that tells them exactly."""
    text = "_".join(f"{key.rsplit('.', 1)[-1]}-{value}" for key, value in values.items())
    slug = re.sub(r"[^A-Za-z0-9.+-]+", "_", text).strip("._")[:48]
    return f"{slug}-{hashlib.sha256(canonical_json(dict(values)).encode()).hexdigest()[:6]}"
