"""The stage generate takes its difficulty from what was corrected in the iterations before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parc_ray.errors import InputError
from parc_ray.plan import plan
from parc_ray.stages._success import row_and_factor, success_shares
from parc_ray.stages.base import StageOutputs
from parc_ray.stages.generate import STAGE
from parc_ray.terrain.curriculum import CurriculumConfig
from tests.fakes import fake_config
from tests.stages.helpers import put_clips, run_body
from tests.synthesis.helpers import walk_clip

BY_SUCCESS = CurriculumConfig(by="success", start=0.4, step=0.2, bounds=(0.1, 0.9))


def config(iterations=3, curriculum=BY_SUCCESS):
    made = fake_config("s", iterations=iterations, curriculum=curriculum)
    rows = tuple(
        replace(row, terrain=replace(row.terrain, difficulty=0.5)) for row in made.iterations
    )
    return replace(made, iterations=rows)


@pytest.fixture
def past(tmp_path, humanoid):
    """Iteration 1 made 6 s and kept 5 of them; iteration 2 made 4 s and kept 1."""
    found = {}
    for number, made, kept in ((1, (3.0, 3.0), (3.0, 2.0)), (2, (4.0,), (1.0,))):
        for word, stage, lengths in (("motions", "generate", made), ("recorded", "record", kept)):
            clips = [walk_clip(humanoid, f"w{k}", seconds=s) for k, s in enumerate(lengths)]
            where = f"it_{number:02d}/{stage}"
            found[f"{word}_{number:02d}"] = put_clips(tmp_path, where, clips, humanoid)
    return found


def asked(root, settings, inputs, iteration):
    """Difficulty and factor that the stage would use, and the shares it saw."""
    seen = {}

    def body(run):
        row, factor = row_and_factor(run)
        seen.update(success_shares(run))
        figures = {"difficulty": row.terrain.difficulty, "factor": factor}
        return StageOutputs(paths={}, metrics=figures)

    metrics = run_body(root, "generate", body, inputs, settings, iteration).metrics
    return metrics["difficulty"], metrics["factor"], seen


def test_shares_are_of_seconds_and_every_iteration_moves_the_factor(tmp_path, past):
    difficulty, factor, seen = asked(tmp_path, config(), past, 3)
    assert seen == {1: pytest.approx(5 / 6), 2: pytest.approx(1 / 4)}
    # 0.4, a step up after 83 %, a step down after 25 %; all of the entry's own 0.5.
    assert (factor, difficulty) == (pytest.approx(0.4), pytest.approx(0.2))
    first = {name: past[name] for name in ("motions_01", "recorded_01")}
    difficulty, factor, _ = asked(tmp_path, config(), first, 2)
    assert (factor, difficulty) == (pytest.approx(0.6), pytest.approx(0.3))
    difficulty, factor, seen = asked(tmp_path, config(), {}, 1)
    assert (factor, difficulty, seen) == (pytest.approx(0.4), pytest.approx(0.2), {})


def test_nothing_kept_and_nothing_made_are_no_success(tmp_path, humanoid):
    for number, made in ((1, [walk_clip(humanoid)]), (2, [])):
        where = f"it_{number:02d}"
        inputs = {
            f"motions_{number:02d}": put_clips(tmp_path, f"{where}/generate", made, humanoid),
            f"recorded_{number:02d}": put_clips(tmp_path, f"{where}/record", [], humanoid),
        }
        _, factor, seen = asked(tmp_path, config(), inputs, number + 1)
        assert seen == {number: 0.0}
        assert factor == pytest.approx(0.2)


def test_an_iteration_with_other_success_is_another_stage(tmp_path, past, humanoid):
    """A finished stage is not taken for one whose terrains follow another success."""
    asked(tmp_path, config(), past, 3)
    other = {**past, "recorded_02": past["motions_02"]}
    with pytest.raises(InputError, match="recorded_02"):
        asked(tmp_path, config(), other, 3)


def test_the_plan_hands_on_what_was_made_and_kept_before():
    settings = config()
    rows = (settings.iterations[0], replace(settings.iterations[1], correct=False))
    stages = {s.label: s for s in plan(replace(settings, iterations=(*rows, rows[0])))}
    first = {"generator", "dataset"}
    assert set(stages["it_01/generate"].inputs) == first
    one = {"motions_01", "recorded_01"}
    assert set(stages["it_02/generate"].inputs) == first | one
    assert set(stages["it_03/generate"].inputs) == first | one  # iteration 2 corrects nothing
    source = stages["it_03/generate"].inputs["recorded_01"]
    assert (source.iteration, source.stage, source.output) == (1, "record", "recorded")
    scheduled = plan(config(curriculum=CurriculumConfig(start=0.2)))
    assert all("recorded_01" not in s.inputs for s in scheduled if s.name == "generate")


def test_the_rule_is_part_of_what_decides_the_stage():
    scheduled = STAGE.section(config(curriculum=CurriculumConfig(end=0.5)), 2)
    assert scheduled["curriculum"] is None
    assert STAGE.section(config(), 2)["curriculum"] == BY_SUCCESS
    assert STAGE.section(config(), 2)["row"].terrain.difficulty == 0.5
