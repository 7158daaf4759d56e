"""One trial, in a process of its own: its stages, then its tests, iteration by iteration.

``python -m parc_ray.sweep.trial FILE`` is started by a Tune actor (``parc_ray.sweep.tuner``). It is
a driver like that of ``parc run`` and connects to the Ray instance that the sweep runs on, so that
its stages are bounded by what Ray has and nothing is nested in the actor. It ends when its standard
input ends, that is with the actor, however that dies.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from parc_ray.cli import guarded
from parc_ray.config import ParcConfig
from parc_ray.config_io import from_yaml, to_yaml
from parc_ray.console import setup_logging
from parc_ray.data.storage import Storage
from parc_ray.evaluation.protocols import get_protocol
from parc_ray.evaluation.results import OURS
from parc_ray.evaluation.write_results import summarise_rows
from parc_ray.inputs import run_storage
from parc_ray.loop import run_stages
from parc_ray.plan import PlannedStage, plan
from parc_ray.sweep.sharing import link_stages, trial_stages
from parc_ray.tools.evaluate import measure

CONFIG = "trial.yaml"
"""A trial's config, beside its run directory's own files."""
PROGRESS = "sweep/it_{:02d}.json"
"""Summary of an iteration's tests, relative to the trial's run directory."""
FINISHED = "sweep/finished.json"


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """What a trial's process is told.

    Attributes:
        config: file with the trial's config.
        home: run directory that holds the shared stages.
        shared: labels of those.
        until: last stage, or None.
        protocol: name of the protocol; settings are the config's.
        tests: ``generator``, ``tracker``.
        measure: test each iteration or the last.
        address: of Ray.
    """

    config: str
    home: str
    shared: list[str]
    until: str | None
    protocol: str
    tests: list[str]
    measure: str
    address: str


def write_job(path: Path, job: TrialJob, config: ParcConfig) -> None:
    """Write a job and its config."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(job.config).write_text(to_yaml(config))
    path.write_text(json.dumps(asdict(job), indent=1))


def run_job(job: TrialJob) -> None:
    """Do the stages and the tests that are not done yet."""
    config = from_yaml(ParcConfig, Path(job.config).read_text(), job.config)
    config = replace(config, resources=replace(config.resources, address=job.address))
    stages = trial_stages(config, job.until)
    own = run_storage(config)
    link_stages(Path(job.home), own.local_path(), [s for s in stages if s.label in job.shared])
    tested = _tested(config, stages, job.measure)
    for iteration in sorted({s.iteration for s in stages}):
        run_stages(config, [s for s in stages if s.iteration == iteration])
        if iteration in tested:
            _test(job, config, own, tested[iteration])
    own.write_json_atomic(FINISHED, {"iterations": sorted(tested)})


def _tested(
    config: ParcConfig, stages: Sequence[PlannedStage], measured: str
) -> dict[int, PlannedStage]:
    """The evaluation of every iteration that has a generator of its own and shall be tested."""
    trained = [s.iteration for s in stages if s.name == "train-generator"]
    wanted = trained if measured == "each" else trained[-1:]
    return {s.iteration: s for s in plan(config) if s.name == "evaluate" and s.iteration in wanted}


def _test(job: TrialJob, config: ParcConfig, own: Storage, stage: PlannedStage) -> None:
    path = PROGRESS.format(stage.iteration)
    if own.exists(path):
        return
    protocol = replace(get_protocol(job.protocol, config), evaluation=config.evaluation)
    trackers = "tracker" in job.tests
    target = own.join("evaluation")
    found, digest = measure(own, config, [stage], target, protocol, trackers=trackers)
    summary = summarise_rows(found)
    ours = summary[summary["source"] == OURS].drop(columns=["source"])
    own.write_json_atomic(path, {"terrain_set": digest, "rows": _records(ours)})


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(frame.to_json(orient="records", double_precision=15))


def _end_with_parent() -> None:
    """End this process once standard input is closed: its parent is gone."""

    def wait() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def main(argv: Sequence[str]) -> int:
    """Run the job in the file that is named; the exit code."""
    _end_with_parent()
    setup_logging()
    return guarded(lambda: run_job(TrialJob(**json.loads(Path(argv[0]).read_text()))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
