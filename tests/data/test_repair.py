"""Repair: each fault is put into a written file, and what comes back is the motion before it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.data.checks import judge, verdict
from parc_ray.data.importers import ImportOptions, import_path, load_raw
from parc_ray.data.importers.raw import reading_to_repair
from parc_ray.data.repair import RepairConfig, repair_floor, repair_motion
from parc_ray.errors import InputError

from . import files

REPAIR = ImportOptions(repair=RepairConfig())
NAN = float("nan")


def dof_column(character, body, axis=0):
    """Column of a MimicKit frame that holds a body's first degree of freedom."""
    return 6 + character.skeleton.dof_slices[character.skeleton.body_index(body)].start + axis


def written(path, character, change=None, **options):
    files.mimickit(path, character, change=change, **options)
    return path


def spoil(*faults):
    """Put values into frames: (rows, columns, value or function)."""

    def change(data):
        block = np.array(data["frames"])
        for rows, columns, value in faults:
            block[rows, columns] = value(block[rows, columns]) if callable(value) else value
        data["frames"] = block

    return change


def both(tmp_path, character, *faults, frames=60):
    """The motion without and with faults, the latter repaired; and what was said of it."""
    good = import_path(written(tmp_path / "good.pkl", character, frames=frames), character)[0]
    path = written(tmp_path / "bad.pkl", character, spoil(*faults), frames=frames)
    mended = import_path(path, character, REPAIR)[0]
    return good, mended, mended.provenance.notes


def same(a, b, tolerance):
    assert torch.allclose(a.frames.dof, b.frames.dof, atol=tolerance)
    assert torch.allclose(a.frames.root_pos, b.frames.root_pos, atol=tolerance)
    assert float(rot.quat_angle(a.frames.root_rot, b.frames.root_rot).max()) < tolerance


def test_a_neck_without_numbers_becomes_zero(tmp_path, humanoid):
    """The published walk (docs/design/data.md, Traps 1)."""
    neck = dof_column(humanoid, "head")
    columns = slice(neck, neck + 3)
    path = written(tmp_path / "walk.pkl", humanoid, spoil((slice(None), columns, NAN)))
    with pytest.raises(InputError, match=r"walk\.pkl: frames: NaN or infinite in 40 of 40"):
        import_path(path, humanoid)
    clip = import_path(path, humanoid, REPAIR)[0]
    assert "repaired: joint head without numbers set to zero" in clip.provenance.notes
    assert torch.count_nonzero(clip.frames.dof[:, columns.start - 6 : columns.stop - 6]) == 0
    good = import_path(written(tmp_path / "good.pkl", humanoid), humanoid)[0]
    others = [c for c in range(clip.frames.dof.shape[1]) if not neck - 6 <= c < neck - 3]
    assert torch.equal(clip.frames.dof[:, others], good.frames.dof[:, others])
    assert verdict(judge(clip.metrics)) != "fail"


def test_a_leg_or_root_without_numbers_is_refused(tmp_path, humanoid):
    knee = dof_column(humanoid, "left_shin")
    path = written(tmp_path / "a.pkl", humanoid, spoil((slice(None), knee, NAN)))
    with pytest.raises(InputError, match=r"a\.pkl: cannot be repaired: joint left_shin: no frame"):
        import_path(path, humanoid, REPAIR)
    path = written(tmp_path / "a.pkl", humanoid, spoil((slice(None), 2, NAN)))
    with pytest.raises(InputError, match="root position z: no frame has numbers"):
        import_path(path, humanoid, REPAIR)


def test_short_gaps_are_interpolated(tmp_path, humanoid):
    everything = slice(None)
    good, mended, notes = both(
        tmp_path, humanoid, (slice(20, 24), everything, NAN), (0, 2, NAN), (59, 4, math.inf)
    )
    same(good, mended, 0.02)
    untouched = [t for t in range(60) if t not in (0, 20, 21, 22, 23, 59)]
    assert torch.equal(mended.frames.dof[untouched], good.frames.dof[untouched])
    assert "repaired: root position z: 5 frames interpolated" in notes
    assert "repaired: root rotation: 5 frames interpolated" in notes
    assert "repaired: joint left_shin: 4 frames interpolated" in notes


