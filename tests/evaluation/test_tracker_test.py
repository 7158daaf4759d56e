"""The tracker test: success, joint errors and effort of motions whose fate is known."""

from __future__ import annotations

import pytest

from envs.sims.base import SimConfig
from envs.tracking.config import PRESETS
from parc_ray.evaluation.tracker_test import TrackerTestWorker, tracker_items
from parc_ray.stages.pool import WorkItem
from tests.envs.helpers import stand_clip


def worker(humanoid, clips, **changes):
    values = {
        "clips": clips,
        "character": humanoid,
        "policy": None,
        "tracking": PRESETS["quick"](),
        "sim": SimConfig(),
        "simulator": "mujoco_cpu",
        "starts": 2,
        "random_starts": 3,
        "seed": 5,
    }
    return TrackerTestWorker(**{**values, **changes})


def rows(made, count):
    return made(WorkItem(id="x", payload={"first": 0, "last": count})).record["rows"]


@pytest.fixture(scope="module")
def clips(humanoid):
    """Standing, and standing that is suddenly expected three metres away."""
    gone = stand_clip(humanoid, 31, "gone")
    gone.frames.root_pos[16:, 0] += 3.0
    return [stand_clip(humanoid, 31, "stays"), gone]


def test_one_motion_is_followed_and_one_cannot_be(humanoid, clips):
    stays, gone = rows(worker(humanoid, clips), 2)
    assert (stays["clip"], gone["clip"]) == ("stays", "gone")
    assert (stays["success"], stays["completed_fraction"]) == (1.0, 1.0)
    assert gone["success"] == 0.0
    assert gone["completed_fraction"] == pytest.approx(15 / 30)
    assert stays["noisy_completed"] == 1.0
    assert gone["noisy_completed"] == 0.0
    assert stays["random_starts"] == 3
    assert stays["body_error_relative_m"] < 0.05
    assert stays["start_body_error_global_m"] < 0.05
    assert stays["contact_recall"] == 1.0  # the labelled feet carry the body
    assert 0.0 <= stays["torque_use"] < 0.5
    assert stays["torque_limit_percent"] < 20.0
    assert stays["power_w"] < 100.0
    assert stays["class"] == "level"


def test_seeds_are_those_of_the_motion_not_of_the_chunk(humanoid, clips):
    both = rows(worker(humanoid, clips), 2)
    item = WorkItem(id="y", payload={"first": 1, "last": 2})
    alone = worker(humanoid, clips)(item).record["rows"]
    assert alone == [both[1]]


def test_items_cover_every_motion_once():
    spans = [(i.payload["first"], i.payload["last"]) for i in tracker_items(10)]
    assert [k for a, b in spans for k in range(a, b)] == list(range(10))
    assert tracker_items(0) == []


def test_a_motion_without_random_starts_has_no_joint_error(humanoid, clips):
    made = rows(worker(humanoid, clips, starts=0, random_starts=0), 1)[0]
    assert "body_error_relative_m" not in made
    assert "noisy_completed" not in made
    assert made == replace_none(made)


def replace_none(row):
    """Rows are JSON: no NaN."""
    return {k: v for k, v in row.items() if v == v}
