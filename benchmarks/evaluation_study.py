"""The small study: physics correction on and off over three iterations, and s on one generator.

    python benchmarks/evaluation_study.py --data ../shared/data/parc_clips --work runs/study

Both parts are sweeps (tune_configs/study_physics.yaml, then blend_generator.yaml on the last
generator of the run with correction). Stopped and started again with the same words, the study goes
on where it was. Tables go to ``--out``: every motion's figures as CSV, and the trends with their
intervals as CSV and Markdown. ``--report`` writes them anew from what there is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import print_result
from parc_ray.evaluation.bootstrap import Interval, bootstrap_difference
from parc_ray.evaluation.results import GENERATOR_FIGURES
from parc_ray.evaluation.tables import Sheet, interval, markdown

ROOT = Path(__file__).resolve().parents[1]
PHYSICS, BLEND = "study_physics", "study_blend"
FIGURES = ("fwd_m", "tpl_code", "tpl_in_grid", "tcl", "hjf_pairs_percent", "hjf_frames_percent")
NEVER = "not shown: the interval holds 0"


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, then write the tables."""
    options = arguments().parse_args(argv)
    work, out = Path(options.work).absolute(), Path(options.out).absolute()
    if not options.report:
        sweep(["tune_configs/study_physics.yaml", "--data", options.data, "--name", PHYSICS], work)
        run = trial(work / PHYSICS, "with")
        sweep(["tune_configs/blend_generator.yaml", "--run", str(run), "--name", BLEND], work)
    rows = motions(work)
    out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(out / "motions.csv", index=False)
    table = trends(rows)
    table.to_csv(out / "trends.csv", index=False)
    (out / "trends.md").write_text(page(table))
    shown = table["verdict"].str.startswith("shown").sum()
    print_result({"comparisons": float(len(table)), "shown": float(shown)})


def arguments() -> argparse.ArgumentParser:
    """The script's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data" / "parc_clips"))
    parser.add_argument("--work", default="runs/study")
    parser.add_argument("--out", default=str(ROOT / "docs" / "results" / "evaluation_study"))
    parser.add_argument("--report", action="store_true", help="only write tables and page")
    return parser


def sweep(words: Sequence[str], work: Path) -> None:
    """One sweep; it finds by itself what is done."""
    command = [sys.executable, "-m", "parc_ray.cli", "sweep", *words, "--storage", str(work)]
    subprocess.run(command, check=True, cwd=ROOT)


def trial(sweep_directory: Path, variant: str) -> Path:
    """Run directory of a variant."""
    found = sorted(sweep_directory.glob(f"trials/variant-{variant}-*"))
    if len(found) != 1:
        raise SystemExit(f"{sweep_directory}: {len(found)} trials of variant {variant!r}")
    return found[0]


def motions(work: Path) -> pd.DataFrame:
    """Every test motion of both sweeps: part, variant or s, iteration, terrain, figures."""
    frames = []
    for part in (PHYSICS, BLEND):
        for path in sorted((work / part / "trials").glob("*/evaluation/it_*/generator-test")):
            run = path.parents[2]
            job = json.loads((work / part / "jobs" / f"{run.name}.json").read_text())
            frame = pd.read_parquet(path / "rows.parquet")
            label = run.name.split("-")[1] if part == PHYSICS else _blend(Path(job["config"]))
            frame.insert(0, "iteration", int(path.parent.name.removeprefix("it_")))
            frame.insert(0, "variant", label)
            frame.insert(0, "part", part)
            frames.append(frame)
    if not frames:
        raise SystemExit(f"{work}: nothing measured yet; run the study without --report first")
    return pd.concat(frames, ignore_index=True)


def _blend(config: Path) -> str:
    import yaml

    return f"s={yaml.safe_load(config.read_text())['evaluation']['s']:g}"


def trends(rows: pd.DataFrame) -> pd.DataFrame:
    """The paper's trends as differences with paired intervals over terrains.

    Last iteration minus first with correction (the paper: below 0); without minus with correction
    in every iteration (the paper: %HJF above 0); neighbours along s (the paper: TPL below 0, %HJF
    above 0 from .5 on).
    """
    out = []
    physics = rows[rows["part"] == PHYSICS]
    mine = physics[physics["variant"] == "with"]
    if mine["iteration"].nunique() > 1:
        first, last = mine["iteration"].min(), mine["iteration"].max()
        name = f"with correction: iteration {last} - iteration {first}"
        out += _compare(name, mine[mine["iteration"] == first], mine[mine["iteration"] == last])
    for iteration in sorted(physics["iteration"].unique()):
        at = physics[physics["iteration"] == iteration]
        pair = [at[at["variant"] == v] for v in ("with", "without")]
        if all(len(p) for p in pair):
            out += _compare(f"iteration {iteration}: without - with correction", *pair)
    blend = rows[rows["part"] == BLEND]
    values = sorted(blend["variant"].unique(), key=lambda v: float(v.removeprefix("s=")))
    for low, high in itertools.pairwise(values):
        pair = [blend[blend["variant"] == v] for v in (low, high)]
        out += _compare(f"{high} - {low}", *pair)
    return pd.DataFrame(out)


def _compare(name: str, first: pd.DataFrame, second: pd.DataFrame) -> list[dict[str, object]]:
    found = []
    for figure in FIGURES:
        pair = [(part[figure], list(part["terrain"])) for part in (first, second)]
        difference = bootstrap_difference(*pair)
        found.append(
            {
                "comparison": name,
                "figure": figure,
                **vars(difference),
                "verdict": verdict(difference),
            }
        )
    return found


def verdict(difference: Interval) -> str:
    """Whether a difference is shown, by its interval."""
    if math.isnan(difference.low) or difference.low <= 0.0 <= difference.high:
        return NEVER
    return f"shown: {'rises' if difference.low > 0 else 'falls'}"


def page(table: pd.DataFrame) -> str:
    """The trends as Markdown."""
    headings = {f.name: f.heading for f in GENERATOR_FIGURES}
    rows = [
        [
            str(row["comparison"]),
            headings[str(row["figure"])],
            interval(Interval(**{k: row[k] for k in ("mean", "low", "high", "values", "groups")})),
            str(row["verdict"]),
        ]
        for row in table.to_dict("records")
    ]
    sheet = Sheet(
        title="Differences",
        columns=["comparison", "figure", "difference [95 % interval]", "verdict"],
        rows=rows,
    )
    text = "Differences of means on the same terrains, bootstrap over terrains, one seed."
    return markdown([sheet], "Trends of the small study", text)


if __name__ == "__main__":
    main()
