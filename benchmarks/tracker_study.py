"""Learning to track single real clips: curves over CPU time, seeds, and what helped.

    python benchmarks/tracker_study.py --work runs/tracker --out docs/results

Every training is a process of its own with one thread, without a cluster; it tests itself every
``--every`` CPU-seconds and writes its curve, its checkpoint and at its end one JSON file below
``--work``. Stopped and started again with the same words, the study goes on where it was. Tables,
pictures and page are written anew after each result.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _study
from benchmarks._study import Job, drive, write_result, write_rows
from benchmarks.tracker_study_parts import Training, default_data, load_take, setting
from benchmarks.tracker_study_plan import GOALS, PLAN, VARIANTS
from benchmarks.tracker_study_report import write_report
from parc_ray.character.character import load_character
from parc_ray.errors import InputError


@dataclass(frozen=True)
class Run:
    """One training: ``take:variant:seed:cpu_s``."""

    take: str
    variant: str
    seed: int
    cpu_s: float

    @classmethod
    def parse(cls, text: str) -> Run:
        """Read ``take:variant:seed:cpu_s``.

        Raises:
            InputError: another form, or a variant that is unknown.
        """
        parts = text.split(":")
        try:
            take, variant, seed, cpu_s = parts
            run = cls(take, variant, int(seed), float(cpu_s))
        except ValueError as error:
            raise InputError(f"--runs {text}: give take:variant:seed:cpu_s") from error
        if variant not in VARIANTS:
            known = ", ".join(VARIANTS)
            raise InputError(f"--runs {text}: variant '{variant}' is unknown; use one of {known}")
        return run

    @property
    def name(self) -> str:
        """Name of its folder and result."""
        return f"{self.take}__{self.variant}__{self.seed}"

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.take}:{self.variant}:{self.seed}:{self.cpu_s:g}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, or one piece of it."""
    options = arguments().parse_args(argv)
    work, out = _study.prepared(options)
    if options.one:
        one_run(work, options.data, Run.parse(options.one), options.every)
    elif options.report:
        write_report(work, out)
    else:
        jobs = jobs_of(work, options)
        drive(__file__, jobs, work, options.jobs, lambda: write_report(work, out))


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = _study.arguments(__doc__, default_data())
    add = parser.add_argument
    add("--runs", nargs="+", default=list(PLAN), help="take:variant:seed:cpu_s, in this order")
    add("--every", type=float, default=75.0, help="CPU time between tests, s (%(default)s)")
    add("--report", action="store_true", help="only write tables, pictures and page")
    return parser


def one_run(work: Path, data: str, run: Run, every_s: float) -> None:
    """Train and test one run; ends early once the goal of its clip is reached and confirmed.

    Writes ``<name>/curve.csv`` at every test and ``<name>.json`` at the end. A goal counts as
    reached where the test during training and a test of the same policy with fresh seeds both do.
    """
    preset, changes = VARIANTS[run.variant]
    config = setting(preset, run.seed, changes)
    character = load_character("humanoid")
    clip = load_take(data, run.take, character, config.cell_size)
    goal = GOALS.get(run.take, 0.8)
    training = Training(character, [clip], config, work / run.name)
    confirmed: dict[str, float] | None = None
    try:
        if not training.rows:
            training.test()
        while training.used_s < run.cpu_s and confirmed is None:
            training.iterate()
            over = training.used_s >= run.cpu_s
            if over or training.used_s >= every_s * (len(training.rows)):
                row = training.test()
                if row["start_completed"] >= goal:
                    figures = training.retest()
                    confirmed = figures if figures["start_completed"] >= goal else None
                training.save()
                write_rows(work / run.name / "curve.csv", training.rows)
                print(json.dumps({k: round(v, 4) for k, v in row.items()}), flush=True)
        figures = confirmed or training.retest()
    finally:
        training.close()
    last = training.rows[-1]
    result = {
        "take": run.take,
        "variant": run.variant,
        "seed": run.seed,
        "frames": clip.num_frames,
        "budget_cpu_s": run.cpu_s,
        "cpu_s": last["cpu_s"],
        "test_cpu_s": last["test_cpu_s"],
        "samples": last["samples"],
        "goal": goal,
        "reached_cpu_s": last["cpu_s"] if confirmed else None,
        "best_start_completed": training.best[0],
        **{f"fresh_{k}": v for k, v in figures.items()},
    }
    write_result(work, run.name, result)


def jobs_of(work: Path, options: argparse.Namespace) -> list[Job]:
    """All runs, in the order in which they start."""
    common = ("--work", str(work), "--data", options.data, "--every", f"{options.every:g}")
    runs = [Run.parse(text) for text in options.runs]
    return [Job(run.name, (*common, "--one", str(run))) for run in runs]


if __name__ == "__main__":
    main()
