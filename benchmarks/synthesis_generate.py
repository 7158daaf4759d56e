"""Motions that a trained generator makes on mixed terrains, before and after the correction.

    python benchmarks/synthesis_generate.py --generator FILE --work DIR [--out docs/results]

Runs the stage ``generate`` with operators and actors as in a run, on two CPU cores, and writes
``generate.md`` with ``generate/*.csv`` to ``--out``: motions per CPU-hour by operator, why
candidates and terrains were rejected, by family, and TPL, TCL, foot slide and %HJF before and after
the kinematic correction. Stopped and started again with the same words it goes on after the last
finished item; once finished it writes the page again. Last line: JSON.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import print_result
from parc_ray.character.character import load_character
from parc_ray.config import IterationConfig, ParcConfig, ResourcesConfig
from parc_ray.console import setup_logging
from parc_ray.data.storage import Storage
from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.loop import run_stages
from parc_ray.motion.clip import MotionClip
from parc_ray.plan import PlannedStage, Source
from parc_ray.recipes import get_recipe
from parc_ray.stages.base import StageOutputs, StageResult, StageRun, hash_path
from parc_ray.stages.registry import StageSpec, override_stage
from parc_ray.terrain.spec import TerrainSpec

GENERATOR = "generator.pt"
WHEN = ("before", "after")
FIGURES = (
    ("tpl", "TPL (m)"),
    ("tcl", "TCL (m)"),
    ("hjf_percent", "%HJF"),
    ("foot_slide_mps", "foot slide (m/s)"),
    ("kin_contact", "contacts off the ground (m)"),
    ("kin_foot_slide", "way of planted soles (m)"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate, or go on, or find it done; then write the page."""
    options = _options(arguments)
    setup_logging("INFO")
    config = settings(options)
    results = run_stages(config, install(options.generator))
    result = results["it_01/generate"]
    run = Storage.from_uri(config.storage).join(config.name)
    figures = write_page(run, config, result, Path(options.out), options)
    print_result(figures)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = options.add_argument
    add("--generator", required=True, help="file that a training wrote")
    add("--work", required=True, help="directory of the run; kept and gone on with")
    add("--out", default=None, help="directory of the page (default: --work)")
    add("--motions", type=int, default=32, help="motions to keep (%(default)s)")
    add("--terrains", type=int, default=None, help="terrains tried at most (ten per motion)")
    add("--candidates", type=int, default=64, help="per terrain (%(default)s)")
    add("--seconds", type=float, default=6.0, help="longest motion (%(default)s)")
    add("--difficulty", type=float, default=0.5, help="of the terrains (%(default)s)")
    add("--kind", default="mixed", help="family of the terrains (%(default)s)")
    add("--s", type=float, default=0.65, help="blend of the generator (%(default)s)")
    add("--seed", type=int, default=0, help="of everything (%(default)s)")
    add("--note", default="", help="a sentence on the generator, for the page")
    found = options.parse_args(arguments)
    found.out = found.out or found.work
    return found


def settings(options: argparse.Namespace) -> ParcConfig:
    """The recipe ``base`` with one iteration on mixed terrains and actors for two cores."""
    base = get_recipe("base")
    row = IterationConfig(
        terrain=TerrainSpec(
            kind=options.kind, difficulty=options.difficulty, difficulty_spread=0.5
        ),
        motions=options.motions,
        max_terrains=options.terrains,
        candidates=options.candidates,
        s=options.s,
    )
    rollout = replace(base.synthesis.rollout, max_duration_s=options.seconds)
    planner = replace(base.synthesis.planner, min_distance_m=4.0)
    return replace(
        base,
        name="generate",
        storage=options.work,
        seed=options.seed,
        iterations=(row,),
        synthesis=replace(base.synthesis, rollout=rollout, planner=planner),
        resources=ResourcesConfig(cpus_per_worker=0.5, object_store_mb=256),
    )


