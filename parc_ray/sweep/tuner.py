"""Trials on Ray Tune: one light actor per trial that starts its process and reports its tests."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from parc_ray.sweep.capacity import ACTOR_CPUS
from parc_ray.sweep.spec import SchedulerSpec
from parc_ray.sweep.trial import FINISHED

EXPERIMENT = "tune"
_POLL_S = 0.5
_TAIL = 2000


def watch_trial(config: Mapping[str, Any]) -> None:
    """Tune's function: run a trial's process and report every iteration that it has tested.

    Args:
        config: ``point``, with ``run`` (the trial's run directory), ``job`` (its file), ``log`` and
            ``cwd`` (where its process runs).

    Raises:
        RuntimeError: the process failed; the end of its log is in the message.
    """
    point = config["point"]
    run, log = Path(point["run"]), Path(point["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    reported: set[str] = set()
    if (run / FINISHED).exists():
        _report(run, reported)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "parc_ray.sweep.trial", point["job"]],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=point["cwd"],
        )
        try:
            while process.poll() is None:
                for _ in range(_report(run, reported)):
                    _go_on(process)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    _report(run, reported)
    if process.returncode != 0:
        end = log.read_bytes()[-_TAIL:].decode(errors="replace")
        raise RuntimeError(f"{run.name}: ended with code {process.returncode}; {log}:\n{end}")


def _go_on(process: subprocess.Popen[bytes]) -> None:
    """Tell a trial's process that an iteration was reported; one that has ended needs no word."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"\n")
        process.stdin.flush()


def _report(run: Path, reported: set[str]) -> int:
    """Report the iterations that were tested since the last call; how many.

    Tune answers a report when the trial may go on; one that it stops never gets an answer.
    """
    before = len(reported)
    for path in sorted((run / "sweep").glob("it_*.json")):
        if path.name in reported:
            continue
        reported.add(path.name)
        rows = json.loads(path.read_text())["rows"]
        tune.report({"pass": len(reported), **flat_figures(rows)})
    return len(reported) - before


def flat_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means of a summary by ``test/figure``; NaN where a figure has none."""
    return {
        f"{row['test']}/{row['figure']}": math.nan if row["mean"] is None else float(row["mean"])
        for row in rows
    }


def run_trials(
    directory: Path,
    points: Sequence[Mapping[str, Any]],
    scheduler: SchedulerSpec,
    *,
    at_once: int,
    max_iterations: int,
) -> list[str]:
    """Run all trials, or go on with those that a killed sweep left.

    Args:
        directory: the sweep's directory; Tune's own files go to ``tune`` in it.
        points: arguments of ``watch_trial``, one per trial; ``trial`` is the trial's name.
        scheduler: grid or ASHA.
        at_once: trials at the same time.
        max_iterations: tests that a trial reports at most.

    Returns:
        Names of trials that failed.
    """
    if not ray.is_initialized():
        raise RuntimeError("Ray must be connected before trials are run")
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    trainable = tune.with_resources(watch_trial, {"CPU": ACTOR_CPUS})
    home = directory / EXPERIMENT
    if tune.Tuner.can_restore(str(home)):
        tuner = tune.Tuner.restore(
            str(home), trainable=trainable, resume_unfinished=True, restart_errored=True
        )
    else:
        tuner = tune.Tuner(
            trainable,
            param_space={"point": tune.grid_search([dict(p) for p in points])},
            tune_config=tune.TuneConfig(
                max_concurrent_trials=at_once,
                scheduler=_scheduler(scheduler, max_iterations),
                reuse_actors=False,
                metric=scheduler.metric if scheduler.kind == "asha" else None,
                mode=scheduler.mode if scheduler.kind == "asha" else None,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name=EXPERIMENT,
                storage_path=str(directory),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        )
    results = tuner.fit()
    return [
        str(result.config["point"]["trial"])
        for result in results
        if result.error is not None and result.config is not None
    ]


def _scheduler(spec: SchedulerSpec, max_iterations: int) -> ASHAScheduler | None:
    """ASHA over PARC iterations, or none for a grid."""
    if spec.kind == "grid":
        return None
    return ASHAScheduler(
        time_attr="training_iteration",
        max_t=max(spec.grace, max_iterations),
        grace_period=spec.grace,
        reduction_factor=spec.reduction,
    )


def _trial_name(trial: Any) -> str:
    return str(trial.config["point"]["trial"])
