"""Tables of corrections: one row per motion, one per failure, one per corrector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from parc_ray.correction.outcome import Outcome

FIGURES = (
    "body_global_m",
    "body_local_m",
    "root_max_m",
    "joint_rad",
    "contact_f1",
    "deepest_m",
    "high_jerk_share",
    "torque_saturation",
    "slide_mps",
    "tpl",
    "tcl",
    "hjf_frames_percent",
    "foot_slide_mps",
)
"""Figures of a recording that are shown."""

NOBODY = "none"
"""Stands for the corrector of a motion that nobody could correct."""


def clip_table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """One row per motion: who corrected it, what it covers, what it cost, its figures."""
    rows: list[dict[str, Any]] = []
    for o in outcomes:
        shown = o.clip or o.refused
        rows.append(
            {
                "source": o.source_id,
                "recording": o.clip.clip_id if o.clip else "",
                "corrector": o.corrector or NOBODY,
                "whole": o.whole,
                "start_frame": o.start_frame if shown else None,
                "end_frame": o.end_frame if shown else None,
                "seconds": o.clip.duration_s if o.clip else 0.0,
                "attempts": len(o.attempts),
                "rewinds": sum(a.rewinds for a in o.attempts),
                "cpu_s": o.cpu_s,
                "tracker_cpu_s": sum(a.cpu_s for a in o.attempts if a.corrector == "tracker"),
                "mpc_cpu_s": sum(a.cpu_s for a in o.attempts if a.corrector == "mpc"),
                **{name: o.metrics.get(name, math.nan) if shown else math.nan for name in FIGURES},
                "why": "; ".join(o.reasons),
            }
        )
    return pd.DataFrame(rows)


def failure_table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """One row per failure of motions that were not kept: rule, frame of the source, reason."""
    rows = [
        {
            "source": o.source_id,
            "corrector": f.corrector,
            "rule": f.rule,
            "frame": f.frame,
            "recording": o.refused.clip_id if o.refused is not None else "",
            "reason": f.reason,
        }
        for o in outcomes
        for f in o.failures
        if o.clip is None
    ]
    names = ("source", "corrector", "rule", "frame", "recording", "reason")
    return pd.DataFrame(rows, columns=list(names))


def corrector_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per corrector (``none``: not corrected): motions, seconds, cost, mean figures.

    The cost of a corrector is that of all its tries, also on motions that it did not get.
    """
    table = clip_table(outcomes)
    rows = []
    for name in ("tracker", "mpc", NOBODY):
        mine = [o for o in outcomes if (o.corrector or NOBODY) == name]
        cost = sum(a.cpu_s for o in outcomes for a in o.attempts if a.corrector == name)
        chosen = table[table["corrector"] == name] if len(table) else table
        rows.append(
            {
                "corrector": name,
                "motions": len(mine),
                "share": len(mine) / len(outcomes) if outcomes else math.nan,
                "whole": sum(o.whole for o in mine),
                "seconds": sum(o.clip.duration_s for o in mine if o.clip),
                "cpu_s": cost,
                **{f: _mean(chosen[f]) if len(chosen) else math.nan for f in FIGURES},
            }
        )
    return pd.DataFrame(rows)


def _mean(column: Any) -> float:
    """Mean of the numbers of a column; gaps are passed over."""
    return float(column.mean())


def corrector_figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """`corrector_table` as figures ``corrector/name``; what is not a number is left out."""
    out = {}
    for row in corrector_table(outcomes).to_dict("records"):
        name = row.pop("corrector")
        out |= {f"{name}/{k}": float(v) for k, v in row.items() if math.isfinite(v)}
    return out


def rule_counts(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """How many motions that were not kept broke each rule, as ``failed/rule``."""
    counts: dict[str, float] = {}
    for o in outcomes:
        if o.clip is None:
            for rule in {f.rule for f in o.failures}:
                counts[f"failed/{rule}"] = counts.get(f"failed/{rule}", 0.0) + 1.0
    return dict(sorted(counts.items()))
