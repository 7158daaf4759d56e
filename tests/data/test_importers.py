"""Importers: what real and made files become, and what bad files are told."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.character.character import load_character
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.importers import ImportOptions, detect, import_path, load_raw
from parc_ray.data.importers.naming import class_of, take_of
from parc_ray.data.store import save_dataset
from parc_ray.errors import InputError
from parc_ray.motion.contacts import body_ground_distance

from . import files


def fk(character, motion):
    return fk_from_dof(
        character.skeleton, motion.root_pos.double(), motion.root_rot.double(), motion.dof.double()
    )[0]


def index(character, name):
    return character.skeleton.body_index(name)


# ---- formats -------------------------------------------------------------------------------


def test_mimickit_values_are_taken_as_they_are(tmp_path, humanoid):
    block = files.mimickit(tmp_path / "humanoid_walk7.pkl", humanoid)
    clip = import_path(tmp_path / "humanoid_walk7.pkl", humanoid)[0]
    assert (clip.clip_id, clip.fps, clip.loop, clip.num_frames) == (
        "humanoid_walk7",
        30,
        "clamp",
        40,
    )
    np.testing.assert_allclose(clip.frames.dof, block[:, 6:], atol=1e-6)
    np.testing.assert_allclose(clip.frames.root_pos[:, :2], block[:, :2], atol=1e-6)
    assert clip.provenance.class_name == "walk"
    assert clip.provenance.maker == "import"
    assert len(clip.provenance.hashes["file"]) == 64


def test_mimickit_frames_as_tensor_and_numpy(tmp_path, humanoid):
    block = files.mimickit(tmp_path / "a.pkl", humanoid)
    for kind in (torch.tensor(block), block.astype(np.float32)):
        files.mimickit(tmp_path / "b.pkl", humanoid, change=lambda d, k=kind: d.update(frames=k))
        raw = load_raw(tmp_path / "b.pkl", humanoid)
        np.testing.assert_allclose(raw.dof, block[:, 6:], atol=1e-6)


def test_parc_motion_keeps_terrain_contacts_and_path(tmp_path, humanoid):
    parts = files.parc_ms(tmp_path / "m.pkl", humanoid)
    clip = import_path(tmp_path / "m.pkl", humanoid)[0]
    np.testing.assert_array_equal(clip.frames.root_pos, parts["motion_data"]["root_pos"])
    np.testing.assert_array_equal(clip.frames.contacts, parts["motion_data"]["body_contacts"])
    np.testing.assert_array_equal(clip.terrain.heights, parts["terrain_data"]["hf"])
    np.testing.assert_array_equal(clip.terrain.origin, parts["terrain_data"]["min_point"])
    assert clip.terrain.cell_size == 0.4
    assert clip.path_nodes.shape == (2, 3)
    assert torch.count_nonzero(clip.frames.dof) == 0
    fine = import_path(tmp_path / "m.pkl", humanoid, ImportOptions(cell_size=0.2))[0]
    assert fine.terrain.shape == (8, 6)
    where = clip.terrain.cell_centers() + 0.09
    assert torch.equal(fine.terrain.height_at(where), clip.terrain.heights)


def test_deepmimic_neutral_pose_and_hinges(tmp_path, humanoid):
    rows = files.deepmimic_rows()
    rows[:, 1:4] = [1.0, 0.9, 2.0]  # y up there: x forward, z to the right
    rows[:, files.DM["right_knee"]] = rows[:, files.DM["left_knee"]] = -1.0
    rows[:, files.DM["right_elbow"]] = rows[:, files.DM["left_elbow"]] = 1.0
    files.deepmimic(tmp_path / "p.txt", rows)
    raw = load_raw(tmp_path / "p.txt", humanoid)
    np.testing.assert_allclose(raw.root_pos[0], [1.0, -2.0, 0.9])
    pos = fk(humanoid, raw)[0]
    for side in ("right", "left"):
        upper, lower, hand = (
            pos[index(humanoid, f"{side}_{part}")] for part in ("upper_arm", "lower_arm", "hand")
        )
        arm = lower - upper
        assert arm[2] < -0.99 * arm.norm(), "arms hang down"
        assert hand[0] - lower[0] > 0.1, "elbows bend forward"
        knee, ankle = pos[index(humanoid, f"{side}_shin")], pos[index(humanoid, f"{side}_foot")]
        assert ankle[0] - knee[0] < -0.3, "knees bend backward"


def test_deepmimic_uneven_durations_keep_their_times(tmp_path, humanoid):
    rows = files.deepmimic_rows(frames=31)
    rows[10, 0] = 2 / 30
    times = np.concatenate(([0.0], np.cumsum(rows[:-1, 0])))
    rows[:, 1] = 2.0 * times  # 2 m/s throughout
    rows[-1, 0] = 0.0
    files.deepmimic(tmp_path / "p.txt", rows)
    raw = load_raw(tmp_path / "p.txt", humanoid)
    assert len(raw.root_pos) == 32
    np.testing.assert_allclose(raw.root_pos[:, 0], 2.0 * np.arange(32) / 30, atol=1e-9)


def test_twins_of_two_formats_agree(shared_data, humanoid):
    """The same jump as DeepMimic text and MimicKit pickle, converted by others."""
    text = load_raw(shared_data / "formats/deepmimic/humanoid3d_jump.txt", humanoid)
    pkl = load_raw(shared_data / "parc_clips/humanoid_jump.pkl", humanoid)
    assert text.loop == pkl.loop == "wrap"
    assert text.fps == pytest.approx(60.0024, abs=1e-3)
    distance = (fk(humanoid, text) - fk(humanoid, pkl)).norm(dim=-1)
    assert distance.max() < 0.003
    assert distance.mean() < 1e-4
    a, b = (
        import_path(shared_data / p, humanoid)[0]
        for p in ("formats/deepmimic/humanoid3d_jump.txt", "parc_clips/humanoid_jump.pkl")
    )
    assert a.provenance.take == b.provenance.take == "jump"
    assert a.provenance.class_name == b.provenance.class_name == "jump"


def test_published_parc_files(shared_data, humanoid):
    clip = import_path(shared_data / "formats/ms/dec2024_teaser_717_1_opt_dm.pkl", humanoid)[0]
    assert clip.num_frames == 142
    assert clip.terrain.shape == (18, 15)
    share = clip.frames.contacts.mean(0)
    feet = sorted(float(share[f]) for f in humanoid.feet)
    assert feet == pytest.approx([0.48, 0.63], abs=0.006)  # shares of the file itself
    touching = clip.frames.contacts[:, list(humanoid.feet)] == 1
    distance = body_ground_distance(humanoid, clip.frames, clip.terrain)[:, list(humanoid.feet)]
    assert distance[touching].median() < 0.005
    # worked numbers of one frame
    np.testing.assert_allclose(clip.frames.root_pos[60], [-3.866, 0.303, 0.505], atol=1e-3)
    foot = fk(humanoid, clip.frames)[60, index(humanoid, "left_foot"), 2]
    assert float(foot) == pytest.approx(-0.2193, abs=1e-3)
    roof = import_path(shared_data / "formats/ms/civilization.pkl", humanoid)[0]
    assert roof.frames.root_pos[:, 2].min() > 5.4
    assert roof.path_nodes.shape == (60, 3)


def test_sfu_is_for_evaluation_only(shared_data, humanoid):
    path = shared_data / "formats/ms/sfu.pkl"
    with pytest.raises(InputError, match=r"sfu\.pkl.*15 frames.*16"):
        import_path(path, humanoid)
    assert import_path(path, humanoid, ImportOptions(min_frames=2))[0].num_frames == 15


def test_all_parc_clips(shared_data, humanoid):
    clips = import_path(shared_data / "parc_clips", humanoid)
    assert len(clips) == 23
    assert all(clip.fps == 30.0 for clip in clips)
    by_id = {clip.clip_id: clip for clip in clips}
    walk = by_id["humanoid_long_walk3"]  # 2130 frames at 120 fps
    assert walk.num_frames == 533
    assert walk.duration_s == pytest.approx(17.733, abs=0.001)
    for clip in clips:
        assert torch.equal(clip.frames.contacts, clip.frames.contacts.round())
        norm = clip.frames.root_rot.norm(dim=-1)
        assert (norm - 1).abs().max() < 1e-5
        distance = body_ground_distance(humanoid, clip.frames, clip.terrain)
        assert distance.min() < 0.02, clip.clip_id
        assert clip.frames.contacts[:, list(humanoid.feet)].mean() > 0.15, clip.clip_id
    names = {clip.provenance.class_name for clip in clips}
    assert names == {"walk", "run", "jump", "platform", "stairs", "climb", "vault"}


# ---- resampling and placing ----------------------------------------------------------------


def test_resampling_follows_the_sphere(tmp_path, humanoid):
    """A steady turn about z at 24 fps stays a steady turn at 30 fps."""
    rate = 3.0

    def turn(data):
        block = np.array(data["frames"])
        block[:, 5] = rate * np.arange(len(block)) / 24
        data.update(frames=block, fps=24)

    files.mimickit(tmp_path / "spin.pkl", humanoid, frames=25, change=turn)
    clip = import_path(tmp_path / "spin.pkl", humanoid)[0]
    assert clip.num_frames == 31
    expected = rot.wrap_angle(rate * torch.arange(31, dtype=torch.float64) / 30)
    found = rot.heading_angle(clip.frames.root_rot.double())
    assert rot.wrap_angle(found - expected).abs().max() < 1e-4


def test_motion_is_put_on_its_floor(tmp_path, humanoid):
    def lift(data):
        block = np.zeros_like(np.array(data["frames"]))
        block[:, 2] = humanoid.stand_height + 1.7
        data.update(frames=block)

    files.mimickit(tmp_path / "stand.pkl", humanoid, change=lift)
    clip = import_path(tmp_path / "stand.pkl", humanoid)[0]
    assert float(clip.frames.root_pos[0, 2]) == pytest.approx(humanoid.stand_height, abs=1e-4)
    assert torch.allclose(clip.terrain.heights, torch.zeros(()), atol=1e-5)
    feet = list(humanoid.feet)
    assert clip.frames.contacts[:, feet].min() == 1
    others = [b for b in range(humanoid.skeleton.num_bodies) if b not in feet]
    assert clip.frames.contacts[:, others].max() == 0


def test_unrolling_loops(tmp_path, humanoid):
    files.mimickit(tmp_path / "walk.pkl", humanoid, frames=31, loop=1)
    looped = import_path(tmp_path / "walk.pkl", humanoid)[0]
    long = import_path(tmp_path / "walk.pkl", humanoid, ImportOptions(unroll_s=3.0))[0]
    assert (looped.loop, looped.num_frames) == ("wrap", 31)
    assert (long.loop, long.num_frames) == ("clamp", 91)
    assert float(long.frames.root_pos[-1, 0]) == pytest.approx(3.0, abs=1e-4)
    assert bool(long.terrain.contains(long.frames.root_pos[:, :2]).all())


def test_another_character(tmp_path):
    """Other bodies, dofs and feet: pickles load by the character's own layout."""
    waddler = load_character(Path(__file__).parents[1] / "assets" / "waddler.xml")
    skeleton = waddler.skeleton

    def stand(data):
        block = np.zeros_like(np.array(data["frames"]))
        block[:, 2] = waddler.stand_height + 0.5
        data.update(frames=block)

    files.mimickit(tmp_path / "stand.pkl", waddler, change=stand)
    files.parc_ms(tmp_path / "ms.pkl", waddler)
    grounded, given = sorted(import_path(tmp_path, waddler), key=lambda c: c.clip_id)[::-1]
    assert grounded.frames.dof.shape == (40, skeleton.num_dofs)
    assert float(grounded.frames.root_pos[0, 2]) == pytest.approx(waddler.stand_height, abs=1e-3)
    assert grounded.frames.contacts[:, list(waddler.feet)].min() == 1
    assert given.frames.contacts.shape == (40, skeleton.num_bodies)
    files.deepmimic(tmp_path / "d.txt", files.deepmimic_rows())
    with pytest.raises(InputError, match="has no bodies torso"):
        import_path(tmp_path / "d.txt", waddler)


