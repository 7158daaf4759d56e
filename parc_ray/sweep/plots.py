"""Figures of a sweep: means with intervals, a point per trial; the paper's curve beside ours."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parc_ray.evaluation.bootstrap import Interval
from parc_ray.evaluation.published import BLENDS
from parc_ray.evaluation.results import GENERATOR_FIGURES, TRACKER_FIGURES
from parc_ray.evaluation.write_results import EXTRA
from parc_ray.sweep.spec import PlotSpec, SweepSpec, Trial

OURS_COLOUR = "#00798c"
PAPER_COLOUR = "#d1495b"
Points = Sequence[tuple[Any, Mapping[str, Interval]]]


def draw_plots(
    directory: Path,
    spec: SweepSpec,
    trials: Sequence[Trial],
    figures: Mapping[str, Mapping[str, Interval]],
) -> list[str]:
    """Draw the figures that the sweep file asks for; names of the PNG files in ``directory``."""
    names = []
    for number, plot in enumerate(spec.plots, 1):
        over = plot.over or next(iter(spec.grid), "variant")
        points = [
            (trial.values.get(over), figures[trial.name])
            for trial in trials
            if trial.name in figures
        ]
        if not points:
            continue
        draw = _trade_off if plot.kind == "trade-off" else _lines
        drawn = draw(plot, over, points)
        name = f"plot-{number}-{plot.kind}.png"
        stream = io.BytesIO()
        drawn.savefig(stream, format="png", dpi=120)
        (directory / name).write_bytes(stream.getvalue())
        names.append(name)
    return names


def _trade_off(plot: PlotSpec, over: str, points: Points) -> Figure:
    """The second figure over the first, points joined in the order of ``over``."""
    paper = plot.paper == "blends"
    figure = Figure(figsize=(11 if paper else 6, 4.5), layout="constrained")
    panels = figure.subplots(1, 2 if paper else 1, squeeze=False)[0]
    x, y = plot.figures[:2]
    panels[0].set_title("ours (mean, 95 % interval)")
    _path(panels[0], over, points, x, y, OURS_COLOUR)
    if paper:
        panels[1].set_title("paper, table 3 (published)")
        rows = [(row.s, _published(row.tpl, row.hjf_percent)) for row in BLENDS]
        _path(panels[1], over, rows, "x", "y", PAPER_COLOUR)
    for panel in panels:
        panel.set_xlabel(_heading(x))
        panel.set_ylabel(_heading(y))
        if plot.log:
            panel.set_xscale("symlog")
        panel.grid(alpha=0.3)
    return figure


def _path(axes: Axes, over: str, points: Points, x: str, y: str, colour: str) -> None:
    known = [(value, found) for value, found in points if x in found and y in found]
    xs, ys = ([found[name].mean for _, found in known] for name in (x, y))
    axes.plot(xs, ys, color=colour, alpha=0.5)
    for (value, found), px, py in zip(known, xs, ys, strict=True):
        axes.errorbar(
            px, py, xerr=_bars(found[x]), yerr=_bars(found[y]), fmt="o", color=colour, capsize=2
        )
        text = f"{over.rsplit('.', 1)[-1]} = {value}"
        axes.annotate(text, (px, py), xytext=(5, 5), textcoords="offset points", fontsize=8)


def _lines(plot: PlotSpec, over: str, points: Points) -> Figure:
    """One panel per figure, over the swept value."""
    count = len(plot.figures)
    figure = Figure(figsize=(4.5 * count, 3.8), layout="constrained")
    labels = [str(value) for value, _ in points]
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v, _ in points)
    xs = [float(v) for v, _ in points] if numeric else list(range(len(points)))
    for axes, name in zip(figure.subplots(1, count, squeeze=False)[0], plot.figures, strict=True):
        for x, (_, found) in zip(xs, points, strict=True):
            if name in found and math.isfinite(found[name].mean):
                mean, bars = found[name].mean, _bars(found[name])
                axes.errorbar(x, mean, yerr=bars, fmt="o", color=OURS_COLOUR, capsize=3)
        if not numeric:
            axes.set_xticks(xs, labels, rotation=20, ha="right")
        axes.set_xlabel(over)
        axes.set_title(_heading(name), fontsize=10)
        axes.grid(alpha=0.3)
    return figure


def _bars(found: Interval) -> list[list[float]] | None:
    """Lengths of error bars below and above a mean; none where there is no interval."""
    if not math.isfinite(found.low) or not math.isfinite(found.high):
        return None
    return [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]]


def _published(x: float, y: float) -> dict[str, Interval]:
    nan = math.nan
    return {
        name: Interval(mean=value, low=nan, high=nan, values=0, groups=0)
        for name, value in (("x", x), ("y", y))
    }


def _heading(name: str) -> str:
    test, _, figure = name.partition("/")
    known = (*GENERATOR_FIGURES, *EXTRA) if test == "generator" else TRACKER_FIGURES
    return next((f.heading for f in known if f.name == figure), name)
