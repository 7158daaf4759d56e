"""The files of an evaluation: rows per motion, means with intervals, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from parc_ray.data.storage import Storage
from parc_ray.evaluation.bootstrap import LEVEL, RESAMPLES, Interval
from parc_ray.evaluation.protocols import Protocol
from parc_ray.evaluation.published import published_iteration
from parc_ray.evaluation.results import (
    GENERATOR_FIGURES,
    SUMMARY_COLUMNS,
    TRACKER_FIGURES,
    Figure,
    class_table,
    generator_summary,
    published_rows,
    published_value,
    summary_rows,
    tracker_summary,
    without_physics,
)
from parc_ray.evaluation.run_tests import parquet_bytes
from parc_ray.evaluation.tables import (
    OURS_LABEL,
    PAPER_LABEL,
    Sheet,
    interval,
    latex,
    markdown,
    number,
    row_of,
)
from parc_ray.versions import versions

EXTRA = (
    Figure(name="diversity_m", heading="diversity (m)", column=""),
    Figure(name="class_coverage", heading="classes covered", column=""),
)
_MAIN = 8
"""So many figures of the generator stand in the table beside the paper's."""
NOTE = (
    f"Ours: mean [{LEVEL:.0%} interval, bootstrap over terrains, {RESAMPLES} resamples]. Rows "
    f"'{PAPER_LABEL}' are printed in the paper (tables 1 and 2); they are for other data, terrains "
    "and budgets, and its TPL and %HJF are taken to be those of the published code."
)


@dataclass(frozen=True, kw_only=True)
class IterationRows:
    """What was measured of one iteration.

    Attributes:
        iteration: from 1.
        generator: one row per test motion.
        terrains: one row per test terrain.
        tracker: one row per test motion of the tracker, or None without a tracker.
        reference: the same on D0's clips.
    """

    iteration: int
    generator: pd.DataFrame
    terrains: pd.DataFrame
    tracker: pd.DataFrame | None = None
    reference: pd.DataFrame | None = None


def write_results(
    target: Storage, name: str, protocol: Protocol, found: Sequence[IterationRows], digest: str
) -> pd.DataFrame:
    """Write all files into ``target``; returns the summary.

    Args:
        target: directory of the protocol's results.
        name: name of the run.
        protocol: the protocol.
        found: what was measured.
        digest: of the terrain set that was used.
    """
    tables = {
        "generator": _joined(found, "generator"),
        "terrains": _joined(found, "terrains"),
        "tracker": _joined(found, "tracker"),
        "tracker_reference": _joined(found, "reference"),
    }
    summary = summarise_rows(found)
    tables["summary"] = summary
    for stem, table in tables.items():
        if len(table.columns):
            write_table(target, stem, table)
    sheets = all_sheets(found)
    same = digest == protocol.digest or not protocol.digest
    text = (
        f"Protocol `{protocol.label}`: {protocol.evaluation.terrains} terrains x "
        f"{protocol.evaluation.motions_per_terrain} motions, s = {protocol.evaluation.s:g}, seed "
        f"{protocol.evaluation.seed}, terrain set `{digest}`"
        f"{'' if same else ' (NOT the set of this protocol: not comparable)'}. {NOTE}"
    )
    target.write_bytes_atomic("tables.md", markdown(sheets, f"Run {name}", text).encode())
    target.write_bytes_atomic("tables.tex", latex(sheets).encode())
    target.write_json_atomic(
        "meta.json",
        {
            "run": name,
            "protocol": protocol.label,
            "terrain_set": digest,
            "terrain_set_expected": protocol.digest,
            "versions": versions(),
        },
    )
    return summary


def write_table(target: Storage, stem: str, table: pd.DataFrame) -> None:
    """A data frame as CSV and Parquet."""
    target.write_bytes_atomic(f"{stem}.csv", table.to_csv(index=False).encode())
    target.write_bytes_atomic(f"{stem}.parquet", parquet_bytes(table))


def summarise_rows(found: Sequence[IterationRows]) -> pd.DataFrame:
    """The long table of means and intervals, ours and the paper's."""
    rows: list[dict[str, Any]] = []
    for it in found:
        rows += summary_rows(
            "generator", it.iteration, generator_summary(it.generator, it.terrains)
        )
        rows += published_rows("generator", it.iteration)
        if it.tracker is not None:
            rows += summary_rows("tracker", it.iteration, tracker_summary(it.tracker))
            rows += published_rows("tracker", it.iteration)
        if it.reference is not None:
            rows += summary_rows("tracker_reference", it.iteration, tracker_summary(it.reference))
    return pd.DataFrame(rows, columns=list(SUMMARY_COLUMNS))


def all_sheets(found: Sequence[IterationRows]) -> list[Sheet]:
    """The tables of the page."""
    generator = {it.iteration: generator_summary(it.generator, it.terrains) for it in found}
    main, more = GENERATOR_FIGURES[:_MAIN], (*GENERATOR_FIGURES[_MAIN:], *EXTRA)
    sheets = [
        _sheet("Generator", main, generator, published=True),
        _sheet("Generator: what the paper's tables miss", more, generator),
    ]
    trackers = {it.iteration: tracker_summary(it.tracker) for it in found if it.tracker is not None}
    if trackers:
        title = "Tracker on the best motion of every test terrain"
        sheets.append(_sheet(title, TRACKER_FIGURES, trackers, published=True))
    fixed = {
        it.iteration: tracker_summary(it.reference) for it in found if it.reference is not None
    }
    if fixed:
        sheets.append(_sheet("Tracker on the clips of D0", TRACKER_FIGURES, fixed))
    sheets.append(_class_sheet(found))
    return sheets


def _sheet(
    title: str,
    figures: Sequence[Figure],
    summaries: dict[int, dict[str, Interval]],
    *,
    published: bool = False,
) -> Sheet:
    shown = [f for f in figures if any(f.name in s for s in summaries.values())]
    names = [f.name for f in shown]
    rows = []
    for iteration, summary in summaries.items():
        cells = {f.name: interval(summary.get(f.name), f.digits) for f in shown}
        rows.append(row_of(f"iteration {iteration}", OURS_LABEL, cells, names))
        paper = published_iteration(iteration) if published else None
        if paper is not None:
            cells = {f.name: number(published_value(paper, f), f.digits) for f in shown}
            rows.append(row_of(f"iteration {iteration}", PAPER_LABEL, cells, names))
    if published and "tcl" in names:
        cells = {f.name: number(without_physics(f), f.digits) for f in shown}
        rows.append(row_of("no physics correction", PAPER_LABEL, cells, names))
    return Sheet(title=title, columns=["", "whose", *(f.heading for f in shown)], rows=rows)


def _class_sheet(found: Sequence[IterationRows]) -> Sheet:
    rows = []
    for it in found:
        for row in class_table(it.generator, it.terrains).to_dict("records"):
            cells = [number(float(row[k])) for k in ("finished", "fwd_m", "tpl_in_grid")]
            counts = [str(row["terrains"]), str(row["motions"])]
            rows.append([f"iteration {it.iteration}", str(row["class"]), *counts, *cells])
    columns = ["", "class", "terrains", "motions", "finished", "FWD (m)", "TPL in grid"]
    return Sheet(title="Generator by class of the path's ground", columns=columns, rows=rows)


def _joined(found: Sequence[IterationRows], part: str) -> pd.DataFrame:
    """One table over all iterations, with the iteration as first column."""
    frames = []
    for it in found:
        frame = getattr(it, part)
        if frame is not None:
            copy = frame.copy()
            copy.insert(0, "iteration", it.iteration)
            frames.append(copy)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