# ---- directories and names -----------------------------------------------------------------


def test_directories(tmp_path, humanoid):
    (tmp_path / "walks").mkdir()
    (tmp_path / "old_ignore").mkdir()
    files.mimickit(tmp_path / "walks" / "a.pkl", humanoid)
    files.mimickit(tmp_path / "old_ignore" / "b.pkl", humanoid)
    files.mimickit(tmp_path / "humanoid_run_b1.pkl", humanoid)
    files.deepmimic(tmp_path / "humanoid_run_b1.txt", files.deepmimic_rows())
    (tmp_path / "README.txt").write_text("hello")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    clips = {c.clip_id: c.provenance.class_name for c in import_path(tmp_path, humanoid)}
    assert clips == {
        "humanoid_run_b1.pkl": "run",
        "humanoid_run_b1.txt": "run",
        "walks/a": "walks",
    }


def test_short_files_can_be_passed_over_and_no_others(tmp_path, humanoid):
    files.mimickit(tmp_path / "good.pkl", humanoid)
    files.mimickit(tmp_path / "short.pkl", humanoid, frames=5)
    too_short = []
    clips = import_path(tmp_path, humanoid, too_short=too_short)
    assert [c.clip_id for c in clips] == ["good"]
    assert len(too_short) == 1
    assert "short.pkl" in too_short[0]
    assert "5 frames" in too_short[0]
    with pytest.raises(InputError, match=r"short\.pkl"):
        import_path(tmp_path, humanoid)
    (tmp_path / "too short frames.pkl").write_bytes(b"\x80\x04oops")
    with pytest.raises(InputError, match="not a readable pickle"):
        import_path(tmp_path, humanoid, too_short=[])


