"""``report``: one self-contained page about a run, made from what its stages left."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd

from parc_ray.character.character import Character, load_character
from parc_ray.config import ParcConfig
from parc_ray.config_io import to_yaml
from parc_ray.data.storage import Storage
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
    png_uri,
    protocol_sections,
    sweep_sections,
)
from parc_ray.evaluation.summary import RunSummary, StageSummary, summarise
from parc_ray.stages._trackers import COMPLETED_SHARE
from parc_ray.stages.base import StageOutputs, StageRun
from parc_ray.stages.comparisons import KINEMATIC, Comparison, comparisons_of
from parc_ray.stages.registry import StageSpec
from parc_ray.versions import commit, versions
from parc_ray.viewer.offscreen.film import strip
from parc_ray.viewer.offscreen.software import SoftwareRenderer
from parc_ray.viewer.offscreen.versions import Version, film_of
from parc_ray.viewer.offscreen.video import png_bytes

REPORT = "report.html"
PICTURES_PER_ITERATION = 4
_STRIP_SIZE, _STRIP_MOMENTS = (360, 160), 6

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
        if summary.stage(iteration, "record") is None:
            continue
        found = comparisons_of(summary, storage, iteration, PICTURES_PER_ITERATION)
        what = "initial clips" if iteration == 0 else "generated motions"
        sections.append(
            Section(
                title=f"Iteration {iteration}: {what} before and after correction",
                text="Left: the terrain from above with the root's path. Right: along the path. "
                "Below: a film strip, a row per version; `parc render` makes films of them.",
                links=_gallery_link(storage, iteration),
                pictures=[p for c in found for p in _pictures(c, character)],
            )
        )
    return sections


def _gallery_link(storage: Storage, iteration: int) -> dict[str, str]:
    """The page of all variants of the initial clips, where the run has one."""
    path = f"it_{iteration:02d}/augment/gallery.html"
    return {"All variants of the initial clips": path} if storage.exists(path) else {}


def _pictures(comparison: Comparison, character: Character) -> list[Picture]:
    """Above and from the side, and a film strip."""
    source, clip = comparison.before, comparison.after
    tracks = [track_of(source, character, KINEMATIC, GENERATED_COLOUR)]
    versions = [Version(label=KINEMATIC, clip=source)]
    if clip is not None:
        shift = -clip.replay.offset.numpy() if clip.replay is not None else None
        tracks.append(track_of(clip, character, comparison.label, CORRECTED_COLOUR, shift))
        versions.append(Version(label=comparison.label, clip=clip))
    nodes = source.path_nodes.numpy() if source.path_nodes is not None else None
    title = comparison.title
    figure = draw_motion(source.terrain, tracks, character, title, nodes, fps=source.fps)
    film = film_of(versions, character, size=_STRIP_SIZE, fps=source.fps)
    uri = png_uri(png_bytes(strip(film, SoftwareRenderer, _STRIP_MOMENTS)))
    return [
        Picture(uri=data_uri(figure), alt=title),
        Picture(uri=uri, alt=f"{title}: film strip"),
    ]


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
