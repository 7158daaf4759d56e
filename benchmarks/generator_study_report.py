"""Page, picture and verdict of the generator study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

Row = Mapping[str, Any]

COLUMNS = {
    "held_out_loss": "held-out loss",
    "tpl": "TPL (m)",
    "fwd_m": "FWD (m)",
    "tcl": "TCL (m)",
    "hjf_percent": "%HJF",
    "energy_ratio": "energy / data",
    "progress": "path covered",
    "finished": "finished",
    "seconds": "length (s)",
    "steps": "steps",
}
DECIDING = ("held_out_loss", "tpl")

CURVE_COLUMNS = ("tpl", "tcl", "fwd_m", "hjf_percent", "energy_ratio")

INTRO = """# base against upstream at equal CPU time

`benchmarks/generator_study.py` trains profiles `base` and `upstream` on PARC's initial clips for
{cpu:.0f} CPU-minutes of one thread each (process time, drawing of windows and statistics included),
seeds {seeds}. Both run on this project's code, so the difference is one of settings, not of
implementation. Six takes, one of every class that has more than one, are never trained on.

Held-out loss: `upstream`'s terms, weights, masks and terrain augmentation on 1024 fixed windows of
the held-out takes; past frames that are given clean stand in the place of their prediction, for
both. Roll-outs: 10 fixed terrains of random walks with steps up to 0.6 m, 8 motions of at most 4 s
on each, none filtered; each profile samples with its own settings. TPL counts points on the
terrain.
"""


def verdict(rows: Sequence[Row], key: str, ours: str, theirs: str) -> tuple[float, bool]:
    """Relative gain of the mean, and whether the ranges of the seeds do not touch.

    Smaller is better for both deciding figures.
    """
    mine = [float(r[key]) for r in rows if r["setting"] == ours]
    other = [float(r[key]) for r in rows if r["setting"] == theirs]
    if not mine or not other:
        return float("nan"), False
    gain = 1.0 - (sum(mine) / len(mine)) / (sum(other) / len(other))
    return gain, max(mine) < min(other)


def write_report(
    rows: Sequence[Row], curve: Sequence[Row], out: Path, settings: Sequence[str]
) -> None:
    """Write ``generator_study.md`` and ``generator_study/study.png`` below ``out``."""
    seeds = sorted({int(r["seed"]) for r in rows})
    lines = [
        INTRO.format(cpu=float(rows[0]["cpu_s"]) / 60.0, seeds=", ".join(str(s) for s in seeds)),
        _runs_table(rows, settings),
        "",
    ]
    for key in DECIDING:
        gain, apart = verdict(rows, key, *settings)
        lines.append(
            f"{COLUMNS[key]}: mean of `{settings[0]}` {100 * gain:.0f} % lower than "
            f"`{settings[1]}`; ranges of the seeds {'do not overlap' if apart else 'overlap'}."
        )
    lines += ["", "![both settings and the curve over s](generator_study/study.png)", ""]
    if curve:
        body = [[f"{r['s']:g}", *(f"{float(r[k]):.3g}" for k in CURVE_COLUMNS)] for r in curve]
        lines += [
            f"The same figures of one generator (`{curve[0]['run']}`) over s, the weight of the",
            "prediction without past frames:",
            "",
            _table(["s", *(COLUMNS[k] for k in CURVE_COLUMNS)], body),
            "",
        ]
    lines.append("All figures: `generator_study/runs.csv`, `generator_study/curve.csv`.")
    (out / "generator_study.md").write_text("\n".join(lines) + "\n")
    _picture(rows, curve, out / "generator_study" / "study.png", settings)


def _runs_table(rows: Sequence[Row], settings: Sequence[str]) -> str:
    body: list[list[str]] = []
    for name in settings:
        mine = [r for r in rows if r["setting"] == name]
        body += [
            [f"{name}, seed {row['seed']}", *(_figure(float(row[k])) for k in COLUMNS)]
            for row in mine
        ]
        if len(mine) > 1:
            means = (sum(float(r[k]) for r in mine) / len(mine) for k in COLUMNS)
            body.append([f"**{name}, mean**", *(f"**{_figure(m)}**" for m in means)])
    return _table(["", *COLUMNS.values()], body)


def _figure(value: float) -> str:
    """Three digits; whole numbers from a thousand on."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _picture(
    rows: Sequence[Row], curve: Sequence[Row], path: Path, settings: Sequence[str]
) -> None:
    figure, axes = plt.subplots(1, 3 if curve else 2, figsize=(11 if curve else 7.5, 3.2))
    colours = dict(zip(settings, ("#1b7f5c", "#b0553a"), strict=True))
    for axis, key in zip(axes, DECIDING, strict=False):
        for x, name in enumerate(settings):
            values = [float(r[key]) for r in rows if r["setting"] == name]
            axis.scatter([x] * len(values), values, color=colours[name], s=28)
            if values:
                axis.hlines(sum(values) / len(values), x - 0.25, x + 0.25, color=colours[name])
        axis.set_xticks(range(len(settings)), settings)
        axis.set_xlim(-0.6, len(settings) - 0.4)
        axis.set_ylim(bottom=0)
        axis.set_title(COLUMNS[key], fontsize=10)
    if curve:
        s = [float(r["s"]) for r in curve]
        axes[2].plot(s, [float(r["tpl"]) for r in curve], "o-", color=colours[settings[0]])
        axes[2].set_xlabel("s")
        axes[2].set_ylabel("TPL (m)", color=colours[settings[0]])
        twin = axes[2].twinx()
        twin.plot(s, [float(r["hjf_percent"]) for r in curve], "s--", color="#555555")
        twin.set_ylabel("%HJF", color="#555555")
        axes[2].set_title("over s", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
