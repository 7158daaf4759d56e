"""The study's script: trends from rows, by their intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.evaluation_study import BLEND, FIGURES, NEVER, PHYSICS, page, trends
from parc_ray.sweep.spec import load_spec
from tests.sweep.test_spec import ROOT


def rows(part, variant, iteration, level, seed=0):
    rng = np.random.default_rng(seed)
    terrain = np.repeat(np.arange(10), 8)
    frame = pd.DataFrame(
        {"part": part, "variant": variant, "iteration": iteration}, index=range(80)
    )
    frame["terrain"] = terrain
    for figure in FIGURES:
        frame[figure] = level + terrain + 0.1 * rng.normal(size=80)
    return frame


@pytest.fixture
def table():
    parts = [
        rows(PHYSICS, "with", 1, 5.0, 1),
        rows(PHYSICS, "with", 3, 4.0, 2),
        rows(PHYSICS, "without", 3, 9.0, 3),
        rows(BLEND, "s=0.5", 3, 2.0, 4),
        rows(BLEND, "s=1", 3, 2.0, 4),
        rows(BLEND, "s=0.65", 3, 7.0, 5),
    ]
    return trends(pd.concat(parts, ignore_index=True))


def test_trends_are_differences_with_intervals(table):
    found = table[table["figure"] == "fwd_m"].set_index("comparison")
    fall = found.loc["with correction: iteration 3 - iteration 1"]
    assert fall["mean"] == pytest.approx(-1.0, abs=0.1)
    assert fall["verdict"] == "shown: falls"
    assert fall["high"] < -0.8  # terrains differ by 9, their common level cancels
    assert found.loc["iteration 3: without - with correction"]["verdict"] == "shown: rises"
    assert list(found.index[-2:]) == ["s=0.65 - s=0.5", "s=1 - s=0.65"]


def test_what_is_not_shown_is_said(table):
    same = trends(pd.concat([rows(BLEND, f"s={s}", 1, 3.0, 7) for s in (0, 1)]))
    assert set(same["verdict"]) == {NEVER}
    assert "| not shown: the interval holds 0 |" in page(same)
    assert page(table).count("| shown: falls |") >= len(FIGURES)


def test_the_studys_sweep_has_the_numbers_that_it_promises():
    spec = load_spec(str(ROOT / "tune_configs/study_physics.yaml"))
    assert (spec.iterations, spec.base["iterations.*.motions"], spec.concurrent) == (3, 24, 1)
    assert list(spec.variants) == ["with", "without"]
