"""``parc record RUN --backend``: the same starts in two simulators, and the gap between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from envs.sims.mujoco_cpu import MujocoCpuBackend
from envs.sims.registry import BACKENDS
from envs.tracking.config import TrackingConfig
from parc_ray import cli
from parc_ray.evaluation.sim_to_sim import ALL, SHOWN, _mean, gap_table, measure_in
from parc_ray.tools.record import is_stage
from tests.envs.helpers import stand_clip, sway_clip
from tests.evaluation.runs import make_run, tiny_config


class OnIce(MujocoCpuBackend):
    """Another simulator: the same engine on ice, with nothing that holds a joint."""

    name = "on_ice"

    def __init__(self, character, num_envs, config):
        weak = replace(character, kp=0.02 * character.kp, kd=0.02 * character.kd)
        super().__init__(weak, num_envs, replace(config, friction=0.01))


class Elsewhere(OnIce):
    """One that this machine lacks."""

    name = "elsewhere"

    @staticmethod
    def missing():
        return "there is no ice here"


@pytest.fixture(autouse=True)
def _others(monkeypatch):
    for other in (OnIce, Elsewhere):
        monkeypatch.setitem(BACKENDS, other.name, other)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return make_run(tiny_config(tmp_path_factory.mktemp("runs")))


def run(*words) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["record", *(str(w) for w in words)])
    return caught.value.code


def test_standing_needs_joints_that_hold(humanoid):
    """Where they hold the pose is kept, where they do not the joints are off; the gap says so."""
    clips = [stand_clip(humanoid, 16), sway_clip(humanoid, 16)]
    sims = [
        measure_in(
            name, humanoid, clips, None, TrackingConfig(), tiny_config(".").sim, starts=3, seed=1
        )
        for name in ("mujoco_cpu", "on_ice")
    ]
    table = gap_table(*sims).set_index("clip")
    assert list(table.index) == ["stand", "sway", ALL]
    for name in SHOWN:
        gap = table[f"{name}_other"] - table[f"{name}_home"]
        pd.testing.assert_series_equal(table[f"{name}_gap"], gap, check_names=False)
        mean = table[f"{name}_home"].iloc[:2].mean()
        assert table[f"{name}_home"].iloc[2] == pytest.approx(mean)
    assert table.loc["stand", "completed_home"] == 1.0
    assert table.loc["stand", "joint_rad_gap"] > 0.02
    assert table.loc[ALL, "joint_rad_gap"] > 0.02


def test_clips_of_one_id_stay_apart_and_what_is_unknown_is_no_part_of_a_mean():
    def figures(joint_rad):
        rows = [{"clip": name, **dict.fromkeys(SHOWN, 1.0)} for name in ("walk", "walk", ALL)]
        for row, value in zip(rows, joint_rad, strict=True):
            row["joint_rad"] = value
        return pd.DataFrame(rows)

    table = gap_table(figures([0.1, 0.2, 0.15]), figures([0.4, 0.3, 0.35]))
    assert table["clip"].tolist() == ["walk", "walk", ALL]
    assert table["joint_rad_gap"].tolist() == pytest.approx([0.3, 0.1, 0.2])
    with pytest.raises(ValueError, match="other clips"):
        gap_table(figures([0.1] * 3), figures([0.1] * 3).iloc[::-1].reset_index(drop=True))
    assert _mean(np.array([0.2, np.nan, 0.4])) == pytest.approx(0.3)
    assert np.isnan(_mean(np.array([np.nan])))


def test_a_simulator_has_no_gap_to_itself(humanoid):
    args = ("mujoco_cpu", humanoid, [stand_clip(humanoid, 8)], None, TrackingConfig())
    one, same, other = (
        measure_in(*args, tiny_config(".").sim, starts=2, seed=seed) for seed in (0, 0, 1)
    )
    pd.testing.assert_frame_equal(one, same)
    assert (gap_table(one, same)[[f"{n}_gap" for n in SHOWN]] == 0.0).all(axis=None)
    assert (gap_table(one, other)["joint_rad_gap"] != 0.0).all()


def test_the_command_prints_and_writes_the_gap(finished, capsys):
    assert run(finished, "--backend", "on_ice", "--starts", 2, "--clips", 1) == 0
    out = capsys.readouterr().out
    assert "trained in mujoco_cpu" in out
    file = finished / "sim_to_sim" / "it_01" / "mujoco_cpu_to_on_ice.csv"
    table = pd.read_csv(file)
    assert len(table) == 2
    assert table["clip"][1] == ALL
    for cell in (f"{table['joint_rad_home'][0]:.3f}", f"{table['joint_rad_gap'][0]:+.3f}"):
        assert cell in out
    assert str(file) in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backend", "on_ise"), "did you mean 'on_ice'?"),
        (("--backend", "mujoco_cpu"), "trained in it; choose one of"),
        (("--backend", "elsewhere"), "simulator elsewhere: there is no ice here"),
        (("--backend", "on_ice", "--starts", "0"), "--starts: 0 is out of range"),
        (("--backend", "on_ice", "--clips", "0"), "--clips: 0 is out of range"),
        (("--backend", "on_ice", "--clips", "-1"), "--clips: -1 is out of range"),
        (("--backend", "on_ice", "--iteration", "7"), "no tracker is trained yet"),
        ((), "the following arguments are required: --backend"),
    ],
)
def test_wrong_words_are_named_in_one_line(finished, capsys, words, message):
    assert run(finished, *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_stage_is_still_there():
    assert is_stage(["--iteration", "0", "--recipe", "smoke"])
    assert not is_stage(["runs/quick", "--backend", "mujoco_warp"])