def test_a_data_set_of_our_own(tmp_path, humanoid):
    files.mimickit(tmp_path / "a.pkl", humanoid)
    clips = import_path(tmp_path / "a.pkl", humanoid)
    save_dataset(tmp_path / "set", "D", clips, humanoid.digest)
    for path in (tmp_path / "set", tmp_path / "set" / "manifest.json"):
        again = import_path(path, humanoid)
        assert torch.equal(again[0].frames.dof, clips[0].frames.dof)
    save_dataset(tmp_path / "other", "D", clips, "another character")
    with pytest.raises(InputError, match="character"):
        import_path(tmp_path / "other", humanoid)


@pytest.mark.parametrize(
    ("stem", "label", "take"),
    [
        ("humanoid_run00", "run", "run00"),
        ("humanoid_run31", "run", "run00"),
        ("humanoid_run44_flipped", "run", "run13"),
        ("humanoid_run_jump_gap00", "jump", "run_jump_gap00"),
        ("humanoid_dash_vault00", "vault", "dash_vault00"),
        ("humanoid_dive_kong_00", "vault", "dive_kong_00"),
        ("humanoid_stairs06", "stairs", "stairs05"),
        ("humanoid_platform22_flipped", "platform", "platform05"),
        ("humanoid3d_walk", "walk", "walk"),
        ("02_01", "motion", "02_01"),
        ("amp_humanoid_walk", "walk", "walk"),
        ("humanoid3d_getup_faceup", "getup", "getup_faceup"),
        ("humanoid3d_spinkick", "spinkick", "spinkick"),
        ("dec2024_teaser_717_1_opt_dm", "dec2024_teaser_717", "dec2024_teaser_717_1"),
    ],
)
def test_names(stem, label, take):
    assert class_of(stem) == label
    assert take_of(stem) == take


