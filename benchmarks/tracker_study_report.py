"""Page, tables and pictures of the tracker study, from the files that its runs leave."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.tracker_study_plan import GOALS, VARIANTS

Row = Mapping[str, Any]

FOLDER = "tracker_study"
NOTES = "notes.md"
"""Text of the page by hand, below the tables; kept in the page's folder."""
COLOURS = ("#1b7f5c", "#b0553a", "#3b5f9e", "#8a6bb1", "#c59a2b", "#5a5a5a", "#2aa3b8", "#d06a9c")

INTRO = """# Learning to track single real clips

`benchmarks/tracker_study.py`: PPO on one clip at a time of PARC's initial motion capture, terrain
inferred by the import, one process with one thread per training. CPU time is the training's own
process time (sampling and updates); tests are not in it. Test: 64 deterministic episodes from frame
0 with start noise of 5 cm and 0.05 in velocity, and 64 from random frames, every 75 or 100 CPU-s.
A goal counts as reached at the first test that meets it, if the same policy also meets it with
{episodes} episodes of fresh seeds; the training ends there. `survived` is the mean share of the
clip that is survived from frame 0.
"""


def read_runs(work: Path) -> dict[str, list[dict[str, float]]]:
    """Curve of each run by name."""
    runs = {}
    for path in sorted(work.glob("*/curve.csv")):
        with path.open() as file:
            runs[path.parent.name] = [
                {k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)
            ]
    return runs


def summary(name: str, curve: Sequence[Row], result: Row | None) -> dict[str, Any]:
    """One line of the table of runs; ``result`` is None where the run has no end yet."""
    take, variant, seed = name.split("__")
    best = max(curve, key=lambda r: (r["start_completed"], r["start_survived"]))
    last = curve[-1]
    return {
        "take": take,
        "variant": variant,
        "seed": int(seed),
        "cpu_s": last["cpu_s"],
        "samples": last["samples"],
        "goal": GOALS.get(take, 0.8),
        "reached_cpu_s": result["reached_cpu_s"] if result else None,
        "best_start_completed": best["start_completed"],
        "best_cpu_s": best["cpu_s"],
        "best_start_survived": max(r["start_survived"] for r in curve),
        "last_random_completed": last["random_completed"],
        "fresh_start_completed": result["fresh_start_completed"] if result else None,
        "fresh_start_body_global_m": result["fresh_start_body_global_m"] if result else None,
        "ended": "goal reached" if result and result["reached_cpu_s"] else ending(result),
    }


def ending(result: Row | None) -> str:
    """How a run without its goal ended."""
    return "budget used" if result else "stopped"


def write_report(work: Path, out: Path) -> None:
    """Write ``tracker_study.md`` and what is in ``tracker_study/`` from the results in ``work``."""
    runs = read_runs(work)
    if not runs:
        return
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, curve in runs.items():
        path = work / f"{name}.json"
        result = json.loads(path.read_text()) if path.exists() else None
        lines.append(summary(name, curve, result))
        shutil.copyfile(work / name / "curve.csv", folder / f"{name}.csv")
    order = list(GOALS)
    lines.sort(
        key=lambda r: (order.index(r["take"]), list(VARIANTS).index(r["variant"]), r["seed"])
    )
    with (folder / "runs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: _text(v, "") for k, v in row.items()} for row in lines)
    picture(runs, order, folder / "curves.png")
    (out / f"{FOLDER}.md").write_text(page(lines, folder / NOTES))


def page(lines: Sequence[Row], notes: Path) -> str:
    """The page: tables, picture, variants, and the notes that were written by hand."""
    head = {
        "take": "clip",
        "variant": "variant",
        "seed": "seed",
        "reached_cpu_s": "goal reached (CPU-s)",
        "best_start_completed": "best test",
        "fresh_start_completed": "fresh seeds",
        "best_start_survived": "survived, best",
        "last_random_completed": "random starts, last",
        "cpu_s": "CPU-s",
        "samples": "steps",
        "ended": "ended by",
    }
    variants = [
        [f"`{name}`", f"`{preset}`", ", ".join(f"`{k}` {v}" for k, v in changes.items()) or "-"]
        for name, (preset, changes) in VARIANTS.items()
        if name in {row["variant"] for row in lines}
    ]
    parts = [
        INTRO.format(episodes=256),
        notes.read_text() if notes.exists() else "",
        "## Runs\n\n" + markdown(head, lines) + "\n",
        "![completion and survival over CPU time](tracker_study/curves.png)\n",
        "## Variants\n\n" + _table(["name", "preset", "changes"], variants) + "\n",
        "Every test of every run is in `tracker_study/<run>.csv`, one line per run in "
        "`tracker_study/runs.csv`.\n",
    ]
    return "\n".join(part for part in parts if part)


def picture(runs: Mapping[str, Sequence[Row]], takes: Sequence[str], path: Path) -> None:
    """Completion from frame 0 (solid) and share survived (dotted) over CPU time, by clip."""
    shown = [take for take in takes if any(name.startswith(f"{take}__") for name in runs)]
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(8, 2.6 * len(shown)), squeeze=False, sharey=True
    )
    for axis, take in zip(axes[:, 0], shown, strict=True):
        mine = {n: c for n, c in runs.items() if n.startswith(f"{take}__")}
        for index, (name, curve) in enumerate(mine.items()):
            colour = COLOURS[index % len(COLOURS)]
            x = [row["cpu_s"] for row in curve]
            label = name.split("__", 1)[1].replace("__", ", seed ")
            axis.plot(x, [r["start_completed"] for r in curve], color=colour, label=label)
            axis.plot(x, [r["start_survived"] for r in curve], ":", color=colour, linewidth=1)
        axis.axhline(GOALS.get(take, 0.8), color="#999999", linewidth=0.8)
        axis.set_title(f"{take}: completed (solid) and survived (dotted) from frame 0", fontsize=9)
        axis.set_ylim(0, 1.02)
        axis.legend(fontsize=6, ncols=2, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[-1, 0].set_xlabel("CPU-seconds of training")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def markdown(head: Mapping[str, str], lines: Sequence[Row]) -> str:
    """A table of the columns of ``head`` by their titles; what is missing is a dash."""
    body = [[_text(row.get(key), "-") for key in head] for row in lines]
    return _table(list(head.values()), body)


def _text(value: object, missing: str) -> str:
    if value is None:
        return missing
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
