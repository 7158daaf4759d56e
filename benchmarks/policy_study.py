"""One policy for five real clips: plain PPO, and three ways to start it, at equal CPU time.

    python benchmarks/policy_study.py --work runs/policy --out docs/results

``plain`` is PPO from nothing; ``assist`` has a force on the root that is gone after 6000 steps;
``teacher`` clones what MPC shows and goes on; ``specialists`` trains one policy per clip for
two fifths of the time and puts them together before it goes on; ``more`` is warm-started from
``plain`` of the same seed on two further clips. Whatever a start costs counts, but for that of
``more``, whose budget is that of the further training. One process with one thread each; stopped
and started again with the same words, the study goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from algorithms.ppo.policy import MlpPolicy
from benchmarks import _study
from benchmarks._study import Job, drive, has_result, write_result, write_rows
from benchmarks.policy_study_report import write_report
from benchmarks.policy_study_starts import by_specialists, by_teacher, warm_setting
from benchmarks.tracker_study_parts import StudySetting, Training, default_data, load_take, setting
from benchmarks.tracker_study_plan import VARIANTS
from parc_ray.character.character import Character, load_character
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip

TAKES = ("run30", "run13", "stairs03", "platform17", "platform13")
"""The five clips."""
FURTHER = ("mid_climb02", "stairs02")
"""Clips that ``more`` adds."""
METHODS = ("plain", "assist", "teacher", "specialists", "more")
ASSIST = {"task.assist.strength": 0.7}
PLAN = (
    *(f"{method}:{seed}:2400" for seed in (0, 1) for method in METHODS[:4]),
    "more:0:1200",
)
"""The runs, in the order in which they start: method:seed:cpu_s."""
GOAL = 0.8


@dataclass(frozen=True)
class Run:
    """One training: ``method:seed:cpu_s``."""

    method: str
    seed: int
    cpu_s: float

    @classmethod
    def parse(cls, text: str) -> Run:
        """Read ``method:seed:cpu_s``.

        Raises:
            InputError: another form, or a method that is unknown.
        """
        try:
            method, seed, cpu_s = text.split(":")
            run = cls(method, int(seed), float(cpu_s))
        except ValueError as error:
            raise InputError(f"--runs {text}: give method:seed:cpu_s") from error
        if method not in METHODS:
            raise InputError(f"--runs {text}: '{method}' is unknown; use {', '.join(METHODS)}")
        return run

    @property
    def name(self) -> str:
        """Name of its folder and result."""
        return f"{self.method}__{self.seed}"

    @property
    def needs(self) -> str:
        """The run whose policy it starts from, if any."""
        return f"plain__{self.seed}" if self.method == "more" else ""

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.method}:{self.seed}:{self.cpu_s:g}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, or one piece of it."""
    options = arguments().parse_args(argv)
    work, out = _study.prepared(options)
    if options.one:
        character = load_character("humanoid")
        run = Run.parse(options.one)
        takes = (*TAKES, *FURTHER) if run.method == "more" else TAKES
        clips = [load_take(options.data, take, character, 0.2) for take in takes]
        extra = [load_take(options.data, FURTHER[0], character, 0.2)]
        one_run(work, run, character, clips, extra, options.every)
    elif options.report:
        write_report(work, out)
    else:
        drive(__file__, jobs_of(work, options), work, options.jobs, lambda: write_report(work, out))


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = _study.arguments(__doc__, default_data())
    add = parser.add_argument
    add("--runs", nargs="+", default=list(PLAN), help="method:seed:cpu_s, in this order")
    add("--every", type=float, default=150.0, help="CPU time between tests, s (%(default)s)")
    add("--report", action="store_true", help="only write tables, pictures and page")
    return parser


def jobs_of(work: Path, options: argparse.Namespace) -> list[Job]:
    """All runs, in the order in which they start."""
    common = ("--work", str(work), "--data", options.data, "--every", f"{options.every:g}")
    runs = [Run.parse(text) for text in options.runs]
    planned = {run.name for run in runs}
    for run in runs:
        if run.needs and run.needs not in planned and not has_result(work, run.needs):
            raise InputError(f"--runs {run}: starts from {run.needs}, which is not there; add it")
    return [Job(run.name, (*common, "--one", str(run)), run.needs) for run in runs]