def test_numbers_take_their_class_from_the_directory(tmp_path, humanoid):
    (tmp_path / "cmu").mkdir()
    files.mimickit(tmp_path / "cmu" / "02_01.pkl", humanoid)
    (alone,) = import_path(tmp_path / "cmu", humanoid)
    (below,) = import_path(tmp_path, humanoid)
    assert alone.provenance.class_name == below.provenance.class_name == "cmu"
    assert class_of("02_01", "02") == "motion"
    assert class_of("walk_02", "cmu") == "walk"


# ---- bad input -----------------------------------------------------------------------------


class _Hostile:
    def __reduce__(self):
        return os.system, ("touch hacked",)


def _set(key, value):
    return lambda data: data.update({key: value})


def _motion(key, value):
    def change(parts):
        parts["motion_data"][key] = value(parts["motion_data"][key])

    return change


def _spoil(index, number):
    def change(array):
        array = np.array(array)
        array[index] = number
        return array

    return change


MIMICKIT_BAD = {
    "nan": (lambda d: d["frames"][3].__setitem__(9, float("nan")), r"frames: NaN.*1 of 40.*column"),
    "columns": (lambda d: [row.append(0.0) for row in d["frames"]], r"shape 40 x 35; any x 34"),
    "ragged": (lambda d: d["frames"][3].append(0.0), "not a block of numbers"),
    "text": (_set("frames", "hello"), "not a block of numbers"),
    "no fps": (lambda d: d.pop("fps"), "field 'fps' is missing"),
    "fps": (_set("fps", 0), "fps: 0 is no frame rate"),
    "loop": (_set("loop_mode", 7), "loop_mode: 7"),
    "short": (
        lambda d: d.update(frames=d["frames"][:15]),
        "too short: 15 frames at 30 fps; at least 16",
    ),
}


