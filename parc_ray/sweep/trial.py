"""One trial, in a process of its own: its stages, then its tests, iteration by iteration.

``python -m parc_ray.sweep.trial FILE`` is started by a Tune actor (``parc_ray.sweep.tuner``). It is
a driver like that of ``parc run`` and connects to the Ray instance that the sweep runs on, so that
its stages are bounded by what Ray has and nothing is nested in the actor. It ends when its standard
input ends, that is with the actor, however that dies; a byte there says that the iteration it has
tested was reported and that it may go on.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
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


def run_job(job: TrialJob, go_on: Callable[[], None] = lambda: None) -> None:
    """Do the stages and the tests that are not done yet.

    Args:
        job: what to do.
        go_on: called after every tested iteration; returns when the next one may begin.
    """
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
            if iteration < max(tested):
                go_on()
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
    ours = [row for row in _records(summary) if row.pop("source") == OURS]
    own.write_json_atomic(path, {"terrain_set": digest, "rows": ours})


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON values, numbers to the bit; what is missing is None."""
    return [
        {str(k): None if pd.isna(v) else v for k, v in row.items()}
        for row in frame.to_dict("records")
    ]


class _Parent:
    """The actor at the other end of standard input; this process ends when it is gone."""

    def __init__(self) -> None:
        self._said = threading.Semaphore(0)
        threading.Thread(target=self._listen, name="parent-watch", daemon=True).start()

    def go_on(self) -> None:
        """Wait for the next byte."""
        self._said.acquire()

    def _listen(self) -> None:
        while said := os.read(0, 64):  # not sys.stdin, whose lock would be held at the exit
            self._said.release(len(said))
        os._exit(1)


def main(argv: Sequence[str]) -> int:
    """Run the job in the file that is named; the exit code."""
    parent = _Parent()
    setup_logging()
    job = TrialJob(**json.loads(Path(argv[0]).read_text()))
    return guarded(lambda: run_job(job, parent.go_on))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