def setting_of(run: Run, changes: dict[str, Any] | None = None) -> StudySetting:
    """Settings of a run: those of single clips, with what its method adds."""
    preset, values = VARIANTS["fine"]
    values = {**values, **(changes or {})}
    if run.method == "assist":
        values |= ASSIST
    config = setting(preset, run.seed, values)
    # Nothing is preferred among clips that are all wanted, and each class counts alike.
    sampling = replace(config.task.sampling, focus=0.0, class_balance=True)
    return replace(config, task=replace(config.task, sampling=sampling))


def one_run(
    work: Path,
    run: Run,
    character: Character,
    clips: Sequence[MotionClip],
    extra: Sequence[MotionClip],
    every_s: float,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train and test one run; ``extra`` are clips that the best policy is tested on at the end.

    Writes ``<name>/curve.csv`` at every test and ``<name>.json`` at the end.
    """
    config = setting_of(run, changes)
    folder = work / run.name
    began = time.process_time()
    start, figures = start_of(work, run, character, clips, config)
    if start is not None:
        config = warm_setting(config, fresh_critic=not start.critic_state)
    spent = float(start.notes.get("start_cpu_s", 0.0)) if start is not None else 0.0
    print(f"start: {time.process_time() - began:.1f} CPU-s in this sitting", flush=True)
    training = Training(character, clips, config, folder, start, spent)
    try:
        if not training.rows:
            training.test()
            training.save()
            write_rows(folder / "curve.csv", training.rows)
        tested_at = training.rows[-1]["cpu_s"]
        while training.used_s < run.cpu_s:
            training.iterate()
            if training.used_s >= min(run.cpu_s, tested_at + every_s):
                row = training.test()
                tested_at = row["cpu_s"]
                training.save()
                write_rows(folder / "curve.csv", training.rows)
                print(json.dumps({k: round(v, 4) for k, v in row.items()}), flush=True)
        fresh = training.retest()
        beside = tested_beside(training, character, config, extra)
    finally:
        training.close()
    last = training.rows[-1]
    result = {
        "method": run.method,
        "seed": run.seed,
        "budget_cpu_s": run.cpu_s,
        **{key: last[key] for key in ("cpu_s", "test_cpu_s", "samples")},
        "start_cpu_s": spent,
        **figures,
        **{f"fresh_{k}": v for k, v in fresh.items()},
        **beside,
    }
    write_result(work, run.name, result)


def start_of(
    work: Path,
    run: Run,
    character: Character,
    clips: Sequence[MotionClip],
    config: StudySetting,
) -> tuple[MlpPolicy | None, dict[str, float]]:
    """What a run starts from, made once and kept, and figures of it."""
    folder = work / run.name
    if run.method in ("plain", "assist"):
        return None, {}
    if run.method == "more":
        policy = MlpPolicy.load(work / run.needs / "best.pt")
        policy.notes["start_cpu_s"] = 0.0
        return policy, {}
    path = folder / "start.pt"
    if not path.exists():
        make = by_teacher if run.method == "teacher" else by_specialists
        policy, cpu_s, figures = make(folder, character, clips, config, 0.4 * run.cpu_s)
        policy.notes |= {"start_cpu_s": cpu_s, "start": figures}
        policy.save(path)
    policy = MlpPolicy.load(path)
    return policy, {f"start_{k}": float(v) for k, v in policy.notes["start"].items()}


def tested_beside(
    training: Training, character: Character, config: StudySetting, extra: Sequence[MotionClip]
) -> dict[str, float]:
    """The best policy on clips that it may not have been trained on."""
    found = {}
    for clip in extra:
        figures = training.test_beside(character, [clip])
        found[f"beside_completed/{clip.clip_id}"] = figures["start_completed"]
        found[f"beside_survived/{clip.clip_id}"] = figures["start_survived"]
    return found


if __name__ == "__main__":
    main()