@pytest.mark.parametrize("case", list(MIMICKIT_BAD))
def test_bad_mimickit_files(case, tmp_path, humanoid):
    change, message = MIMICKIT_BAD[case]
    files.mimickit(tmp_path / "bad.pkl", humanoid, change=change)
    with pytest.raises(InputError, match=r"bad\.pkl.*" + message) as caught:
        import_path(tmp_path / "bad.pkl", humanoid)
    assert "\n" not in str(caught.value)


PARC_BAD = {
    "joints": (_motion("joint_rot", lambda a: a[:, :-1]), r"joint_rot: shape 40 x 13 x 4"),
    "nan": (_motion("root_pos", _spoil((5, 2), np.nan)), r"root_pos: NaN or infinite in 1 of 40"),
    "norm": (_motion("root_rot", lambda a: a * 2), r"root_rot: quaternion .* norm 2"),
    "joint norm": (_motion("joint_rot", _spoil((0, 2), 0)), r"joint_rot: quaternion 2 has norm 0"),
    "contacts": (_motion("body_contacts", lambda a: a[:, 1:]), "body_contacts: shape"),
    "loop": (_motion("loop_mode", lambda a: "BOUNCE"), "loop_mode"),
    "no motion": (_set("motion_data", None), "motion_data is missing"),
    "terrain": (lambda p: p["terrain_data"].pop("dx"), "field 'dx' is missing"),
}


@pytest.mark.parametrize("case", list(PARC_BAD))
def test_bad_parc_files(case, tmp_path, humanoid):
    change, message = PARC_BAD[case]
    files.parc_ms(tmp_path / "bad.pkl", humanoid, change=change)
    with pytest.raises(InputError, match=r"bad\.pkl.*" + message):
        import_path(tmp_path / "bad.pkl", humanoid)


def test_heightfield_with_nan(tmp_path, humanoid):
    heights = np.zeros((4, 3), dtype=np.float32)
    heights[1, 2] = np.nan
    files.parc_ms(tmp_path / "bad.pkl", humanoid, hf=heights)
    with pytest.raises(InputError, match=r"bad\.pkl.*heights.*NaN.*\(1, 2\)"):
        import_path(tmp_path / "bad.pkl", humanoid)


