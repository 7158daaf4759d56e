"""What studies share: pieces in processes of their own, gone on with after a stop, and their files.

A piece leaves ``<name>.json`` in the study's directory when it is done; its output goes to
``<name>.log``. Which pieces have a result is all that a study needs to go on.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parc_ray.data.storage import Storage

POLL_S = 2.0
"""Seconds between looks at the processes."""


@dataclass(frozen=True)
class Job:
    """One piece of a study."""

    name: str
    """Of its result, its log and its folder."""
    words: tuple[str, ...]
    """What the script is called with to do this piece alone."""
    needs: str = ""
    """Piece whose result must be there first."""


def arguments(description: str | None, data: str) -> argparse.ArgumentParser:
    """Options that all studies have.

    Args:
        description: a module's docstring, of which the first line is told.
        data: where PARC's initial clips are if nothing else is said.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    add = parser.add_argument
    add("--work", required=True, help="directory of checkpoints and results; kept and gone on with")
    add("--out", default=None, help="directory of the page (default: --work)")
    add("--data", default=data, help="PARC's initial clips (%(default)s)")
    add("--jobs", type=int, default=2, help="processes at a time, one thread each (%(default)s)")
    add("--one", help=argparse.SUPPRESS)
    return parser


def prepared(options: argparse.Namespace) -> tuple[Path, Path]:
    """The study's directory, which is made, and that of its page; this process gets one thread."""
    torch.set_num_threads(1)
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    return work, Path(options.out) if options.out else work


def drive(
    script: str, jobs: Sequence[Job], work: Path, at_once: int, report: Callable[[], None]
) -> None:
    """Keep ``at_once`` processes busy until every piece has its result.

    Args:
        script: file that does a piece.
        jobs: all pieces, in the order in which they start.
        work: directory of the results.
        at_once: processes at a time, of one thread each.
        report: called after every piece and at the end.

    Raises:
        SystemExit: pieces failed; the others are done, except those that needed them.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed: set[str] = set()
    while True:
        for name, process in list(running.items()):
            code = process.poll()
            if code is not None:
                del running[name]
                if code:
                    failed.add(name)
                print(f"{time.strftime('%H:%M:%S')} {name}: {'failed' if code else 'done'}")
                report()
        ready = [
            job
            for job in jobs
            if job.name not in running
            and job.name not in failed
            and not has_result(work, job.name)
            and (not job.needs or has_result(work, job.needs))
        ]
        for job in ready[: max(0, at_once - len(running))]:
            running[job.name] = start(script, work, job)
        if not running:
            break
        time.sleep(POLL_S)
    report()
    if failed:
        raise SystemExit(f"{', '.join(sorted(failed))} failed; see {work}/*.log; start again")


def has_result(work: Path, name: str) -> bool:
    """Whether a piece is done."""
    return (work / f"{name}.json").exists()


def start(script: str, work: Path, job: Job) -> subprocess.Popen[bytes]:
    """Start one piece."""
    with (work / f"{job.name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, script, *job.words],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    print(f"{time.strftime('%H:%M:%S')} {job.name}: process {process.pid}", flush=True)
    return process


def write_result(work: Path, name: str, row: dict[str, Any]) -> None:
    """Write a piece's result, whole or not at all; figures that do not exist are NaN in it."""
    write_text(work / f"{name}.json", json.dumps(row, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    Storage.from_uri(path.parent).write_bytes_atomic(path.name, text.encode())


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a CSV table, whole or not at all; numbers with fractions get six digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
    )
    write_text(path, text.getvalue())
