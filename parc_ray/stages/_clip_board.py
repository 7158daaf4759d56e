"""How one policy does on each of its clips, over its training: a table, curves and a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from envs.tracking.rollouts import ERRORS, Episodes
from envs.tracking.task import REASONS
from parc_ray.motion.clip import MotionClip
from parc_ray.stages.base import StageRun

TABLE = "clips.csv"
PICTURE = "clips.png"
MOST_CURVES = 64
"""Clips that have curves of their own; with more of them only their classes have."""
MOST_ROWS = 120
"""Clips in the picture: the worst ones, where there are more."""


class ClipBoard:
    """Collects tests of a policy on its clips; a resumed training goes on with its table."""

    def __init__(self, run: StageRun, clips: Sequence[MotionClip]) -> None:
        """Take over what an earlier sitting wrote."""
        self.run, self.clips = run, clips
        self.table = pd.DataFrame()
        if run.dir.exists(TABLE):
            self.table = pd.read_csv(io.BytesIO(run.dir.read_bytes(TABLE)))

    def add(self, iteration: int, episodes: Episodes) -> None:
        """Add a test from frame 0: a row per clip, and curves by clip and class.

        A test of an iteration that is there already, from before a kill, takes its place.
        """
        rows = [self._row(iteration, n, clip, episodes) for n, clip in enumerate(self.clips)]
        old = self.table
        if len(old):
            old = pd.DataFrame(old[old["iteration"] != iteration])
        self.table = pd.concat([old, pd.DataFrame(rows)], ignore_index=True)
        self.run.dir.write_bytes_atomic(TABLE, self.table.to_csv(index=False).encode())
        now = pd.DataFrame(rows)
        curves = {
            f"class/{name or 'none'}/{what}": _mean(group[what])
            for name, group in now.groupby("class")
            for what in ("survived", "completed")
        }
        if len(self.clips) <= MOST_CURVES:
            for what in ("survived", "completed"):
                pairs = zip(now["clip"], now[what], strict=True)
                curves |= {f"clip/{clip}/{what}": float(value) for clip, value in pairs}
        self.run.scalars.add_all(curves, iteration)

    def _row(
        self, iteration: int, number: int, clip: MotionClip, episodes: Episodes
    ) -> dict[str, object]:
        mine = episodes.clip == number
        figures = episodes.summary(mine)
        ends = [figures[f"end/{reason}"] for reason in REASONS]
        return {
            "iteration": iteration,
            "clip": clip.clip_id,
            "class": clip.provenance.class_name,
            "of_iteration": clip.provenance.iteration,
            "seconds": clip.duration_s,
            "survived": figures["survived"],
            "completed": figures["completed"],
            **{name: figures[name] for name in ERRORS},
            "contact_agreement": figures["contact_agreement"],
            "mostly_ends_by": REASONS[int(np.argmax(ends))] if max(ends) > 0 else "",
        }

    def draw(self) -> None:
        """Draw the share survived of every clip (rows) at every test (columns)."""
        if len(self.table):
            self.run.dir.write_bytes_atomic(PICTURE, picture(pd.DataFrame(self.table)))


def _mean(column: Any) -> float:
    return float(column.mean())


def picture(table: pd.DataFrame) -> bytes:
    """PNG of a clip board's table: clips by class, the worst ones if there are too many."""
    last = table.loc[table["iteration"].to_numpy() == table["iteration"].to_numpy().max()]
    shown = last.sort_values("survived", kind="stable").head(MOST_ROWS).fillna({"class": ""})
    order = shown.sort_values(by=["class", "clip"])["clip"].tolist()
    values = table.pivot_table(index="clip", columns="iteration", values="survived").loc[order]
    with mpl.rc_context({"font.size": 7}):
        figure = Figure(figsize=(7.0, 1.2 + 0.13 * len(order)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(
            values.to_numpy(), vmin=0.0, vmax=1.0, aspect="auto", cmap="viridis", origin="upper"
        )
        names = dict(zip(shown["clip"].tolist(), shown["class"].tolist(), strict=True))
        labels = [f"{names[clip]}  {clip}" if names[clip] else clip for clip in order]
        axes.set_yticks(range(len(order)), labels)
        columns = values.columns.tolist()
        ticks = sorted({0, len(columns) // 2, len(columns) - 1})
        axes.set_xticks(ticks, [str(columns[t]) for t in ticks])
        axes.set_xlabel("training iteration")
        axes.set_title("share of the clip survived from frame 0")
        figure.colorbar(image, ax=axes)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=120)
    return stream.getvalue()
