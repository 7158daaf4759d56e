"""From rows per motion to means with intervals, and the paper's rows beside ours.

A summary is a long table: one row per iteration and figure, with the mean, the ends of its
interval, how many motions and terrains it is over, and whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from parc_ray.evaluation.bootstrap import Interval, bootstrap_mean
from parc_ray.evaluation.published import WITHOUT_PHYSICS, PublishedRow, published_iteration
from parc_ray.evaluation.terrain_class import coverage

OURS = "ours"
PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One column of the tables.

    Attributes:
        name: in summaries.
        heading: in tables, with the unit.
        column: of the rows per motion.
        published: attribute of ``PublishedRow``, where the paper prints it.
        digits: significant digits in tables.
    """

    name: str
    heading: str
    column: str
    published: str | None = None
    digits: int = 3


GENERATOR_FIGURES = (
    Figure(name="fwd_m", heading="FWD (m)", column="fwd_m", published="fwd_m"),
    Figure(name="tpl_code", heading="TPL", column="tpl_code", published="tpl", digits=4),
    Figure(name="tpl_in_grid", heading="TPL in grid", column="tpl_in_grid", digits=4),
    Figure(name="tpl_per_frame", heading="TPL per frame", column="tpl_per_frame"),
    Figure(name="tcl", heading="TCL", column="tcl", published="tcl"),
    Figure(
        name="hjf_pairs_percent",
        heading="%HJF (pairs)",
        column="hjf_pairs_percent",
        published="hjf_percent",
    ),
    Figure(name="hjf_frames_percent", heading="%HJF (frames)", column="hjf_frames_percent"),
    Figure(name="finished", heading="finished", column="finished"),
    Figure(name="foot_slide_mps", heading="foot slide (m/s)", column="foot_slide_mps"),
    Figure(name="floating_percent", heading="floating (%)", column="floating_percent"),
    Figure(name="float_m", heading="gap (m)", column="float_m"),
    Figure(name="contact_f1", heading="contact F1", column="contact_f1"),
    Figure(name="novelty", heading="distance from D0", column="novelty"),
    Figure(name="off_grid_percent", heading="off grid (%)", column="off_grid_percent"),
    Figure(name="length_s", heading="length (s)", column="length_s"),
)
"""Of the generator test. Which definitions the paper's own TPL and %HJF follow is inferred."""
TRACKER_FIGURES = (
    Figure(name="success", heading="success", column="success", published="success_percent"),
    Figure(name="completed_fraction", heading="completed", column="completed_fraction"),
    Figure(name="noisy_completed", heading="success, noisy starts", column="noisy_completed"),
    Figure(
        name="body_error_relative_m",
        heading="joint error (m)",
        column="body_error_relative_m",
        published="joint_error_m",
    ),
    Figure(
        name="body_error_global_m", heading="joint error, global (m)", column="body_error_global_m"
    ),
    Figure(name="root_error_m", heading="root error (m)", column="root_error_m"),
    Figure(name="contact_f1", heading="contact F1", column="contact_f1"),
    Figure(name="hjf_frames_percent", heading="%HJF (frames)", column="hjf_frames_percent"),
    Figure(name="foot_slide_mps", heading="foot slide (m/s)", column="foot_slide_mps"),
    Figure(name="power_w", heading="power (W)", column="power_w", digits=4),
    Figure(name="torque_use", heading="torque use", column="torque_use"),
    Figure(name="torque_limit_percent", heading="at the limit (%)", column="torque_limit_percent"),
)
"""Of the tracker tests."""
SUMMARY_COLUMNS = (
    "test", "iteration", "figure", "source", "mean", "low", "high", "values", "groups",
)  # fmt: skip


def generator_summary(rows: pd.DataFrame, terrains: pd.DataFrame) -> dict[str, Interval]:
    """Means over all motions with intervals over terrains, diversity and coverage among them.

    Args:
        rows: one per motion, with its terrain.
        terrains: one per terrain, with class and diversity.
    """
    out = _means(rows, GENERATOR_FIGURES, "terrain")
    if len(terrains):
        spread = terrains["diversity_m"].to_numpy(dtype=float)
        out["diversity_m"] = bootstrap_mean(spread, list(terrains["terrain"]))
        names = dict(zip(terrains["terrain"], terrains["class"], strict=True))
        done = coverage([names[t] for t in rows["terrain"]], rows["finished"]) if len(rows) else 0.0
        nan = float("nan")
        out["class_coverage"] = Interval(
            mean=done, low=nan, high=nan, values=len(rows), groups=len(terrains)
        )
    return out


def tracker_summary(rows: pd.DataFrame) -> dict[str, Interval]:
    """Means over all motions with intervals over motions, as each has a terrain of its own."""
    return _means(rows, TRACKER_FIGURES, "number")


def _means(rows: pd.DataFrame, figures: Sequence[Figure], group: str) -> dict[str, Interval]:
    found = {}
    for figure in figures:
        if figure.column in rows and len(rows):
            values = rows[figure.column].to_numpy(dtype=float)
            found[figure.name] = bootstrap_mean(values, list(rows[group]))
    return found


def class_table(rows: pd.DataFrame, terrains: pd.DataFrame) -> pd.DataFrame:
    """Per terrain class: terrains, motions, share finished, FWD and TPL in grid."""
    about = terrains[["terrain", "class"]]
    joined = rows.merge(about, on="terrain") if len(rows) else rows.assign(**{"class": []})
    out = []
    for name, part in joined.groupby("class", sort=True):
        out.append(
            {
                "class": name,
                "terrains": part["terrain"].nunique(),
                "motions": len(part),
                "finished": part["finished"].astype(float).mean(),
                "fwd_m": part["fwd_m"].mean(),
                "tpl_in_grid": part["tpl_in_grid"].mean(),
            }
        )
    columns = ["class", "terrains", "motions", "finished", "fwd_m", "tpl_in_grid"]
    return pd.DataFrame(out, columns=columns)


def summary_rows(
    test: str, iteration: int, summary: Mapping[str, Interval]
) -> list[dict[str, object]]:
    """Rows of the long table for ours."""
    return [
        {
            "test": test,
            "iteration": iteration,
            "figure": name,
            "source": OURS,
            "mean": found.mean,
            "low": found.low,
            "high": found.high,
            "values": found.values,
            "groups": found.groups,
        }
        for name, found in summary.items()
    ]


def published_rows(test: str, iteration: int) -> list[dict[str, object]]:
    """The paper's figures of an iteration, in our units, labelled as the paper's."""
    row = published_iteration(iteration)
    if row is None:
        return []
    figures = GENERATOR_FIGURES if test == "generator" else TRACKER_FIGURES
    return [
        {"test": test, "iteration": iteration, "figure": f.name, "source": PAPER, "mean": value}
        for f in figures
        if (value := published_value(row, f)) is not None
    ]


def published_value(row: PublishedRow, figure: Figure) -> float | None:
    """The paper's value of a figure in our unit (success is a share here), or None."""
    if figure.published is None:
        return None
    value = getattr(row, figure.published)
    if value is None:
        return None
    return value / 100.0 if figure.published == "success_percent" else value


def without_physics(figure: Figure) -> float | None:
    """The paper's value of a figure for the run without physics correction."""
    return published_value(WITHOUT_PHYSICS, figure)
