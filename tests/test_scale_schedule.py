"""The simulated clusters: what is foretold, and one pool that grows on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale_schedule import SHAPES, config_for, costs, lent_twice, stage_times, tandem

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("ready", "seconds", "items", "end"),
    [
        ([[0.0, 0.0]], [2.0], 5, 6.0),  # three rounds of two
        ([[0.0, 3.0]], [2.0], 3, 5.0),  # the late actor does one, the other two
        ([[1.0], [0.0]], [1.0, 2.0], 3, 8.0),  # the second queue is the slower: 1 + 1 + 3 * 2
        ([[0.0], [0.0, 0.0]], [1.0, 2.0], 4, 6.0),  # two keep up with one: 4 + 2
        ([[0.0], [9.0]], [1.0, 1.0], 2, 11.0),  # everything waits for an actor that comes late
    ],
)
def test_queues_in_a_line(ready, seconds, items, end):
    assert tandem(ready, seconds, items) == end


def test_costs_keep_the_models_proportions():
    one, two = costs(5.0), costs(10.0)
    assert one.item["roll-out"] == one.item["evaluate"] == 5.0
    assert two.item["optimise"] == pytest.approx(2 * one.item["optimise"])
    assert 0.01 < one.item["optimise"] / one.item["roll-out"] < 0.1  # 2.5 s beside 58 s


def test_stages_are_compared_with_their_queue():
    def record(actor: int, began: float) -> dict[str, object]:
        return {
            "record/ready": 10.0 + actor,
            "record/pid": actor,
            "record/node": "n",
            "record/began": began,
            "record/ended": began + 3.0,
        }

    found = {
        "apart": False,
        "operators": ["record"],
        "records": [record(0, 10.0), record(1, 11.0), record(0, 13.5)],
    }
    table = costs(1.0)
    table.item["record"] = 3.0
    times = stage_times("it_01/record", found, table)
    assert times.actors == 2
    assert times.measured_s == 6.5
    assert times.foretold_s == 6.0  # the first actor does two


def test_a_gpu_that_is_lent_twice_is_seen():
    members = [{"node": "a", "gpus": ["0"]}, {"node": "b", "gpus": ["0"]}]
    assert lent_twice({"members": members}) == []
    assert lent_twice({"members": [*members, {"node": "a", "gpus": ["0"]}]}) == ["a/0"]


def test_settings_are_those_of_the_page():
    """For 8 and 40 GPUs; of the recorders of 40 a quarter, and one for each of 8 GPUs."""
    page = (ROOT / "cluster" / "README.md").read_text()
    for gpus in (8, 40):
        words = SHAPES[gpus].split()
        for name, value in zip(words[::2], words[1::2], strict=True):
            if name != "--resources.record_actors":
                assert f"{name} {value}" in page
        assert config_for(gpus, "s", "n", 1).tracker.num_learners == gpus


@pytest.mark.long  # tests/integration/test_nodes.py lets a pool grow in CI
@pytest.mark.timeout(600)
def test_a_pool_grows_when_a_node_joins():
    script = str(ROOT / "benchmarks" / "scale_schedule.py")
    done = subprocess.run(
        [sys.executable, script, "--part", "growth", "--item-s", "1.0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1])["grown_to"] > 2
