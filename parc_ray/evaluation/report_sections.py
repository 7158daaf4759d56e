"""Sections of a run's report about drift, about tests under a protocol, and about sweeps."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from parc_ray.character.character import Character
from parc_ray.config import ParcConfig
from parc_ray.data.storage import Storage
from parc_ray.evaluation.drift import SINGLE, DriftRow, drift_table, monitor_run
from parc_ray.evaluation.pictures import data_uri, draw_curves
from parc_ray.evaluation.report import Picture, Section, Table, table_of
from parc_ray.evaluation.tables import OURS_LABEL, PAPER_LABEL, number
from parc_ray.evaluation.terrain_class import CLASSES

_DRIFT_TEXT = (
    "Motions that joined the data set, compared with D0 in a space of half-second windows: Frechet "
    "distance, distance from the nearest window of D0 over what D0's clips have among themselves, "
    "what correction changed, depth of ancestry (how many generations of nearest clips lie before "
    "D0), and the share of generated motions that were kept. Small sets look further apart than "
    "they are. "
)
_CURVES = (
    ("Distance from D0", ("frechet_d0", "frechet_correction"), "Frechet distance"),
    ("Nearest of D0, and depth", ("nearest_ratio", "depth_mean"), "ratio; generations"),
    ("Kept", ("survival",), "share"),
)


def drift_section(storage: Storage, config: ParcConfig, character: Character) -> Section:
    """Tables, curves and alarms of the drift monitor."""
    rows = monitor_run(storage, len(config.iterations), character)
    if not rows:
        return Section(title="Drift", text="No iteration has generated and merged motions yet.")
    said = [line for row in rows for line in row.alarms(config.evaluation.drift)]
    text = _DRIFT_TEXT + (f"ALARMS: {'; '.join(said)}." if said else "No limit is exceeded.")
    table = drift_table(rows)
    names = ["iteration", "generated", "kept", *SINGLE]
    tables = [
        table_of(pd.DataFrame({name: table[name] for name in names})),
        _by_class(rows),
        _by_ancestor(rows),
    ]
    return Section(title="Drift", text=text, tables=tables, pictures=_drift_pictures(table))


def _drift_pictures(table: pd.DataFrame) -> list[Picture]:
    """Curves over iterations; one point is no curve."""
    if len(table) < 2:
        return []
    x = table["iteration"].to_numpy(dtype=float)
    pictures = []
    for title, names, label in _CURVES:
        curves = {name: (x, table[name].to_numpy(dtype=float)) for name in names}
        known = {k: v for k, v in curves.items() if np.isfinite(v[1]).any()}
        if known:
            figure = draw_curves(known, title, "iteration", label)
            pictures.append(Picture(uri=data_uri(figure), alt=title))
    return pictures


def _by_class(rows: Sequence[DriftRow]) -> Table:
    """Share and survival of each terrain class, an iteration per row."""
    cells = []
    for row in rows:
        line = [str(row.iteration)]
        for name in CLASSES:
            share, kept = row.class_share.get(name, 0.0), row.class_survival.get(name)
            line.append(f"{number(share, 2)} / {number(kept, 2)}")
        cells.append(line)
    caption = "Terrain classes: share of the generated motions / share of those that were kept."
    return Table(columns=["iteration", *CLASSES], rows=cells, caption=caption)


def _by_ancestor(rows: Sequence[DriftRow], shown: int = 8) -> Table:
    """The most frequent ancestors in D0, an iteration and ancestor per row."""
    cells = [
        [
            str(row.iteration),
            name,
            number(share, 2),
            number(row.ancestor_survival.get(name), 2),
        ]
        for row in rows
        for name, share in list(row.ancestor_share.items())[:shown]
    ]
    columns = ["iteration", "ancestor in D0", "share of generated", "kept of those"]
    caption = f"The {shown} clips of D0 that most generated motions go back to."
    return Table(columns=columns, rows=cells, caption=caption)


def protocol_sections(storage: Storage) -> list[Section]:
    """What ``parc evaluate`` has written about the run, a section per protocol."""
    sections = []
    for path in storage.list_dirs("evaluation") if storage.exists("evaluation") else []:
        if not storage.exists(f"{path}/summary.parquet"):
            continue
        summary = pd.read_parquet(io.BytesIO(storage.read_bytes(f"{path}/summary.parquet")))
        tables = [
            _summary_table(str(test), part) for test, part in summary.groupby("test", sort=False)
        ]
        meta = storage.read_json(f"{path}/meta.json")
        expected = meta["terrain_set_expected"]
        same = not expected or meta["terrain_set"] == expected
        text = (
            "Mean [95 % interval over terrains]. Rows of the paper are printed there, for other "
            f"data, terrains and budgets. Terrain set {meta['terrain_set']}"
            f"{'' if same else ', which is NOT that of the protocol: not comparable'}."
        )
        title = f"Protocol {path.rsplit('/', 1)[-1]}"
        sections.append(Section(title=title, text=text, tables=tables))
    return sections


def _summary_table(test: str, part: pd.DataFrame) -> Table:
    """One test: an iteration and whose figures they are per row."""
    records: list[dict[str, Any]] = part.to_dict("records")
    figures = list(dict.fromkeys(str(r["figure"]) for r in records))
    rows = []
    for iteration in sorted({r["iteration"] for r in records}):
        for source, whose in (("ours", OURS_LABEL), ("paper", PAPER_LABEL)):
            mine = [r for r in records if (r["iteration"], r["source"]) == (iteration, source)]
            cells = {str(r["figure"]): _cell(r) for r in mine}
            if cells:
                line = [f"iteration {iteration}", whose]
                rows.append([*line, *(cells.get(f, "–") for f in figures)])
    return Table(columns=["", "whose", *figures], rows=rows, caption=test.replace("_", " "))


def _cell(row: Mapping[str, Any]) -> str:
    """A mean and its interval."""
    if pd.isna(row["low"]):
        return number(row["mean"])
    return f"{number(row['mean'])} [{number(row['low'])}, {number(row['high'])}]"


def sweep_sections(storage: Storage) -> list[Section]:
    """Figures of sweeps that lie beside the run, each with where its tables are."""
    parent, _, own = storage.root.rpartition("/")
    home = Storage(filesystem=storage.filesystem, root=parent or "/")
    sections = []
    for name in home.list_dirs():
        if name == own or not home.exists(f"{name}/sweep.json"):
            continue
        if storage.root != home.read_json(f"{name}/sweep.json").get("home"):
            continue
        files = [p for p in home.list(name) if p.endswith(".png")]
        pictures = [
            Picture(uri=png_uri(home.read_bytes(p)), alt=p.rsplit("/", 1)[-1])
            for p in sorted(files)
        ]
        text = f"A sweep over this run's stages; its tables are in {home.full_path(name)}."
        sections.append(Section(title=f"Sweep {name}", text=text, pictures=pictures))
    return sections


def png_uri(content: bytes) -> str:
    """A PNG file as a data URI."""
    return f"data:image/png;base64,{b64encode(content).decode()}"