@pytest.mark.parametrize("where", ["outer", "motion_data", "misc_data"])
def test_hostile_pickles(where, tmp_path, humanoid, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if where == "outer":
        files.mimickit(tmp_path / "bad.pkl", humanoid, change=_set("frames", _Hostile()))
    else:
        files.parc_ms(tmp_path / "bad.pkl", humanoid, change=_set(where, {"x": _Hostile()}))
    with pytest.raises(InputError, match=r"bad\.pkl.*system.*could run code"):
        import_path(tmp_path, humanoid)
    (tmp_path / "bad.pkl").write_bytes(pickle.dumps(_Hostile()))
    with pytest.raises(InputError, match=r"could run code"):
        detect(tmp_path / "bad.pkl")
    assert os.listdir(tmp_path) == ["bad.pkl"]


def test_missing_empty_and_foreign(tmp_path, humanoid):
    with pytest.raises(InputError, match="nothing_here: does not exist"):
        import_path(tmp_path / "nothing_here", humanoid)
    with pytest.raises(InputError, match="no motion files"):
        import_path(tmp_path, humanoid)
    (tmp_path / "a.pkl").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.pkl: file is empty"):
        import_path(tmp_path, humanoid)
    (tmp_path / "a.pkl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(InputError, match=r"a\.pkl.*git lfs pull"):
        import_path(tmp_path, humanoid)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"poses": 1}))
    with pytest.raises(InputError, match=r"unknown kind \(fields: poses\)"):
        import_path(tmp_path, humanoid)
    (tmp_path / "a.c3d").write_text("\x02\x50")
    with pytest.raises(InputError, match="unknown format"):
        import_path(tmp_path / "a.c3d", humanoid)


def test_truncated_files(tmp_path, humanoid):
    whole = tmp_path / "whole.pkl"
    for write in (files.mimickit, files.parc_ms):
        write(whole, humanoid)
        data = whole.read_bytes()
        for share in (0.3, 0.9, 0.999):
            (tmp_path / "cut.pkl").write_bytes(data[: int(share * len(data))])
            with pytest.raises(InputError, match=r"cut\.pkl.*undamaged"):
                import_path(tmp_path / "cut.pkl", humanoid)
    files.deepmimic(tmp_path / "cut.txt", files.deepmimic_rows())
    text = (tmp_path / "cut.txt").read_text()
    (tmp_path / "cut.txt").write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match=r"cut\.txt: not JSON"):
        import_path(tmp_path / "cut.txt", humanoid)


def test_bad_deepmimic_files(tmp_path, humanoid):
    path = tmp_path / "bad.txt"
    cases = {
        r"40 frames|shape 20 x 43; any x 44": files.deepmimic_rows()[:, :-1],
        r"root rotation: quaternion 2 has norm 0": files.deepmimic_rows(),
        r"duration of frame 4 is 0": files.deepmimic_rows(),
        r"NaN": files.deepmimic_rows(),
    }
    rows = list(cases.values())
    rows[1][2, 4:8] = 0
    rows[2][4, 0] = 0
    rows[3][4, 3] = np.nan
    for message, block in cases.items():
        files.deepmimic(path, block)
        with pytest.raises(InputError, match=message):
            import_path(path, humanoid)


def test_options_are_checked():
    for bad in ({"fps": 0}, {"min_frames": 1}, {"unroll_s": -1.0}):
        with pytest.raises(InputError, match=next(iter(bad))):
            ImportOptions(**bad)


def test_sources_stay_untouched(tmp_path, humanoid, shared_data):
    shutil.copy(shared_data / "parc_clips/humanoid_jog.pkl", tmp_path / "j.pkl")
    before = (tmp_path / "j.pkl").read_bytes()
    import_path(tmp_path, humanoid)
    assert (tmp_path / "j.pkl").read_bytes() == before
    assert os.listdir(tmp_path) == ["j.pkl"]
