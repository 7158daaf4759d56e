"""The cost model: its tables are those of the page, and they add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale_model import HUNDRED, PARC, Units, bottleneck, costs, storage_gb, table

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "scale.md").read_text()


def test_the_page_has_the_models_tables():
    assert table() in PAGE
    assert bottleneck(PARC).name == bottleneck(HUNDRED).name == "train-tracker: learn"


def test_costs_are_units_times_counts():
    found = {c.name: c.cpu_h * 3600 for c in costs(PARC)}
    units = Units()
    assert found["train-tracker: simulate"] == pytest.approx(1e10 * 171e-6)
    assert found["generate: optimise"] == pytest.approx(6000 * units.optimise_motion)
    assert found["augment"] == pytest.approx(14 * 60 / 6 * 50 * 3.0)
    assert found["train-generator"] == pytest.approx(4 * 2e6 * 0.46)
    seconds = 0.2 * (6000 * 6 + 14 * 60 * 50)
    assert found["record: MPC"] == pytest.approx(seconds * 7.3)


def test_a_hundred_times_the_data_is_a_hundred_times_the_work():
    one, many = ({c.name: c.cpu_h for c in costs(s)} for s in (PARC, HUNDRED))
    for name in ("augment", "generate: roll-out", "train-tracker: learn", "record: MPC"):
        assert many[name] == pytest.approx(100 * one[name])
    assert many["train-generator"] == pytest.approx(10 * one["train-generator"])
    assert many["evaluate"] == one["evaluate"]
    assert storage_gb(HUNDRED)["recorded"] == pytest.approx(100 * storage_gb(PARC)["recorded"])


def test_a_small_network_moves_the_bottleneck():
    small = replace(PARC, large_network=False)
    assert bottleneck(small).name != "train-tracker: learn"
    learn = next(c for c in costs(small) if c.name == "train-tracker: learn")
    assert learn.cpu_h == pytest.approx(1e10 * 45e-6 / 3600)
    assert learn.moved_gb == 0