def test_a_gap_is_filled_along_the_arc(tmp_path, humanoid):
    """Half way between two rotations about different axes, as slerp has it."""
    arm = dof_column(humanoid, "right_upper_arm")
    a, b = np.array([0.9, 0.0, 0.0]), np.array([0.0, 0.8, 0.2])
    path = written(
        tmp_path / "a.pkl",
        humanoid,
        spoil(
            (slice(0, 20), slice(arm, arm + 3), a),
            (20, arm, NAN),
            (slice(21, None), slice(arm, arm + 3), b),
        ),
    )
    clip = import_path(path, humanoid, REPAIR)[0]
    ends = rot.quat_from_exp(torch.tensor(np.stack([a, b])))
    middle = rot.slerp(ends[0], ends[1], torch.tensor(0.5, dtype=torch.float64))
    found = rot.quat_from_exp(clip.frames.dof[20, arm - 6 : arm - 3].double())
    assert float(rot.quat_angle(middle, found)) < 1e-3


def test_long_gaps_are_refused(tmp_path, humanoid):
    path = written(tmp_path / "a.pkl", humanoid, spoil((slice(5, 25), 8, NAN)), frames=60)
    with pytest.raises(InputError, match=r"joint \w+: no usable numbers in 20 frames.*0\.67 s"):
        import_path(path, humanoid, REPAIR)


def test_jumps_of_a_frame_are_smoothed(tmp_path, humanoid):
    arm, root_x = dof_column(humanoid, "left_upper_arm"), 0
    good, mended, notes = both(
        tmp_path,
        humanoid,
        (30, slice(arm, arm + 3), lambda v: v + 0.9),
        (10, root_x, lambda v: v + 0.5),
        (45, 5, lambda v: v + 2.0),
    )
    same(good, mended, 0.02)
    for what in ("joint left_upper_arm", "root position x", "root rotation"):
        assert f"repaired: {what}: 1 frames jumps smoothed" in notes
    raw = load_raw(tmp_path / "bad.pkl", humanoid)
    assert float(raw.dof[30, arm - 6]) > 0.8  # without --repair the file is read as it is


def test_short_excursions_from_the_range_are_faults_and_long_ones_are_not(tmp_path, humanoid):
    knee = dof_column(humanoid, "right_shin")
    low, high = humanoid.skeleton.dof_limits[knee - 6].tolist()
    beyond = high + 0.55 if abs(high) < abs(low) else low - 0.55
    good, mended, notes = both(tmp_path, humanoid, (slice(30, 33), knee, beyond))
    same(good, mended, 0.03)
    assert "joint right_shin: 3 frames interpolated" in notes
    _, kept, notes = both(tmp_path, humanoid, (slice(30, 45), knee, beyond))
    assert float(kept.frames.dof[37, knee - 6]) == pytest.approx(beyond, abs=1e-5)
    assert "repaired" not in notes


def test_quaternions_are_normalised_and_flips_undone(tmp_path, humanoid):
    def change(parts):
        motion = parts["motion_data"]
        motion["joint_rot"][5] *= 1.5
        motion["root_rot"][10:20] *= -1.0
        motion["root_rot"][25] = 0.0

    files.parc_ms(tmp_path / "a.pkl", humanoid, change=change)
    with pytest.raises(InputError, match="norm"):
        import_path(tmp_path / "a.pkl", humanoid)
    clip = import_path(tmp_path / "a.pkl", humanoid, REPAIR)[0]
    joints = humanoid.skeleton.num_joints
    assert f"{joints} quaternions of motion_data.joint_rot normalised" in clip.provenance.notes
    assert "2 sign flips of motion_data.root_rot undone" in clip.provenance.notes
    assert "root rotation: 1 frames interpolated" in clip.provenance.notes
    identity = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert torch.allclose(clip.frames.root_rot, identity.expand(40, 4), atol=1e-6)
    assert float(clip.frames.dof.abs().max()) < 1e-6


