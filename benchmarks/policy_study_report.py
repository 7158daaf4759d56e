"""Page, tables and picture of the policy study, from the files that its runs leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks._study import write_rows, write_text
from benchmarks.tracker_study_report import COLOURS, markdown, read_runs

FOLDER = "policy_study"
NOTES = "notes.md"
"""Text of the page by hand, below the introduction; kept in the page's folder."""
PER_CLIP = "completed/humanoid_"
INTRO = """# One policy for five real clips

`benchmarks/policy_study.py`: run30, run13, stairs03, platform17 and platform13 of PARC's initial
motion capture, terrain inferred in cells of 0.2 m and part of the observation, one policy, one
process with one thread per training. CPU time is that of sampling, updates and of whatever the
start cost (MPC, cloning, specialists); tests are not in it. Test: 64 deterministic episodes per
clip from frame 0 with start noise of 5 cm and 0.05 in velocity; figures are means over the clips.
`fresh seeds` is the best policy of a run, tested four times more with other seeds.
"""
HEAD = {
    "method": "method",
    "seed": "seed",
    "cpu_s": "CPU-s",
    "start_cpu_s": "of it the start",
    "samples": "steps",
    "best_completed": "completed, best test",
    "best_survived": "survived, best",
    "fresh_completed": "completed, fresh seeds",
    "joint_error_m": "joint error of completed, m",
    "ended": "ended by",
}


def write_report(work: Path, out: Path) -> None:
    """Write ``policy_study.md`` and what is in ``policy_study/`` from the results in ``work``."""
    curves = read_runs(work)
    if not curves:
        return
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lines, clips = [], []
    for name, curve in sorted(curves.items()):
        path = work / f"{name}.json"
        result = json.loads(path.read_text()) if path.exists() else None
        lines.append(summary(name, curve, result))
        clips.append(by_clip(name, curve))
        shutil.copyfile(work / name / "curve.csv", folder / f"{name}.csv")
    write_rows(folder / "runs.csv", lines)
    picture(curves, folder / "curves.png")
    write_text(out / f"{FOLDER}.md", page(lines, clips, folder / NOTES))


def summary(
    name: str, curve: Sequence[Mapping[str, float]], result: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One line of the table; ``result`` is None where the run has no end yet."""
    method, seed = name.split("__")
    best = max(curve, key=lambda r: (r["start_completed"], r["start_survived"]))
    found = result or {}
    beside = {k: v for k, v in found.items() if k.startswith("beside_")}
    return {
        "method": method,
        "seed": int(seed),
        "cpu_s": curve[-1]["cpu_s"],
        "start_cpu_s": curve[0]["cpu_s"],
        "samples": curve[-1]["samples"],
        "best_completed": best["start_completed"],
        "best_survived": max(r["start_survived"] for r in curve),
        "fresh_completed": found.get("fresh_start_completed"),
        "joint_error_m": found.get("fresh_completed_body_local_m")
        or best.get("completed_body_local_m"),
        "ended": "budget used" if result else "stopped",
        **beside,
    }


def by_clip(name: str, curve: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Completion of each clip in the best test."""
    best = max(curve, key=lambda r: (r["start_completed"], r["start_survived"]))
    method, seed = name.split("__")
    mine = {k.removeprefix(PER_CLIP): v for k, v in best.items() if k.startswith(PER_CLIP)}
    return {"method": method, "seed": int(seed), **mine}


def page(lines: Sequence[dict[str, Any]], clips: Sequence[dict[str, Any]], notes: Path) -> str:
    """The page."""
    takes = list(dict.fromkeys(key for row in clips for key in row))
    parts = [
        INTRO,
        notes.read_text() if notes.exists() else "",
        "## Runs\n\n" + markdown(HEAD, lines) + "\n",
        "## By clip, completed in the best test\n\n"
        + markdown({t: t for t in takes}, clips)
        + "\n",
        f"![completion and survival over CPU time]({FOLDER}/curves.png)\n",
        f"Every test of every run is in `{FOLDER}/<run>.csv`, one line per run in "
        f"`{FOLDER}/runs.csv`.\n",
    ]
    return "\n".join(part for part in parts if part)


def picture(curves: Mapping[str, Sequence[Mapping[str, float]]], path: Path) -> None:
    """Mean completion (solid) and share survived (dotted) from frame 0 over CPU time."""
    figure, axis = plt.subplots(figsize=(8, 3.6))
    methods = sorted({name.split("__")[0] for name in curves})
    for name, curve in sorted(curves.items()):
        method, seed = name.split("__")
        colour = COLOURS[methods.index(method) % len(COLOURS)]
        x = [row["cpu_s"] for row in curve]
        label = f"{method}, seed {seed}"
        axis.plot(x, [r["start_completed"] for r in curve], color=colour, label=label)
        axis.plot(x, [r["start_survived"] for r in curve], ":", color=colour, linewidth=1)
    axis.axhline(0.5, color="#999999", linewidth=0.8)
    axis.set(ylim=(0, 1.02), xlabel="CPU-seconds, start included")
    axis.set_title("completed (solid) and survived (dotted) from frame 0, five clips", fontsize=9)
    axis.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
