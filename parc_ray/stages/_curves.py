"""Learning curves: from a trainer's line-per-step log to a table and to TensorBoard."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from parc_ray.stages.base import StageRun

CURVE = "curve.csv"


def write_curve(run: StageRun, log: str, step: str = "step") -> pd.DataFrame:
    """Turn a JSON-lines log of the stage into ``curve.csv`` and TensorBoard scalars ``curve/...``.

    The stage's own figures, one per iteration, have other tags.

    Args:
        run: the stage.
        log: file name in the stage's directory; every line is an object of numbers.
        step: which of them is the x axis.
    """
    frame = pd.DataFrame(_rows(run.dir.read_bytes(log).decode(errors="replace")))
    if step in frame:
        frame = frame.drop_duplicates(step, keep="last").sort_values(step)
    run.dir.write_bytes_atomic(CURVE, frame.to_csv(index=False).encode())
    for row in frame.to_dict("records"):
        values = {
            f"curve/{key}": float(value)
            for key, value in row.items()
            if key != step and isinstance(value, int | float) and math.isfinite(value)
        }
        run.scalars.add_all(values, int(row.get(step, 0)))
    return frame


def _rows(text: str) -> list[dict[str, Any]]:
    """Rows of a JSON-lines log; a line cut short by a kill is left out."""
    rows = []
    for line in text.splitlines():
        try:
            rows.append(_flat(json.loads(line)))
        except ValueError:
            continue
    return rows


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """One level of nesting is taken apart."""
    nested = row.pop("metrics", None)
    return {**row, **nested} if isinstance(nested, dict) else row
