"""``report``: one self-contained page about a run, made from what its stages left."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.config_io import to_yaml
from parc_ray.data.manifest import FILE_NAME, Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.evaluation.pictures import (
    CORRECTED_COLOUR,
    GENERATED_COLOUR,
    data_uri,
    draw_curves,
    draw_motion,
    track_of,
)
from parc_ray.evaluation.report import (
    Card,
    Picture,
    Section,
    Table,
    iteration_table,
    render_report,
    table_of,
    text_of,
    time_table,
)
from parc_ray.evaluation.report_sections import (
    drift_section,
    protocol_sections,
    sweep_sections,
)
from parc_ray.evaluation.summary import RunSummary, StageSummary, summarise
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._trackers import COMPLETED_SHARE
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.registry import StageSpec
from parc_ray.versions import commit, versions

REPORT = "report.html"
PICTURES_PER_ITERATION = 4

logger = logging.getLogger(__name__)


def body(run: StageRun) -> StageOutputs:
    """Write ``report.html`` into the stage's and the run's directory."""
    page = build_report(run.ctx.run, run.ctx.config)
    content = page.encode()
    run.dir.write_bytes_atomic(REPORT, content)
    run.ctx.run.write_bytes_atomic(REPORT, content)
    run.log.info("[report] %s/%s", run.ctx.run, REPORT)
    return StageOutputs(paths={"report": REPORT}, metrics={"bytes": float(len(content))})


def build_report(storage: Storage, config: ParcConfig) -> str:
    """The page about the run in ``storage``, as far as it has come."""
    summary = summarise(storage, config.name)
    character = load_character(config.character)
    sections = [
        Section(title="Iterations", tables=[iteration_table(summary)]),
        _correction_section(summary),
        _tracker_section(summary),
        _curve_section(summary),
        drift_section(storage, config, character),
        *protocol_sections(storage),
        *sweep_sections(storage),
        *_picture_sections(summary, storage, character),
        Section(title="Where the time went", tables=[time_table(summary)]),
        _how_to(config),
    ]
    wall = sum(stage.seconds for stage in summary.stages)
    cpu = sum(stage.cpu_seconds for stage in summary.stages)
    subtitle = (
        f"{len(summary.iterations)} iterations with iteration 0, {wall / 60:.1f} minutes, "
        f"{cpu / 60:.1f} CPU-minutes, character {config.character}, data {config.data.path}"
    )
    return render_report(f"PARC run {config.name}", subtitle, _cards(summary), sections)


def _last_with(summary: RunSummary, stage: str) -> StageSummary | None:
    found = [s for s in summary.stages if s.name == stage]
    return found[-1] if found else None


def _cards(summary: RunSummary) -> list[Card]:
    wanted = (
        ("clips in the data set", "merge", "clips"),
        ("seconds of motion", "merge", "seconds"),
        ("corrected, last iteration", "record", "corrected_share"),
        ("clips the tracker completes", "evaluate", "tracker_clips_completed"),
        ("survived from frame 0", "evaluate", "tracker_survived_from_start"),
    )
    cards = []
    for label, name, metric in wanted:
        stage = _last_with(summary, name)
        value = stage.metrics.get(metric) if stage else None
        cards.append(Card(label=label, value=text_of(value)))
    return cards


def _correction_section(summary: RunSummary) -> Section:
    rows = []
    for iteration in summary.iterations:
        stage = summary.stage(iteration, "record")
        if stage is None:
            continue
        tracker = summary.stage(iteration, "train-tracker")
        m = stage.metrics
        budget = "–"
        if tracker is not None:
            samples = (tracker.metrics.get("samples") or 0.0) / 1e6
            budget = f"{samples:.2f} M steps, {tracker.seconds:.0f} s"
        mpc = f"{m.get('mpc_attempts') or 0:.0f} attempts, {m.get('mpc_cpu_s') or 0:.0f} CPU-s"
        rows.append(
            [
                str(iteration),
                *(
                    text_of(m.get(key))
                    for key in (
                        "attempted",
                        "corrected_tracker",
                        "corrected_mpc",
                        "corrected_whole",
                        "corrected_segment",
                        "body_global_m",
                        "hjf_frames_percent",
                    )
                ),
                budget,
                mpc,
            ]
        )
    columns = ["iteration", "attempted", "by tracker", "by MPC", "whole", "segments"]
    columns += ["body error (m)", "%HJF", "tracker's budget", "MPC's budget"]
    text = (
        "Every kinematic motion is followed in simulation by the tracker alone; what it does not "
        "record whole is tried by sampling MPC where the run's strategy says so. A segment is a "
        "recorded piece of a motion that was not recorded whole."
    )
    return Section(title="Correction", text=text, tables=[Table(columns=columns, rows=rows)])


def _tracker_section(summary: RunSummary) -> Section:
    stage = _last_with(summary, "evaluate")
    table = stage.table("tracker_clips.csv") if stage else None
    if stage is None or table is None:
        return Section(title="Tracker on its clips", text="There is no evaluated tracker.")
    base = stage.table("baseline_clips.csv")
    shown = table.copy()
    if base is not None:
        shown.insert(7, "survived, zero residual", base["survived"])
    text = (
        f"Deterministic policy, PARC's termination rules, starts from frame 0 with small noise and "
        f"fresh seeds. A clip counts as completed from {COMPLETED_SHARE:.0%} of its starts on."
    )
    return Section(title="Tracker on its clips", text=text, tables=[table_of(shown)])


_CURVES = (
    ("train-generator", "step", ("total", "loss"), "Generator loss", "step", "loss"),
    ("train-tracker", "samples", ("reward_per_step",), "Reward per step", "steps", "reward"),
    ("train-tracker", "samples", ("failure_rate",), "Failures per step", "steps", "rate"),
    (
        "train-tracker",
        "samples",
        ("eval/survived_from_start",),
        "Survived share from frame 0 (training probe)",
        "steps",
        "share",
    ),
)


def _curve_section(summary: RunSummary) -> Section:
    pictures = []
    for stage_name, x, names, title, x_label, y_label in _CURVES:
        curves = {}
        for iteration in summary.iterations:
            stage = summary.stage(iteration, stage_name)
            table = stage.table("curve.csv") if stage else None
            name = next((n for n in names if table is not None and n in table), None)
            if table is None or name is None or x not in table:
                continue
            curves[f"iteration {iteration}"] = _xy(table, x, name)
        if curves:
            figure = draw_curves(curves, title, x_label, y_label)
            pictures.append(Picture(uri=data_uri(figure), alt=title))
    return Section(title="Learning curves", pictures=pictures)


def _xy(points: pd.DataFrame, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    values = np.stack([points[x].to_numpy(dtype=float), points[y].to_numpy(dtype=float)])
    whole = values[:, np.isfinite(values).all(axis=0)]
    return whole[0], whole[1]


def _picture_sections(summary: RunSummary, storage: Storage, character: Character) -> list[Section]:
    sections = []
    for iteration in summary.iterations:
        source = "augment" if iteration == 0 else "generate"
        kinematic, recorded = summary.stage(iteration, source), summary.stage(iteration, "record")
        if kinematic is None or recorded is None:
            continue
        before = _clips(storage, f"it_{iteration:02d}/{source}")
        after = {clip.clip_id: clip for clip in _clips(storage, f"it_{iteration:02d}/record")}
        pictures = _comparisons(recorded.records(), before, after, character)
        what = "initial clips" if iteration == 0 else "generated motions"
        sections.append(
            Section(
                title=f"Iteration {iteration}: {what} before and after correction",
                text="Left: the terrain from above with the root's path. Right: along the path.",
                links=_gallery_link(storage, iteration),
                pictures=pictures,
            )
        )
    return sections


def _gallery_link(storage: Storage, iteration: int) -> dict[str, str]:
    """The page of all variants of the initial clips, where the run has one."""
    path = f"it_{iteration:02d}/augment/gallery.html"
    return {"All variants of the initial clips": path} if storage.exists(path) else {}


def _clips(storage: Storage, stage_path: str) -> list[MotionClip]:
    return read_clips(storage, Manifest.load(storage, f"{stage_path}/{FILE_NAME}"))


def _comparisons(
    records: Sequence[dict[str, Any]],
    before: Sequence[MotionClip],
    after: dict[str, MotionClip],
    character: Character,
) -> list[Picture]:
    """Corrected motions first, those on the most uneven ground before the others."""
    by_id = {clip.clip_id: clip for clip in before}
    order = sorted(
        records,
        key=lambda r: (r["clip_id"] is None, -_relief(by_id[r["source_id"]]), r["source_id"]),
    )
    pictures = []
    for record in order[:PICTURES_PER_ITERATION]:
        source = by_id[record["source_id"]]
        tracks = [track_of(source, character, "kinematic", GENERATED_COLOUR)]
        title = f"{source.clip_id}: not corrected"
        if record["clip_id"] is not None:
            clip = after[record["clip_id"]]
            shift = -clip.replay.offset.numpy() if clip.replay is not None else None
            label = f"corrected by {record['corrector']}"
            tracks.append(track_of(clip, character, label, CORRECTED_COLOUR, shift))
            extent = "whole" if record["whole"] else f"{record['seconds']:.1f} s segment"
            title = f"{source.clip_id}: {label}, {extent}"
        nodes = source.path_nodes.numpy() if source.path_nodes is not None else None
        figure = draw_motion(source.terrain, tracks, character, title, nodes, fps=source.fps)
        pictures.append(Picture(uri=data_uri(figure), alt=title))
    return pictures


def _relief(clip: MotionClip) -> float:
    ground = clip.terrain.height_at(clip.frames.root_pos[:, :2])
    spread = float(ground.max() - ground.min())
    return spread if math.isfinite(spread) else 0.0


def _how_to(config: ParcConfig) -> Section:
    lines = [f"{name} {version}" for name, version in versions().items()]
    lines.append(f"commit {commit()}")
    command = f"parc run --config {config.storage}/{config.name}/config.yaml --name again"
    text = (
        "The same run again, from the resolved config that stands below and in config.yaml of the "
        "run directory, on the commit and versions below. Budgets in wall time make results depend "
        "on the machine."
    )
    blocks = [command, "\n".join(lines), to_yaml(config)]
    return Section(title="How to make it again", text=text, blocks=blocks)


STAGE = StageSpec(section=lambda config, iteration: {}, body=body, needs_ray=False)
