"""``parc sweep FILE``: the trials of a sweep file on Ray Tune; killed, the same words go on.

The file says what is swept (docs/sweeps.md). Every key and value is checked before anything starts.
Any value of the config may be set for all trials by its dotted name, as for ``parc run``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parc_ray import cluster
from parc_ray.arguments import override
from parc_ray.config import ParcConfig
from parc_ray.config_io import differences
from parc_ray.console import setup_logging
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.inputs import check_inputs, run_storage
from parc_ray.lock import RunLock
from parc_ray.loop import run_stages
from parc_ray.plan import PlannedStage
from parc_ray.sweep.capacity import trials_at_once, widest_stage
from parc_ray.sweep.plots import draw_plots
from parc_ray.sweep.results import collect, last_figures, write_sweep
from parc_ray.sweep.sharing import shared_stages, trial_stages
from parc_ray.sweep.spec import (
    SweepSpec,
    Trial,
    base_config,
    load_spec,
    sweep_identity,
    trials_of,
)
from parc_ray.sweep.trial import TrialJob, write_job
from parc_ray.tools.base import OneLineParser, format_table
from parc_ray.tools.runs import open_run

IDENTITY = "sweep.json"
DONE = "sweep_done.json"
SHARED = "shared"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep, ready to run.

    Attributes:
        name: of the sweep.
        directory: ``<storage>/<name>``.
        spec: the file.
        base: what trials start from.
        trials: all points.
        shared: stages that all trials have in common.
        home: run directory that holds those.
        borrowed: whether that is a run of its own, which is not touched.
    """

    name: str
    directory: Path
    spec: SweepSpec
    base: ParcConfig
    trials: list[Trial]
    shared: list[PlannedStage]
    home: Path
    borrowed: bool

    def own_stages(self, trial: Trial) -> list[PlannedStage]:
        """Stages that a trial runs itself."""
        common = {s.label for s in self.shared}
        stages = trial_stages(trial.config, self.spec.until)
        return [s for s in stages if s.label not in common]

    def need(self, trial: Trial) -> tuple[float, float]:
        """CPUs and GPUs of Ray that a trial may hold at once."""
        return widest_stage(trial.config, {s.name for s in self.own_stages(trial)})

    def job(self, trial: Trial, address: str) -> TrialJob:
        """What the trial's process is told."""
        return TrialJob(
            config=str(self.directory / "jobs" / f"{trial.name}.yaml"),
            home=str(self.home),
            shared=[s.label for s in self.shared],
            until=self.spec.until,
            protocol=self.spec.protocol,
            tests=list(self.spec.tests),
            measure=self.spec.measure,
            address=address,
        )


def run(argv: list[str]) -> None:
    """``parc sweep FILE [--name N] [--storage S] [--data D] [--run RUN] [--a.b V ...]``.

    Raises:
        InputError: anything in the file that does not fit, or a directory of another sweep.
        SystemExit: code 1 where trials failed.
    """
    options, rest = arguments().parse_known_args(argv)
    sweep = prepare(options.file, options.storage, options.name, options.data, options.run, rest)
    concurrent = sweep.spec.concurrent if options.concurrent is None else options.concurrent
    if options.dry_run:
        print(preview(sweep))
        return
    setup_logging()
    failed: list[str] = []
    storage = Storage.from_uri(sweep.directory)
    with RunLock(storage):
        _claim(storage, sweep)
        if not options.results and not storage.exists(DONE):
            failed = _run(sweep, concurrent, options.address)
            if not failed:
                storage.write_json_atomic(DONE, {"trials": [t.name for t in sweep.trials]})
        figures = last_figures(collect(sweep.directory, sweep.trials))
        pictures = draw_plots(sweep.directory, sweep.spec, sweep.trials, figures)
        write_sweep(sweep.directory, sweep.name, sweep.spec, sweep.trials, pictures)
    print((sweep.directory / "tables.md").read_text())
    print(f"{sweep.directory}: tables.md, tables.tex, results.csv, results.parquet")
    if failed:
        print(f"{len(failed)} trials failed ({', '.join(failed)}); see {sweep.directory}/logs")
        raise SystemExit(1)


