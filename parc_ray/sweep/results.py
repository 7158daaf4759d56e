"""A sweep's table, read from what its trials left; the same after any number of kills."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from parc_ray.data.storage import Storage
from parc_ray.evaluation.bootstrap import Interval
from parc_ray.evaluation.published import BLENDS
from parc_ray.evaluation.report import Picture, Section, render_report, sheet_table
from parc_ray.evaluation.results import GENERATOR_FIGURES, TRACKER_FIGURES, Figure, published_value
from parc_ray.evaluation.tables import (
    OURS_LABEL,
    PAPER_LABEL,
    Sheet,
    interval,
    latex,
    markdown,
    number,
)
from parc_ray.evaluation.write_results import EXTRA, NOTE, write_table
from parc_ray.sweep.spec import SweepSpec, Trial
from parc_ray.sweep.trial import FINISHED

COLUMNS = ("trial", "status", "iteration", "test", "figure", "mean", "low", "high")
_SHOWN = 8


def collect(directory: Path, trials: Sequence[Trial]) -> pd.DataFrame:
    """The long table: a row per trial, iteration and figure, with the swept values as columns.

    ``status`` is finished, stopped (by ASHA, or not gone on with) or missing (nothing measured;
    one row without figures).
    """
    rows: list[dict[str, Any]] = []
    for trial in trials:
        run = directory / "trials" / trial.name
        values = {key: _scalar(value) for key, value in trial.values.items()}
        parts = sorted((run / "sweep").glob("it_*.json"))
        status = "finished" if (run / FINISHED).exists() else "stopped" if parts else "missing"
        head = {"trial": trial.name, "status": status, **values}
        if not parts:
            rows.append(head)
        for part in parts:
            rows += [{**head, **row} for row in json.loads(part.read_text())["rows"]]
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    first, rest = list(COLUMNS[:2]), list(COLUMNS[2:])
    frame = pd.DataFrame(rows)
    columns = [*first, *keys, *rest, "values", "groups"]
    return frame.reindex(columns=columns)


def last_figures(table: pd.DataFrame) -> dict[str, dict[str, Interval]]:
    """Per trial the figures of its last tested iteration, by ``test/figure``."""
    records: list[dict[str, Any]] = table.dropna(subset=["iteration"]).to_dict("records")
    last: dict[str, float] = {}
    for row in records:
        last[row["trial"]] = max(last.get(row["trial"], 0.0), row["iteration"])
    out: dict[str, dict[str, Interval]] = {}
    for row in records:
        if row["iteration"] == last[row["trial"]]:
            found = Interval(
                mean=float(row["mean"]),
                low=float(row["low"]),
                high=float(row["high"]),
                values=int(row["values"]),
                groups=int(row["groups"]),
            )
            out.setdefault(str(row["trial"]), {})[f"{row['test']}/{row['figure']}"] = found
    return out


def write_sweep(
    directory: Path, name: str, spec: SweepSpec, trials: Sequence[Trial], pictures: Sequence[str]
) -> pd.DataFrame:
    """Write ``results.csv``, ``results.parquet``, ``tables.md``, ``tables.tex``, ``report.html``.

    Args:
        directory: of the sweep.
        name: of the sweep.
        spec: the sweep.
        trials: all trials.
        pictures: names of figures that lie in ``directory``.
    """
    storage = Storage.from_uri(directory)
    table = collect(directory, trials)
    write_table(storage, "results", table)
    figures = last_figures(table)
    sheets = [*_sheets(spec, trials, table, figures)]
    images = "\n\n".join(f"![{p}]({p})" for p in pictures)
    text = f"{spec.about.strip()}\n\nProtocol `{spec.protocol}`. {NOTE}"
    page = markdown(sheets, f"Sweep {name}", text) + (f"\n{images}\n" if images else "")
    storage.write_bytes_atomic("tables.md", page.encode())
    storage.write_bytes_atomic("tables.tex", latex(sheets).encode())
    storage.write_bytes_atomic("report.html", _page(directory, name, text, sheets, pictures))
    return table


def _page(
    directory: Path, name: str, text: str, sheets: Sequence[Sheet], pictures: Sequence[str]
) -> bytes:
    """The same as one self-contained page."""
    drawn = []
    for picture in pictures:
        data = b64encode((directory / picture).read_bytes()).decode()
        drawn.append(Picture(uri=f"data:image/png;base64,{data}", alt=picture))
    sections = [
        Section(title="What was swept", text=text),
        Section(title="Figures", pictures=drawn),
        Section(title="Tables", tables=[sheet_table(sheet) for sheet in sheets]),
    ]
    return render_report(f"Sweep {name}", "", [], sections).encode()


def _sheets(
    spec: SweepSpec,
    trials: Sequence[Trial],
    table: pd.DataFrame,
    found: dict[str, dict[str, Interval]],
) -> list[Sheet]:
    status = dict(zip(table["trial"], table["status"], strict=True))
    generator = [*GENERATOR_FIGURES, *EXTRA]
    groups = [
        ("Generator", "generator", generator[:_SHOWN]),
        ("Generator: what the paper's tables miss", "generator", generator[_SHOWN:]),
        ("Tracker on the best motion of every test terrain", "tracker", list(TRACKER_FIGURES)),
        ("Tracker on the clips of D0", "tracker_reference", list(TRACKER_FIGURES)),
    ]
    sheets = []
    for title, test, figures in groups:
        shown = [f for f in figures if any(f"{test}/{f.name}" in s for s in found.values())]
        if not shown:
            continue
        rows = []
        for trial in trials:
            mine = found.get(trial.name, {})
            cells = [interval(mine.get(f"{test}/{f.name}"), f.digits) for f in shown]
            rows.append([_label(trial), OURS_LABEL, status[trial.name], *cells])
        if test == "generator" and any(plot.paper == "blends" for plot in spec.plots):
            rows += _paper_rows(shown)
        columns = ["", "whose", "status", *(f.heading for f in shown)]
        sheets.append(Sheet(title=title, columns=columns, rows=rows))
    return sheets


def _paper_rows(shown: Sequence[Figure]) -> list[list[str]]:
    """Rows of the paper's table 3, where a figure of it is shown."""
    if not any(f.published for f in shown):
        return []
    return [
        [row.label, PAPER_LABEL, "–", *(number(published_value(row, f), f.digits) for f in shown)]
        for row in BLENDS
    ]


def _label(trial: Trial) -> str:
    return ", ".join(
        str(value) if key == "variant" else f"{key} = {value}"
        for key, value in trial.values.items()
    )


def _scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
