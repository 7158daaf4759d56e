"""The self-contained report of a run: tables, curves, pictures, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
import pandas as pd

from parc_ray.evaluation.summary import RunSummary
from parc_ray.evaluation.tables import Sheet


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table whose cells are already text."""

    columns: list[str]
    rows: list[list[str]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture as a ``data:`` URI with its description."""

    uri: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with text, tables, pictures and preformatted blocks below it."""

    title: str
    text: str = ""
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    """Text to path, relative to the run directory."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A headline figure."""

    label: str
    value: str


def render_report(
    title: str, subtitle: str, cards: Sequence[Card], sections: Sequence[Section]
) -> str:
    """Fill the page. Everything handed in is escaped."""
    source = resources.files("parc_ray.evaluation").joinpath("templates/report.html.j2")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(source.read_text(encoding="utf-8"))
    return template.render(title=title, subtitle=subtitle, cards=cards, sections=sections)


def text_of(value: Any, digits: int = 3) -> str:
    """A cell: significant digits for floats, a dash for what is missing."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e6:
            return str(int(value))
        return f"{value:.{digits}g}"
    return str(value)


def table_of(frame: pd.DataFrame, caption: str = "", digits: int = 3) -> Table:
    """A data frame as a table."""
    rows = [[text_of(value, digits) for value in row] for row in frame.to_numpy(dtype=object)]
    return Table(columns=[str(c) for c in frame.columns], rows=rows, caption=caption)


def sheet_table(sheet: Sheet) -> Table:
    """A table of the evaluation on the page."""
    caption = ". ".join(part for part in (sheet.title, sheet.note) if part)
    rows = [list(row) for row in sheet.rows]
    return Table(columns=list(sheet.columns), rows=rows, caption=caption)


ITERATION_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("clips in D", "merge", "clips"),
    ("seconds in D", "merge", "seconds"),
    ("of them uncorrected", "merge", "uncorrected_clips"),
    ("generated", "record", "attempted"),
    ("corrected", "record", "corrected"),
    ("by tracker", "record", "corrected_tracker"),
    ("by MPC", "record", "corrected_mpc"),
    ("whole", "record", "corrected_whole"),
    ("segments", "record", "corrected_segment"),
    ("FWD (m)", "evaluate", "gen_fwd"),
    ("TPL", "evaluate", "gen_tpl"),
    ("TCL", "evaluate", "gen_tcl"),
    ("%HJF", "evaluate", "gen_hjf_percent"),
    ("tracker: clips completed", "evaluate", "tracker_clips_completed"),
    ("of these over 0.2 m or more", "evaluate", "tracker_clips_completed_02m"),
    ("survived from frame 0", "evaluate", "tracker_survived_from_start"),
    ("zero residual", "evaluate", "baseline_survived_from_start"),
    ("random starts completed", "evaluate", "tracker_random_completed"),
    ("joint error (m)", "evaluate", "tracker_body_error_relative_m"),
    ("test terrains: success", "evaluate", "test_success"),
    ("test terrains: joint error (m)", "evaluate", "test_body_error_relative_m"),
)
"""Heading, stage and metric of every column of the iteration table."""


def iteration_table(summary: RunSummary) -> Table:
    """One row per iteration; a dash where a stage does not exist or has not finished."""
    rows = []
    for iteration in summary.iterations:
        row = [str(iteration)]
        for _, stage_name, metric in ITERATION_COLUMNS:
            stage = summary.stage(iteration, stage_name)
            row.append(text_of(stage.metrics.get(metric) if stage else None))
        rows.append(row)
    columns = ["iteration", *(heading for heading, _, _ in ITERATION_COLUMNS)]
    return Table(
        columns=columns,
        rows=rows,
        caption="Iteration 0 corrects the initial data; its 'generated' are the variants of D0.",
    )


def time_table(summary: RunSummary) -> Table:
    """Wall and CPU seconds per stage, iterations side by side, with the sums."""
    everything: list[dict[str, Any]] = summary.time_table().to_dict("records")
    iterations = summary.iterations
    rows = []
    for stage in dict.fromkeys(row["stage"] for row in everything):
        mine = [row for row in everything if row["stage"] == stage]
        parts = [[row for row in mine if row["iteration"] == i] for i in iterations]
        rows.append([stage, *(_seconds(part) if part else "–" for part in parts), _seconds(mine)])
    sums = [_seconds([row for row in everything if row["iteration"] == i]) for i in iterations]
    rows.append(["all", *sums, _seconds(everything)])
    return Table(
        columns=["stage", *(f"iteration {i}" for i in iterations), "all"],
        rows=rows,
        caption="Wall seconds / CPU seconds.",
    )


def _seconds(part: list[dict[str, float]]) -> str:
    """Wall and CPU seconds of some stages."""
    wall, cpu = (sum(row[key] for row in part) for key in ("wall_s", "cpu_s"))
    return f"{wall:.0f} / {cpu:.0f}"
