"""Which stages a run has and what feeds what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parc_ray.plan import plan
from parc_ray.recipes import get_recipe
from tests.fakes import fake_config


def names(config):
    return [(s.iteration, s.name) for s in plan(config)]


def test_the_papers_order():
    body = ["train-generator", "generate", "train-tracker", "record", "merge", "evaluate"]
    expected = [(0, n) for n in ("augment", "train-tracker", "record", "merge")]
    expected += [(i, n) for i in (1, 2) for n in body] + [(2, "report")]
    assert names(fake_config("s", iterations=2)) == expected


@pytest.mark.parametrize("recipe", ["smoke", "quick", "base", "paper", "upstream"])
def test_every_input_is_an_output_of_an_earlier_stage(recipe):
    seen = set()
    for stage in plan(get_recipe(recipe)):
        for source in stage.inputs.values():
            assert (source.iteration, source.stage) in seen
        seen.add((stage.iteration, stage.name))


def test_trainings_start_from_the_previous_models():
    stages = {s.label: s for s in plan(fake_config("s", iterations=2))}
    assert "warm_start" not in stages["it_01/train-generator"].inputs
    assert stages["it_02/train-generator"].inputs["warm_start"].iteration == 1
    assert stages["it_01/train-tracker"].inputs["warm_start"].iteration == 0
    assert stages["it_02/train-tracker"].inputs["warm_start"].iteration == 1


def test_each_iteration_reads_the_data_set_before_it_and_adds_the_recordings():
    stages = {s.label: s for s in plan(fake_config("s", iterations=2))}
    assert stages["it_02/train-generator"].inputs["dataset"].iteration == 1
    merge = stages["it_02/merge"].inputs
    assert (merge["dataset"].iteration, merge["motions"].stage) == (1, "record")
    assert [s.label for s in plan(fake_config("s")) if s.reads_data] == ["it_00/augment"]


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("none", ["augment", "merge"]),
        ("mpc", ["augment", "record", "merge"]),
        ("tracker", ["augment", "train-tracker", "record", "merge"]),
        ("tracker_then_mpc", ["augment", "train-tracker", "record", "merge"]),
    ],
)
def test_correction_of_the_initial_data(correction, expected):
    config = fake_config("s")
    config = replace(config, d0=replace(config.d0, correction=correction))
    assert [s.name for s in plan(config) if s.iteration == 0] == expected


def test_without_correction_the_generated_motions_are_merged():
    config = fake_config("s", iterations=2)
    rows = (replace(config.iterations[0], correct=False), config.iterations[1])
    stages = {s.label: s for s in plan(replace(config, iterations=rows))}
    assert "it_01/record" not in stages
    assert stages["it_01/merge"].inputs["motions"].stage == "generate"
    assert stages["it_02/train-tracker"].inputs["warm_start"].iteration == 0


def test_mpc_alone_trains_no_tracker_after_d0():
    config = fake_config("s", iterations=2)
    config = replace(config, correction=replace(config.correction, strategy="mpc"))
    assert [s.label for s in plan(config) if s.name == "train-tracker"] == ["it_00/train-tracker"]
    assert all("tracker" not in s.inputs for s in plan(config) if s.iteration > 0)
