"""The drift monitor on data sets whose drift is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parc_ray.data.storage import Storage
from parc_ray.errors import InputError
from parc_ray.evaluation.drift import DriftMonitor, drift_table, monitor_run
from parc_ray.evaluation.limits import DriftConfig
from parc_ray.motion.clip import Provenance
from parc_ray.terrain.heightfield import Heightfield
from tests.envs.helpers import sway_clip
from tests.stages.helpers import put_clips


def sway(humanoid, name, amplitude, speed=0.0, parents=(), terrain=None):
    clip = sway_clip(humanoid, 41, name, amplitude=amplitude, speed=speed, terrain=terrain)
    return replace(clip, provenance=Provenance(parents=parents))


@pytest.fixture
def initial(humanoid):
    return [sway(humanoid, f"d{k}", 0.1 + 0.05 * k, 0.2 * k) for k in range(4)]


def test_the_same_motions_again_have_not_drifted(humanoid, initial):
    monitor = DriftMonitor(initial, humanoid)
    again = [replace(clip, clip_id=f"new-{clip.clip_id}") for clip in initial]
    row = monitor.add(1, again, again)
    assert row.figures["frechet_d0"] == pytest.approx(0.0, abs=1e-6)
    assert row.figures["nearest_ratio"] == pytest.approx(0.0, abs=1e-6)
    assert row.figures["survival"] == 1.0
    assert (row.figures["depth_max"], row.figures["depth_mean"]) == (1.0, 1.0)
    assert row.ancestor_share == {f"d{k}": 0.25 for k in range(4)}
    assert row.alarms(DriftConfig(max_class_share=1.0)) == []


def test_motions_that_resemble_generated_ones_are_deeper(humanoid, initial):
    monitor = DriftMonitor(initial, humanoid)
    first = sway(humanoid, "g1", 0.7, 2.0)
    second = sway(humanoid, "g2", 0.7, 2.1)
    assert monitor.add(1, [first], [first]).figures["depth_max"] == 1.0
    row = monitor.add(2, [second], [second])
    assert row.figures["depth_max"] == 2.0
    assert list(row.ancestor_share) == ["d3"]  # the fastest of D0, through g1


def test_distance_grows_and_alarms_say_so(humanoid, initial):
    monitor = DriftMonitor(initial, humanoid)
    rows = [
        monitor.add(k, [clip], [clip])
        for k, clip in enumerate([sway(humanoid, f"g{k}", 0.2 * k, float(k)) for k in (1, 2, 3)], 1)
    ]
    distances = [row.figures["frechet_d0"] for row in rows]
    assert distances == sorted(distances)
    said = rows[-1].alarms(DriftConfig(max_frechet=1.0, max_nearest_ratio=1.0, max_depth=0))
    assert [line.split(":")[0] for line in said] == ["iteration 3"] * len(said)
    assert any("Frechet distance from D0" in line for line in said)
    assert any("depth of ancestry" in line for line in said)
    assert any("share of class level 1 is above 0.9" in line for line in said)


def test_survival_by_class_and_by_ancestor(humanoid, initial):
    step = Heightfield.flat((24, 24))
    step.heights[13:] = 0.2
    made = [
        sway(humanoid, "a", 0.1),
        sway(humanoid, "b", 0.25, 0.6, terrain=step),
        sway(humanoid, "c", 0.25, 0.6),
    ]
    recorded = [sway(humanoid, "r", 0.1, parents=("a",))]
    row = DriftMonitor(initial, humanoid).add(1, made, recorded)
    assert row.figures["survival"] == pytest.approx(1 / 3)
    assert row.class_share["step"] == pytest.approx(1 / 3)
    assert row.class_survival == {"level": 0.5, "step": 0.0}
    assert row.ancestor_survival["d0"] == 1.0
    assert row.ancestor_survival["d3"] == 0.0
    assert row.figures["nearest_correction"] == pytest.approx(0.0, abs=1e-6)
    said = row.alarms(DriftConfig(min_survival=0.5))
    assert any("share of motions kept 0.333 is below 0.5" in line for line in said)


def test_an_iteration_of_which_nothing_was_kept(humanoid, initial):
    row = DriftMonitor(initial, humanoid).add(1, [sway(humanoid, "a", 0.2)], [])
    assert row.figures["survival"] == 0.0
    assert math.isnan(row.figures["frechet_d0"])
    assert not [line for line in row.alarms(DriftConfig()) if "Frechet" in line]


def test_a_run_is_read_from_its_stages(tmp_path, humanoid, initial):
    made = [sway(humanoid, "a", 0.2), sway(humanoid, "b", 0.3)]
    kept = [sway(humanoid, "r", 0.2, parents=("a",))]
    put_clips(tmp_path, "it_00/merge", initial, humanoid)
    put_clips(tmp_path, "it_01/generate", made, humanoid)
    put_clips(tmp_path, "it_01/merge", [*initial, *kept], humanoid)
    rows = monitor_run(Storage.from_uri(tmp_path), 2, humanoid)
    assert [(r.iteration, r.generated, r.kept) for r in rows] == [(1, 2, 1)]
    table = drift_table(rows)
    assert table["survival"].tolist() == [0.5]
    assert table["share_level"].tolist() == [1.0]
    assert monitor_run(Storage.from_uri(tmp_path / "nothing"), 2, humanoid) == []


def test_limits_are_checked():
    with pytest.raises(InputError, match="max_depth: -1 is below 0"):
        DriftConfig(max_depth=-1)
