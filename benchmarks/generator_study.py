"""``base`` against ``upstream`` for the same CPU time, several seeds each; and the curve over s.

    python benchmarks/generator_study.py --work runs/study --out docs/results

Every training and every evaluation is a process of its own that leaves one JSON file in ``--work``;
trainings keep checkpoints. Stopped and started again with the same words, the study goes on where
it was. Tables, picture and page are written anew after each result.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from algorithms.diffusion.generator import DiffusionGenerator
from algorithms.diffusion.train import train_local
from benchmarks import _study
from benchmarks._study import Job, drive, has_result, write_result, write_rows
from benchmarks.generator_study_parts import (
    BLENDS,
    data_energy,
    default_data,
    held_out_loss,
    load_clips,
    roll_out_figures,
    setting,
    with_sampling,
)
from benchmarks.generator_study_report import write_report
from parc_ray.character.character import load_character
from parc_ray.data.bank import ClipBank
from parc_ray.errors import InputError

SETTINGS = ("base", "upstream")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study, or one piece of it."""
    options = arguments().parse_args(argv)
    work, out = _study.prepared(options)
    if options.one:
        name, seed = options.one.rsplit("_", 1)
        changes = json.loads(Path(options.changes).read_text()) if options.changes else {}
        one_run(work, options.data, name, int(seed), options.cpu_s, changes)
    elif options.blend is not None:
        one_blend(work, options.data, options.curve_of, options.blend)
    else:
        if options.take_over:
            take_over(Path(options.take_over), work)
        jobs = jobs_of(work, options)
        drive(__file__, jobs, work, options.jobs, lambda: report(work, out))


def take_over(table: Path, work: Path) -> None:
    """Write the result files of the runs in ``table`` that ``work`` does not hold yet."""
    if not table.is_file():
        raise InputError(f"{table}: there is no such file; --take-over wants a runs.csv")
    with table.open(newline="") as file:
        for number, line in enumerate(csv.DictReader(file), start=2):
            try:
                row: dict[str, Any] = {
                    key: value if key == "setting" else float(value) for key, value in line.items()
                }
                row |= {key: int(row[key]) for key in ("seed", "steps")}
                name = f"{row['setting']}_{row['seed']}"
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{table}: line {number} is no run of this study ({error})"
                ) from None
            if row["setting"] in SETTINGS and not has_result(work, name):
                write_result(work, name, row)


def arguments() -> argparse.ArgumentParser:
    """The options."""
    parser = _study.arguments(__doc__, default_data())
    add = parser.add_argument
    add("--cpu-s", type=float, default=900.0, help="CPU time of a training, s (%(default)s)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS, help="in this order")
    add("--take-over", help="runs.csv of an earlier sitting: its runs are not done again")
    add("--changes", help="JSON file of values by dotted key that `base` gets, to try settings out")
    add("--blend", type=float, help=argparse.SUPPRESS)
    add("--curve-of", default="base_0", help="the run whose curve over s is drawn (%(default)s)")
    return parser


def one_run(
    work: Path,
    data: str,
    name: str,
    seed: int,
    cpu_s: float,
    changes: dict[str, Any] | None = None,
) -> None:
    """Train one setting with one seed and measure it; writes ``<name>_<seed>.json``."""
    character = load_character("humanoid")
    training, held_out = load_clips(data, character)
    config = setting(name, seed, cpu_s, changes)
    bank = ClipBank(training, character.skeleton)
    result = train_local(bank, character, config, work / f"{name}_{seed}")
    generator = DiffusionGenerator.load(result.path, character)
    loss = held_out_loss(generator, held_out, character)
    row = {
        "setting": name,
        "seed": seed,
        "steps": result.metrics["steps"],
        "cpu_s": cpu_s,
        "held_out_loss": loss["loss"],
        "training_loss": held_out_loss(generator, training, character)["loss"],
        **{f"loss_{key}": value for key, value in loss.items() if key != "loss"},
        **roll_out_figures(generator, character, data_energy(training + held_out)),
    }
    write_result(work, f"{name}_{seed}", row)


def one_blend(work: Path, data: str, run: str, s: float) -> None:
    """Roll one trained generator out at one s; writes ``curve_<run>_<s>.json``."""
    character = load_character("humanoid")
    training, held_out = load_clips(data, character)
    generator = DiffusionGenerator.load(work / run / "generator.pt", character)
    # As in the paper: the same s at every step and in every frame.
    generator = with_sampling(generator, blend=s, blend_end=None, blend_fade=0)
    energy = data_energy(training + held_out)
    row = {"run": run, "s": s, **roll_out_figures(generator, character, energy)}
    write_result(work, f"curve_{run}_{s:g}", row)


def jobs_of(work: Path, options: argparse.Namespace) -> list[Job]:
    """All pieces, in the order in which they start."""
    jobs, common = [], ("--work", str(work), "--data", options.data)
    for name in options.settings:
        for seed in options.seeds:
            words: tuple[str, ...] = (
                *common,
                "--one",
                f"{name}_{seed}",
                "--cpu-s",
                f"{options.cpu_s:g}",
            )
            if options.changes and name == "base":
                words = (*words, "--changes", options.changes)
            jobs.append(Job(f"{name}_{seed}", words))
    for s in BLENDS:
        words = (*common, "--blend", f"{s:g}", "--curve-of", options.curve_of)
        jobs.append(Job(f"curve_{options.curve_of}_{s:g}", words, needs=options.curve_of))
    return jobs


def report(work: Path, out: Path) -> None:
    """Write tables, picture and page from the results that are there."""
    rows = [json.loads(p.read_text()) for n in SETTINGS for p in sorted(work.glob(f"{n}_*.json"))]
    curve = [json.loads(p.read_text()) for p in work.glob("curve_*.json")]
    curve.sort(key=lambda row: row["s"])
    folder = out / "generator_study"
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("runs", rows), ("curve", curve)):
        if table:
            write_rows(folder / f"{name}.csv", table)
    if rows:
        write_report(rows, curve, out, SETTINGS)


if __name__ == "__main__":
    main()