def install(generator: str) -> list[PlannedStage]:
    """The two stages of this plan; the first one takes a trained generator instead of training.

    Raises:
        InputError: there is no such file.
    """
    source = Path(generator).absolute()
    if not source.is_file():
        raise InputError(f"--generator: {generator} is no file; give a trained generator")
    storage = Storage.from_uri(source.parent)

    def given(run: StageRun) -> StageOutputs:
        run.dir.write_bytes_atomic(GENERATOR, storage.read_bytes(source.name))
        return StageOutputs(paths={"generator": GENERATOR}, rows={"generator": 1})

    digest = hash_path(storage, source.name)
    spec = StageSpec(section=lambda config, iteration: digest, body=given, needs_ray=False)
    override_stage("train-generator", spec)
    made = Source(iteration=1, stage="train-generator", output="generator")
    return [
        PlannedStage(iteration=1, name="train-generator", inputs={}),
        PlannedStage(iteration=1, name="generate", inputs={"generator": made}),
    ]


def motion_rows(clips: Sequence[MotionClip], families: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per motion: terrain, family, length, and its figures before and after."""
    character = load_character("humanoid")
    rows = []
    for clip in clips:
        if clip.clip_id.endswith("_m"):
            continue
        number = clip.provenance.seeds["terrain"]
        row: dict[str, Any] = {
            "motion": clip.clip_id,
            "terrain": number,
            "family": families[str(number)],
            "seconds": clip.duration_s,
            "fwd_m": clip_metrics(clip, character, "paper")["fwd_m"],
            "steps": clip.metrics["kin_iterations"],
            "removed_frames": clip.metrics["hesitation_frames"],
        }
        for name, _ in FIGURES:
            row |= {f"{name}_{when}": clip.metrics[f"{name}_{when}"] for when in WHEN}
        rows.append(row)
    return rows


def rejection_table(
    rejections: Sequence[Mapping[str, str]], families: Mapping[str, str], kept: Counter[str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Candidates (and terrains without a path) by reason, one row per family.

    Returns:
        The reasons, the commonest first, and the rows; ``kept`` is the motions kept per family.
    """
    counts: dict[str, Counter[str]] = {f: Counter() for f in sorted(set(families.values()))}
    for row in rejections:
        reason = row["reason"].partition(":")[0]
        counts[families[row["terrain"]]][reason] += 1
    total = sum(counts.values(), Counter())
    reasons = [reason for reason, _ in total.most_common()]
    terrains = Counter(families.values())
    rows = [
        {
            "family": family,
            "terrains": terrains[family],
            "kept": kept[family],
            **{reason: found[reason] for reason in reasons},
        }
        for family, found in counts.items()
    ]
    whole = {"family": "all", "terrains": len(families), "kept": sum(kept.values())}
    return reasons, [*rows, {**whole, **{reason: total[reason] for reason in reasons}}]


def write_page(
    run: Storage, config: ParcConfig, result: StageResult, out: Path, options: argparse.Namespace
) -> dict[str, float]:
    """Write ``generate.md`` and its tables; returns the figures of the last line."""
    stage = run.join("it_01/generate")
    families = {k: v for r in stage.read_json("records.json") for k, v in r["families"].items()}
    motions = motion_rows(load_dataset(stage)[1], families)
    if not motions:
        raise InputError(f"{options.generator}: no motion was kept; see {stage}/rejections.csv")
    kept = Counter(row["family"] for row in motions)
    reasons, rejected = rejection_table(_csv(stage, "rejections.csv"), families, kept)
    operators = _csv(stage, "throughput.csv")
    folder = out / "generate"
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("motions", motions), ("rejections", rejected), ("throughput", operators)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: _short(v) for k, v in row.items()} for row in rows)
    cpu_s = sum(float(row["cpu_s"]) for row in operators)
    figures = {
        "motions": float(len(motions)),
        "motions_per_cpu_h": 3600.0 * len(motions) / cpu_s,
        "cpu_s": cpu_s,
        "terrains": float(len(families)),
    }
    for name, _ in FIGURES:
        for when in WHEN:
            figures[f"{name}_{when}"] = mean(row[f"{name}_{when}"] for row in motions)
    figures["tpl_ratio"] = figures["tpl_before"] / max(figures["tpl_after"], 1e-9)
    text = _page(config, result, motions, (reasons, rejected), operators, figures, options)
    (out / "generate.md").write_text(text)
    return figures