@pytest.mark.parametrize("shift", [0.2, -0.25])
def test_a_motion_off_its_floor_is_moved(tmp_path, humanoid, shift):
    def change(parts):
        parts["motion_data"]["root_pos"][:, 2] += shift

    plateau = np.full((4, 3), 0.8, dtype=np.float32)
    files.parc_ms(tmp_path / "a.pkl", humanoid, change=change, hf=plateau)
    doubtful = import_path(tmp_path / "a.pkl", humanoid)[0]
    assert verdict(judge(doubtful.metrics)) == "warn"
    clip = import_path(tmp_path / "a.pkl", humanoid, REPAIR)[0]
    assert f"repaired: motion moved by {-shift:+.3f} m onto its terrain" in clip.provenance.notes
    assert float(clip.frames.root_pos[0, 2]) == pytest.approx(0.8 + humanoid.stand_height, abs=2e-3)
    assert verdict(judge(clip.metrics)) == "ok"


def test_a_recording_on_a_shifted_terrain_is_put_back(humanoid, shared_data):
    """As in the file whose terrain is 0.2 m off on purpose (docs/design/data.md, Traps 5)."""
    path = shared_data / "formats" / "ms" / "dec2024_teaser_717_1_opt_dm.pkl"
    clip = import_path(path, humanoid)[0]
    same_clip, said = repair_floor(clip, humanoid)
    assert same_clip is clip
    assert said == []
    off = replace(clip, terrain=clip.terrain.translated([0.0, 0.0, 0.2]))
    back, said = repair_floor(off, humanoid)
    assert len(said) == 1
    moved = float((back.frames.root_pos - clip.frames.root_pos)[0, 2])
    assert moved == pytest.approx(0.2, abs=0.01)


def test_labels_and_paths_with_nan_are_dropped(tmp_path, humanoid):
    def change(parts):
        parts["motion_data"]["body_contacts"][3, 2] = np.nan
        parts["misc_data"]["path_nodes"][1] = np.nan

    files.parc_ms(tmp_path / "a.pkl", humanoid, change=change)
    clip = import_path(tmp_path / "a.pkl", humanoid, REPAIR)[0]
    assert clip.path_nodes is None
    assert set(clip.frames.contacts.unique().tolist()) == {0.0, 1.0}
    assert "contacts with NaN dropped" in clip.provenance.notes
    assert "path nodes with NaN dropped" in clip.provenance.notes


def test_what_is_sound_stays_bit_for_bit(tmp_path, character):
    raw = load_raw(written(tmp_path / "a.pkl", character), character)
    again, said = repair_motion(raw, character)
    assert again is raw
    assert said == []
    plain = import_path(tmp_path / "a.pkl", character)[0]
    mended = import_path(tmp_path / "a.pkl", character, REPAIR)[0]
    assert torch.equal(plain.frames.dof, mended.frames.dof)
    assert mended.provenance == plain.provenance


def test_published_motions_need_no_repair(humanoid, shared_data):
    for path in sorted(shared_data.glob("parc_clips/*.pkl")):
        with reading_to_repair() as said:
            raw = load_raw(path, humanoid)
        assert said == []
        assert repair_motion(raw, humanoid) == (raw, []), path.name


def test_reading_is_lenient_for_repair_only(tmp_path, humanoid):
    path = written(tmp_path / "a.pkl", humanoid, spoil((3, 8, NAN)))
    with reading_to_repair():
        assert bool(torch.isnan(load_raw(path, humanoid).dof).any())
    with pytest.raises(InputError, match="NaN"):
        load_raw(path, humanoid)
    with reading_to_repair():  # the shape and the frame rate are never let pass
        files.mimickit(tmp_path / "b.pkl", humanoid, change=lambda d: d.update(fps=NAN))
        with pytest.raises(InputError, match="frame rate"):
            load_raw(tmp_path / "b.pkl", humanoid)
        files.mimickit(tmp_path / "b.pkl", humanoid, change=lambda d: d["frames"][0].pop())
        with pytest.raises(InputError, match="block of numbers"):
            load_raw(tmp_path / "b.pkl", humanoid)


def test_thresholds_are_positive():
    with pytest.raises(InputError, match="max_gap_s"):
        RepairConfig(max_gap_s=0.0)