def arguments() -> OneLineParser:
    """The command's options; any other ``--a.b V`` is a value of the config."""
    parser = OneLineParser(prog="parc sweep", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("file", metavar="FILE", help="a sweep file, for example tune_configs/blend_generator.yaml")
    add("--storage", default="runs", help="directory that holds sweeps and runs (default: runs)")
    add("--name", help="name of the sweep, a directory below the storage; default: the file's")
    add("--data", help="'sample', a directory of motions, or a data set manifest")
    add("--run", metavar="DIR", help="take the stages before those that differ from this run")
    add("--concurrent", type=int, metavar="N", help="trials at once; default: as many as fit")
    add("--address", help="Ray cluster: detect, local, auto or host:port")
    add("--dry-run", action="store_true", help="print trials and shared stages; write nothing")
    add("--results", action="store_true", help="write the tables of what there is; run nothing")
    return parser


def prepare(
    file: str,
    storage: str,
    name: str | None,
    data: str | None,
    source: str | None,
    words: Sequence[str] = (),
) -> Sweep:
    """Read and check everything; nothing is written.

    Args:
        file: the sweep file.
        storage: directory of sweeps.
        name: of the sweep, or None for the file's.
        data: initial data, or None for the recipe's.
        source: run directory whose stages are taken over, or None.
        words: dotted overrides for all trials.

    Raises:
        InputError: anything that does not fit.
    """
    for option, given in (("--storage", storage), ("--run", source)):
        if "://" in (given or ""):
            raise InputError(
                f"{option}: {given} is no mounted directory, and trials share stages by links in "
                "the file system; allowed is a directory that all nodes mount; give such a path"
            )
    spec = load_spec(file)
    name = name or Path(file).stem
    directory = Path(storage).expanduser().absolute() / name
    home, lender = directory / SHARED, None
    if source is not None:
        if data is not None:
            raise InputError("--data, --run: both given; a run has its own data; drop --data")
        lender = open_run(source)[1]
        home = Path(source).expanduser().absolute()
        base = replace(lender, evaluation=base_config(spec, file).evaluation)
    else:
        base = base_config(spec, file, data)
    base = override(base, words)
    trials = trials_of(spec, base, file, str(directory / "trials"))
    configs = [trial.config for trial in trials]
    lenders = [lender] if lender is not None else []
    shared = shared_stages([*configs, *lenders], spec.until)
    if lender is not None and not shared:
        raise InputError(
            f"--run {source}: none of its stages is that of every trial; seed, data and settings "
            "before the swept values must be the run's; drop --run, or the values that differ"
        )
    return Sweep(
        name=name,
        directory=directory,
        spec=spec,
        base=base,
        trials=trials,
        shared=shared,
        home=home,
        borrowed=lender is not None,
    )


def preview(sweep: Sweep) -> str:
    """Trials, shared stages, and what one needs, as text."""
    rows = []
    for trial in sweep.trials:
        own = ", ".join(_short(s.label) for s in sweep.own_stages(trial)) or "tests only"
        values = ", ".join(f"{key}={value}" for key, value in trial.values.items())
        rows.append([values, trial.name, own])
    cpus, gpus = (max(sweep.need(trial)[k] for trial in sweep.trials) for k in (0, 1))
    lines = [
        f"{sweep.name}: {len(sweep.trials)} trials in {sweep.directory}",
        f"shared by all ({sweep.home}): {', '.join(s.label for s in sweep.shared) or 'nothing'}",
        f"one trial holds up to {cpus:g} CPUs and {gpus:g} GPUs of Ray at once",
        format_table(["values", "trial", "its own stages"], rows),
    ]
    return "\n".join(lines)


def _short(label: str) -> str:
    """``it_01/generate`` as ``1/generate``."""
    iteration, _, name = label.removeprefix("it_").partition("/")
    return f"{int(iteration)}/{name}"


def _claim(storage: Storage, sweep: Sweep) -> None:
    """Write what the sweep is into its directory, or check that it is the same one.

    Raises:
        InputError: the directory was made by another sweep.
    """
    identity = {**sweep_identity(sweep.spec, sweep.base), "home": str(sweep.home)}
    if storage.exists(IDENTITY):
        changes = differences(storage.read_json(IDENTITY), identity)
        if changes:
            more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
            raise InputError(
                f"{storage}: this directory was made by another sweep ("
                f"{'; '.join(changes[:4])}{more}); go back to the old one, or choose another --name"
            )
        return
    storage.write_json_atomic(IDENTITY, identity)


def _run(sweep: Sweep, concurrent: int | None, address: str | None) -> list[str]:
    """Shared stages in this process, then the trials; names of those that failed."""
    import ray

    from parc_ray.sweep.tuner import run_trials

    resources = sweep.base.resources
    if address is not None:
        resources = replace(resources, address=address)
    common = replace(
        sweep.trials[0].config,
        name=sweep.home.name,
        storage=str(sweep.home.parent),
        resources=resources,
    )
    if not sweep.borrowed:
        check_inputs(run_storage(common), common, sweep.shared, force=False)
    cluster.connect(resources)
    have = ray.cluster_resources()
    needs = [sweep.need(trial) for trial in sweep.trials]
    at_once = trials_at_once(needs, have.get("CPU", 0.0), have.get("GPU", 0.0), concurrent)
    if sweep.shared and not sweep.borrowed:
        run_stages(common, sweep.shared)
    found = ray.get_runtime_context().gcs_address
    points = []
    for trial in sweep.trials:
        job = sweep.job(trial, found)
        path = sweep.directory / "jobs" / f"{trial.name}.json"
        write_job(path, job, trial.config)
        points.append(
            {
                "trial": trial.name,
                "run": str(sweep.directory / "trials" / trial.name),
                "job": str(path),
                "log": str(sweep.directory / "logs" / f"{trial.name}.log"),
                "cwd": os.getcwd(),
            }
        )
    most = max(len(trial.config.iterations) for trial in sweep.trials)
    try:
        return run_trials(
            sweep.directory, points, sweep.spec.scheduler, at_once=at_once, max_iterations=most
        )
    finally:
        cluster.disconnect()