def _page(
    config: ParcConfig,
    result: StageResult,
    motions: Sequence[Mapping[str, Any]],
    rejected: tuple[list[str], list[dict[str, Any]]],
    operators: Sequence[Mapping[str, str]],
    figures: Mapping[str, float],
    options: argparse.Namespace,
) -> str:
    row, metrics = config.iterations[0], result.metrics
    reasons, table = rejected
    command = (
        f"python benchmarks/synthesis_generate.py --generator {Path(options.generator).name} "
        f"--work runs --out docs/results --motions {row.motions} --candidates {row.candidates} "
        f"--seconds {options.seconds:g} --kind {row.terrain.kind} "
        f"--difficulty {row.terrain.difficulty:g} --s {row.s:g} --seed {config.seed}"
    )
    seconds, longest = (f(r["seconds"] for r in motions) for f in (sum, max))
    lines = [
        "# Motions on mixed terrains",
        "",
        "```",
        command,
        "```",
        "",
        f"{options.note} The stage `generate` with the settings of recipe `base`: "
        f"{row.candidates} candidates of at most {options.seconds:g} s on each terrain of "
        f"{row.terrain.cells[0]} x {row.terrain.cells[1]} cells, the best one that arrives is "
        f"kept, then {config.synthesis.optimizer.iterations} steps of the optimiser. Difficulty is "
        f"drawn from {0.5 * row.terrain.difficulty:g} to {row.terrain.difficulty:g}.".strip(),
        "",
        f"**{len(motions)} motions**, {seconds:.0f} s in all (the longest {longest:.1f} s), from "
        f"{figures['terrains']:.0f} terrains and {metrics['candidates']:.0f} candidates, of which "
        f"{metrics['candidates_finished']:.0f} arrived: {figures['cpu_s']:.0f} CPU-seconds, "
        f"**{figures['motions_per_cpu_h']:.0f} motions per CPU-hour** (their mirror images not "
        "counted).",
        "",
        *_markdown(
            ("operator", "items", "handed on", "CPU-s", "share of time"),
            [
                (
                    r["operator"],
                    r["items"],
                    r["motions"],
                    f"{float(r['cpu_s']):.1f}",
                    f"{100 * float(r['wall_share']):.0f} %",
                )
                for r in operators
            ],
        ),
        "",
        "## Before and after the correction",
        "",
        "Means (medians) over the motions. TCL and slide of a finished clip go by its own labels, "
        "which distances decide (2 cm), so what is left of TCL is small by that alone; before, "
        "they go by the generator's. The last two rows go by the generator's both times: its "
        "labels above 0.5 times their distance from the ground, and how far its planted soles "
        "move.",
        "",
        *_markdown(
            ("", "before", "after"),
            [
                (title, *(_both([r[f"{name}_{when}"] for r in motions]) for when in WHEN))
                for name, title in FIGURES
            ],
        ),
        "",
        f"TPL falls to one part in {figures['tpl_ratio']:.0f}. Every motion: "
        "[motions.csv](generate/motions.csv).",
        "",
        "## Rejections",
        "",
        "Candidates by the first test that they failed; where no path was found a terrain counts "
        "once. [rejections.csv](generate/rejections.csv)",
        "",
        *_markdown(
            ("family", "terrains", "kept", *reasons),
            [(r["family"], r["terrains"], r["kept"], *(r[k] for k in reasons)) for r in table],
        ),
    ]
    return "\n".join(lines) + "\n"


def _both(values: Sequence[float]) -> str:
    return f"{mean(values):.3g} ({median(values):.3g})"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def _short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _csv(stage: Storage, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(stage.read_bytes(name).decode().splitlines()))


if __name__ == "__main__":
    main()
