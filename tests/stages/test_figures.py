"""Means, counts, curves and seeds that stages report."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from parc_ray.data.storage import Storage
from parc_ray.scalars import read_scalars
from parc_ray.stages._curves import write_curve
from parc_ray.stages._rollouts import mix, plan_terrains
from parc_ray.stages._trackers import table_figures
from parc_ray.stages.base import StageOutputs
from parc_ray.stages.evaluate import generator_figures
from parc_ray.synthesis.config import PlannerConfig, SynthesisConfig
from parc_ray.terrain.spec import TerrainSpec
from tests.stages.helpers import run_body


class Config:
    seed = 3


def curve(tmp_path, lines, step="step"):
    """What becomes of a trainer's log: the table, and the scalars by tag."""
    found = {}

    def body(run):
        run.dir.write_bytes_atomic("log.jsonl", "".join(f"{line}\n" for line in lines).encode())
        found["frame"] = write_curve(run, "log.jsonl", step)
        found["stored"] = run.dir.read_bytes("curve.csv").decode()
        return StageOutputs(paths={})

    run_body(tmp_path, "train-generator", body, {}, Config(), 1)
    rows = read_scalars(Storage.from_uri(tmp_path))
    return found["frame"], found["stored"], {(r.tag, r.step): r.value for r in rows}


def test_a_log_becomes_a_table_and_scalars(tmp_path):
    lines = [json.dumps({"step": s, "loss": 1.0 / s, "metrics": {"kl": s * 2.0}}) for s in (1, 2)]
    frame, stored, scalars = curve(tmp_path, lines)
    assert frame.to_dict("records") == [
        {"step": 1, "loss": 1.0, "kl": 2.0},
        {"step": 2, "loss": 0.5, "kl": 4.0},
    ]
    assert stored.splitlines()[0] == "step,loss,kl"
    assert scalars == {
        ("curve/loss", 1): 1.0,
        ("curve/loss", 2): 0.5,
        ("curve/kl", 1): 2.0,
        ("curve/kl", 2): 4.0,
    }


def test_steps_done_twice_after_a_kill_count_once(tmp_path):
    lines = [
        json.dumps({"step": s, "loss": v}) for s, v in ((2, 5.0), (3, 6.0), (2, 7.0), (1, 8.0))
    ]
    frame, _, scalars = curve(tmp_path, lines)
    assert list(frame["step"]) == [1, 2, 3]
    assert list(frame["loss"]) == [8.0, 7.0, 6.0]
    assert scalars["curve/loss", 2] == 7.0


def test_a_line_cut_by_a_kill_is_left_out(tmp_path):
    frame, _, _ = curve(tmp_path, ['{"step": 1, "lo', '{"step": 1, "loss": 2.0}'])
    assert frame.to_dict("records") == [{"step": 1, "loss": 2.0}]


def test_what_was_not_measured_is_no_scalar(tmp_path):
    lines = ['{"step": 1, "loss": 1.0}', '{"step": 2, "loss": 2.0, "probe": 3.0, "name": "x"}']
    _, _, scalars = curve(tmp_path, lines)
    assert scalars == {("curve/loss", 1): 1.0, ("curve/loss", 2): 2.0, ("curve/probe", 2): 3.0}


def test_generator_figures_are_means_over_motions():
    rows = [
        {"finished": True, "tpl": 2.0, "tcl": 1.0, "hjf_percent": 10.0, "fwd_m": 0.5},
        {"finished": False, "tpl": 4.0, "tcl": 1.0, "hjf_percent": 0.0, "fwd_m": 1.5},
    ]
    found = generator_figures([{"tpl_in_grid": 1.0, "tpl_per_frame": 0.1, **r} for r in rows])
    assert found["gen_motions"] == 2
    assert found["gen_finished_share"] == 0.5
    assert (found["gen_tpl"], found["gen_fwd"], found["gen_hjf_percent"]) == (3.0, 1.0, 5.0)


def test_no_test_motion_gives_no_mean():
    found = generator_figures([])
    assert found["gen_motions"] == 0
    assert all(math.isnan(v) for k, v in found.items() if k != "gen_motions")


def tracker_table(**columns):
    base = {
        "starts": [32, 32, 32],
        "completed": [24, 23, 32],
        "survived": [0.9, 0.8, 1.0],
        "random_completed": [0.5, 0.25, 0.75],
        "level_change_m": [0.2, 0.5, 0.1],
        "body_error_relative_m": [0.1, math.nan, 0.3],
        "body_error_global_m": [0.2, math.nan, 0.4],
    }
    return pd.DataFrame({**base, **columns})


def test_a_clip_is_completed_from_three_quarters_of_its_starts_on():
    found = table_figures(tracker_table(), "tracker")
    assert found["tracker_clips"] == 3
    assert found["tracker_clips_completed"] == 2  # 24 of 32 counts, 23 does not
    assert found["tracker_clips_completed_02m"] == 1  # 0.2 m counts, 0.1 m does not
    assert found["tracker_survived_from_start"] == pytest.approx(0.9)
    assert found["tracker_completed_from_start"] == pytest.approx((24 + 23 + 32) / 96)
    assert found["tracker_random_completed"] == pytest.approx(0.5)
    assert found["tracker_body_error_relative_m"] == pytest.approx(0.2)


@pytest.mark.filterwarnings("error")
def test_errors_that_nobody_survived_to_measure_stay_undefined():
    nothing = [math.nan] * 3
    table = tracker_table(body_error_relative_m=nothing, body_error_global_m=nothing)
    assert math.isnan(table_figures(table, "t")["t_body_error_relative_m"])


def test_mixed_seeds_are_spread_and_stable():
    seeds = [mix(7, a, b) for a in range(10) for b in range(10)]
    assert len(set(seeds)) == 100
    assert all(0 <= s < 2**31 for s in seeds)
    assert mix(7, 1, 2) == seeds[12]
    assert mix(8, 1, 2) != seeds[12]
    expected = int(np.random.SeedSequence([7, 1, 2]).generate_state(1)[0]) // 2
    assert seeds[12] == expected


def test_a_terrain_depends_on_its_number_and_not_on_its_batch():
    spec = TerrainSpec(kind="boxes", cells=(12, 12), box_count=4, box_height_m=(-0.3, 0.3))
    synthesis = SynthesisConfig(planner=PlannerConfig(min_distance_m=2.0))
    together = plan_terrains(spec, synthesis, range(4), 5)
    assert len(together.numbers) + len(together.refused) == 4
    for number, planned in zip(together.numbers, together.planned, strict=True):
        alone = plan_terrains(spec, synthesis, [number], 5)
        assert alone.planned[0].terrain.heights.equal(planned.terrain.heights)
        path, again = planned.path.points, alone.planned[0].path.points
        assert path is not None
        assert again is not None
        assert again.equal(path)
    other = plan_terrains(spec, synthesis, range(4), 6)
    assert not other.planned[0].terrain.heights.equal(together.planned[0].terrain.heights)
