"""What the correction's benchmarks count, from rows and records made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from benchmarks import correction_study as study
from benchmarks import mpc
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.outcome import Attempt, Failure, Outcome
from parc_ray.errors import InputError
from parc_ray.terrain.heightfield import Heightfield
from tests.correction.helpers import recording_of
from tests.envs.helpers import stand_clip, sway_clip


def row(take, kind, error, *, completed=True, cpu_s=20.0, motion_s=2.0, hjf=1.0, accepted=True):
    return {
        "take": take,
        "kind": kind,
        "motion_s": motion_s,
        "completed": completed,
        "reached_share": 1.0 if completed else 0.5,
        "body_global_m": error,
        "hjf_frames_percent": hjf,
        "reference_hjf_percent": 0.5,
        "cpu_s": cpu_s,
        "accepted": accepted,
    }


def test_figures_of_mpc_worked_numbers():
    table = pd.DataFrame(
        [
            row("a", "flat", 0.1),
            row("b", "flat", 0.2, hjf=4.5),
            row("c", "climb", 0.3),
            row("d", "terrain", 0.12, completed=False, cpu_s=100.0, motion_s=4.0, accepted=False),
        ]
    )
    found = mpc.figures(table)
    assert found["completed_share"] == 0.75
    assert found["reached_share"] == pytest.approx(3.5 / 4)
    assert found["error_m"] == pytest.approx(0.2)
    assert found["error_flat_m"] == pytest.approx(0.15)
    assert found["error_climb_m"] == pytest.approx(0.3)
    assert math.isnan(found["error_terrain_m"])  # it was not completed
    assert found["cpu_s_per_motion_s"] == pytest.approx(160.0 / 10.0)
    assert found["hjf_excess_points"] == pytest.approx((0.5 + 4.0 + 0.5) / 3)
    assert found["hjf_excess_points_max"] == pytest.approx(4.0)
    assert found["accepted_share_below_15_cm"] == 0.5
    assert mpc.LIMITS.keys() <= found.keys()
    table["cpu_s_per_motion_s"], table["rewinds"] = 10.0, 2
    table["attempt_reasons"] = "31: root 0.62 m off (allowed 0.6 m)"
    page = mpc.page(table, 5.0, 23)
    assert "4 of 23 clips" in page
    assert "| completed_share | 0.75 | 0.6 |" in page
    assert "| error_terrain_m |  |  |" in page
    assert page.count("root 0.62 m off") == 1  # only of the one that did not complete


def test_kinds_of_clips(humanoid):
    clip = stand_clip(humanoid, 31)
    assert mpc.kind_of(clip) == "flat"
    heights = torch.zeros(24, 24)
    heights[12:] = 1.2
    stepped = replace(clip, terrain=Heightfield.flat((24, 24)), frames=clip.frames.clone())
    stepped.terrain = replace(stepped.terrain, heights=heights)
    edge = float(stepped.terrain.origin[0]) + 12 * stepped.terrain.cell_size
    stepped.frames.root_pos[:, 0] = torch.linspace(edge - 1.0, edge + 1.0, 31)
    assert mpc.kind_of(stepped) == "terrain"  # hops over without rising
    stepped.frames.root_pos[16:, 2] += 1.2
    assert mpc.kind_of(stepped) == "climb"


def test_settings_are_changed_by_key():
    config = mpc.changed(CorrectionConfig(), ["mpc.samples=64", "mpc_retries=0"])
    assert (config.mpc.samples, config.mpc_retries) == (64, 0)
    with pytest.raises(InputError, match=r"mpc\.sample: no such setting"):
        mpc.changed(CorrectionConfig(), ["mpc.sample=64"])


def test_missing_takes_are_named(tmp_path):
    (tmp_path / "humanoid_a.pkl").touch()
    assert list(mpc.take_files(tmp_path, None)) == ["a"]
    with pytest.raises(InputError, match="has no clips b"):
        mpc.take_files(tmp_path, ["a", "b"])


def test_rows_of_other_settings_are_not_mixed(tmp_path):
    mpc._same_words(tmp_path / "settings.json", {"seed": 0})
    mpc._same_words(tmp_path / "settings.json", {"seed": 0})
    with pytest.raises(InputError, match="other settings"):
        mpc._same_words(tmp_path / "settings.json", {"seed": 1})


def test_motions_are_spread_over_the_data_set_and_cut(humanoid):
    clips = [sway_clip(humanoid, 31 + 30 * n, f"m{n}") for n in range(9)]  # 1 to 9 s
    chosen = study.choose(clips, 3, 3.0, 6.0)
    assert [c.clip_id for c in chosen] == ["m2", "m4", "m6"]
    assert [c.num_frames for c in chosen] == [91, 151, 181]
    with pytest.raises(InputError, match="7 of 9 motions last 3 s or more, 8 are wanted"):
        study.choose(clips, 8, 3.0, 6.0)


def passes(humanoid, folder, outcomes) -> study.Passes:
    made = study.Passes(SimpleNamespace(character=humanoid), folder)  # type: ignore[arg-type]
    for outcome in outcomes:
        made.put(outcome)
    return made


def outcome(humanoid, source, name, cpu_s, last=None) -> Outcome:
    """A recording up to frame ``last``, whole without, none for ``last`` 0."""
    attempt = Attempt(corrector=name, start_frame=0, frames=9, wanted=9, cpu_s=cpu_s)
    if last == 0:
        failed = Failure(corrector=name, rule="ended", frame=1, reason="fell")
        return Outcome(source_id=source.clip_id, attempts=[attempt], failures=[failed])
    clip = recording_of(source, humanoid, last=last)
    return Outcome(
        source_id=source.clip_id,
        clip=clip,
        corrector=name,
        whole=last is None,
        attempts=[attempt],
        metrics={"body_global_m": 0.1},
    )


def test_strategies_are_put_together_from_finished_passes(humanoid, tmp_path):
    clips = [sway_clip(humanoid, 31, name) for name in "abc"]
    a, b, c = clips
    tracker = passes(
        humanoid,
        tmp_path / "tracker",
        [
            outcome(humanoid, a, "tracker", 1.0),
            outcome(humanoid, b, "tracker", 1.0, last=20),
            outcome(humanoid, c, "tracker", 1.0, last=0),
        ],
    )
    mpc_passes = passes(
        humanoid,
        tmp_path / "mpc",
        [
            outcome(humanoid, a, "mpc", 10.0),
            outcome(humanoid, b, "mpc", 10.0, last=10),
            outcome(humanoid, c, "mpc", 10.0),
        ],
    )
    rows = study.rows_of("tracker_then_mpc", tracker, mpc_passes, clips)
    assert [r["corrector"] for r in rows] == ["tracker", "tracker", "mpc"]
    assert [r["cpu_s"] for r in rows] == [1.0, 11.0, 11.0]  # MPC ran only where it was needed
    assert [r["whole"] for r in rows] == [True, False, True]
    alone = study.rows_of("tracker", tracker, None, clips)
    assert [r["corrector"] for r in alone] == ["tracker", "tracker", "none"]
    table = study.summary(pd.DataFrame(rows + alone)).set_index("strategy")
    assert table.loc["tracker_then_mpc", "corrected"] == 1.0
    assert table.loc["tracker", "corrected"] == pytest.approx(2 / 3)
    assert table.loc["tracker", "cpu_s_per_motion_s"] == pytest.approx(3.0 / 3.0)
    assert table.loc["tracker", "seconds_share"] == pytest.approx((30 + 20) / 90)
    for name in study.QUALITY:
        assert f"{name}_before" in table.columns
        assert math.isfinite(table.loc["tracker", f"{name}_after"])
