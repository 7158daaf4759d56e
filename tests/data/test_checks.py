"""Checks: every fault, put into a good motion by hand, is found by its own check."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.data import checks
from parc_ray.data.checks import CHECKS, CheckConfig, Limit, judge, measure, require_usable, verdict
from parc_ray.data.importers import ImportOptions, import_path
from parc_ray.errors import InputError
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield


@pytest.fixture
def standing(character):
    """A character that stands on flat ground for two seconds."""
    return stand(character)


def stand(character, frames=60, height=0.0):
    skeleton = character.skeleton
    contacts = torch.zeros(frames, skeleton.num_bodies)
    contacts[:, list(character.feet)] = 1.0
    root = torch.tensor([0.0, 0.0, character.stand_height + height]).repeat(frames, 1)
    return MotionClip(
        clip_id="c",
        frames=MotionFrames(
            root_pos=root,
            root_rot=torch.tensor([0.0, 0.0, 0.0, 1.0]).repeat(frames, 1),
            dof=torch.zeros(frames, skeleton.num_dofs),
            contacts=contacts,
        ),
        fps=30.0,
        terrain=Heightfield.flat((21, 21)).translated([-4.0, -4.0, 0.0]),
    )


def with_frames(clip, **changes):
    return replace(clip, frames=replace(clip.frames, **changes))


def moved(clip, offset):
    return with_frames(clip, root_pos=clip.frames.root_pos + offset)


def test_a_still_stand_is_in_order(standing, character):
    values = measure(standing, character)
    assert set(values) == {check.name for check in CHECKS}
    assert verdict(judge(values)) == "ok", judge(values)
    for name in ("foot_float", "foot_sink", "penetration", "foot_slide", "root_speed", "y_up"):
        assert values[name] == pytest.approx(0.0, abs=1e-4)
    assert values["source_fps"] == 30.0


def test_every_check_has_a_limit_and_every_limit_a_check():
    assert {check.name for check in CHECKS} == set(vars(CheckConfig()))


@pytest.mark.parametrize("height", [0.1, 0.5])
def test_floating_and_sinking_are_measured_in_metres(standing, character, height):
    above = measure(moved(standing, torch.tensor([0.0, 0.0, height])), character)
    assert above["foot_float"] == pytest.approx(height, abs=2e-3)
    assert above["foot_sink"] == above["penetration"] == 0.0
    below = measure(moved(standing, torch.tensor([0.0, 0.0, -height])), character)
    assert below["foot_sink"] == pytest.approx(height, abs=2e-3)
    assert below["penetration"] == pytest.approx(height, abs=2e-3)
    assert below["penetration_max"] == pytest.approx(height, abs=2e-3)
    assert below["foot_float"] == 0.0
    expected = "warn" if height < 0.3 else "fail"
    for values, name in ((above, "foot_float"), (below, "foot_sink")):
        assert {f.name: f.severity for f in judge(values)}[name] == expected


def test_sliding_speed_is_that_of_the_glide(standing, character):
    t = torch.arange(60) / 30.0
    gliding = moved(standing, torch.stack((1.5 * t, 0 * t, 0 * t), -1))
    values = measure(gliding, character)
    assert values["foot_slide"] == pytest.approx(1.5, rel=1e-3)
    assert values["root_speed"] == pytest.approx(1.5, rel=1e-3)
    in_the_air = with_frames(gliding, contacts=torch.zeros_like(gliding.frames.contacts))
    assert measure(in_the_air, character)["foot_slide"] == 0.0


def test_a_teleport_is_a_speed_and_a_jerk(standing, character):
    root = standing.frames.root_pos.clone()
    root[30:, 0] += 2.0
    values = measure(with_frames(standing, root_pos=root), character)
    assert values["root_speed"] == pytest.approx(60.0, rel=1e-3)
    # third differences of a step of 2 m: 2, -4, 2 times 27000 per s^3, in three of 57 frames
    assert values["high_jerk"] == pytest.approx(100.0 * 3 / 57, rel=1e-5)
    with pytest.raises(InputError, match=r"'c': fails.*root_speed 60 m/s \(limit 20\).*metres"):
        require_usable("c", judge(values))


def test_joint_range_counts_pairs_beyond_two_degrees(standing, character):
    dof = standing.frames.dof.clone()
    high = character.skeleton.dof_limits[:, 1]
    dof[:30, 0] = high[0] + 0.02  # within the tolerance
    dof[30:, 0] = high[0] + 0.5
    values = measure(with_frames(standing, dof=dof), character, ground=False)
    assert values["joint_excess"] == pytest.approx(0.5, abs=1e-4)
    assert values["joint_range"] == pytest.approx(50.0 / dof.shape[1], rel=1e-4)
    assert "penetration" not in values


def test_form_is_checked_before_anything_else(standing, character):
    dof = standing.frames.dof.clone()
    dof[[3, 7], 0] = torch.tensor([float("nan"), float("inf")])
    values = measure(with_frames(standing, dof=dof), character)
    assert values == {"not_finite": 2.0, "wrong_sizes": 0.0}
    assert verdict(judge(values)) == "fail"
    narrow = measure(with_frames(standing, dof=dof[:, 1:]), character)
    assert narrow["wrong_sizes"] == 1.0
    with pytest.raises(InputError, match=r"not_finite 1 frames.*wrong_sizes 1 blocks"):
        require_usable("c", judge({"not_finite": 1.0, "wrong_sizes": 1.0}))


def test_quaternion_norms_and_frame_rates(standing, character):
    longer = with_frames(standing, root_rot=standing.frames.root_rot * 1.0005)
    found = {f.name: f for f in judge(measure(longer, character))}
    assert found["quat_norm"].severity == "warn"
    assert found["quat_norm"].value == pytest.approx(5e-4, rel=1e-2)
    for fps, severity in ((30.0, "ok"), (24.0, "ok"), (16.0, "warn"), (4.0, "fail")):
        slow = replace(standing, metrics={checks.SOURCE_FPS: fps})
        found = {f.name: f.severity for f in judge(measure(slow, character))}
        assert found["source_fps"] == severity


def test_findings_can_be_had_again_from_stored_metrics(standing, character):
    values = measure(moved(standing, torch.tensor([0.0, 0.0, 0.1])), character)
    assert judge(checks.as_metrics(values)) == judge(values)
    strict = CheckConfig(foot_float=Limit(warn=0.01, fail=0.05))
    assert verdict(judge(values)) == "warn"
    assert verdict(judge(checks.as_metrics(values), strict)) == "fail"
    assert judge({"tpl": 1.0}) == ()
    assert judge({"check_penetration": float("nan")})[0].severity == "fail"


def test_limits_must_be_ordered():
    with pytest.raises(InputError, match="warn <= fail"):
        Limit(warn=2.0, fail=1.0)
    with pytest.raises(InputError, match="fail <= warn"):
        Limit(warn=2.0, fail=3.0, below=True)


def test_penetration_of_a_tilted_body_is_the_deepest_point(humanoid):
    clip = stand(humanoid)
    lying = rot.quat_from_axis_angle(torch.tensor([0.0, 1.0, 0.0]), torch.tensor(1.57))
    clip = with_frames(clip, root_rot=lying.repeat(60, 1))
    root = clip.frames.root_pos.clone()
    root[:, 2] = 0.0  # the pelvis' centre at the floor: half of it below
    values = measure(with_frames(clip, root_pos=root), humanoid)
    assert 0.05 < values["penetration"] < 0.3


def test_published_motions_pass(humanoid, shared_data):
    options = ImportOptions(min_frames=2)
    names = ("climb00", "run13", "stairs02", "platform13", "dive_kong_00", "jog")
    files = [shared_data / "parc_clips" / f"humanoid_{name}.pkl" for name in names]
    files += sorted((shared_data / "formats" / "ms").glob("*.pkl"))
    clips = [clip for file in files for clip in import_path(file, humanoid, options)]
    verdicts = {clip.clip_id: verdict(judge(clip.metrics)) for clip in clips}
    assert verdicts.pop("sfu") == "warn"  # half a second that slides at 1.2 m/s
    assert set(verdicts.values()) == {"ok"}, verdicts
    assert len(verdicts) == 8
