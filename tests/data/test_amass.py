"""AMASS archives: poses whose joints are known, sizes found from steps, broken files."""

from __future__ import annotations

import io
import random
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from parc_ray.character import rotations as rot
from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.importers import ImportOptions, detect, import_path, load_raw
from parc_ray.data.importers import amass as importer
from parc_ray.errors import InputError

UPRIGHT = (np.pi / 2, 0.0, 0.0)
"""Root rotation that stands SMPL (y up) up in a world of z up; it then faces -y."""
HIP, KNEE, SHOULDER, ELBOW = ({"left": k, "right": k + 1} for k in (1, 4, 16, 18))


def poses_of(frames=40, width=156):
    poses = np.zeros((frames, width))
    poses[:, :3] = UPRIGHT
    return poses


def write(path, *, frames=40, poses=None, drop=(), **changes):
    poses = poses_of(frames) if poses is None else poses
    content = {
        "poses": poses,
        "trans": np.tile([0.5, 1.0, 0.92], (len(poses), 1)),
        "mocap_framerate": np.float64(60.0),
        "betas": np.zeros(16),
        "dmpls": np.zeros((len(poses), 8)),
        "gender": np.array("neutral"),
        **changes,
    }
    np.savez(path, **{k: v for k, v in content.items() if k not in drop})
    return path


def bodies(character, raw):
    return fk_from_dof(character.skeleton, raw.root_pos, raw.root_rot, raw.dof)[0]


def body(character, name):
    return character.skeleton.body_index(name)


# ---- poses ---------------------------------------------------------------------------------


def test_joints_by_matrices(tmp_path):
    """The mean body in SMPL's own axes, composed by another library."""
    rng = np.random.default_rng(1)
    poses = rng.normal(0, 0.4, (5, 165))
    trans = rng.normal(0, 1, (5, 3))
    source = importer.read_source(write(tmp_path / "a.npz", poses=poses, trans=trans))
    place = source.forward()[0].numpy()
    names, parents, offsets = importer._skeleton()
    for t in range(5):
        turns, where = {}, {}
        for name, parent, (forward, left, up) in zip(names, parents, offsets.tolist(), strict=True):
            own = Rotation.from_rotvec(poses[t].reshape(-1, 3)[importer.JOINTS.index(name)])
            if parent < 0:
                turns[name] = own
                where[name] = trans[t] + np.array(importer._ROOT_SHIFT)
            else:
                above = names[parent]
                turns[name] = turns[above] * own
                where[name] = where[above] + turns[above].apply([left, up, forward])
        for name, position in where.items():
            np.testing.assert_allclose(place[t, names.index(name)], position, atol=1e-9)


def test_the_mean_body_has_the_proportions_of_a_person():
    source_names, parents, offsets = importer._skeleton()
    length = {n: float(o.norm()) for n, o in zip(source_names, offsets, strict=True)}
    assert 0.74 < length["left_knee"] + length["left_ankle"] < 0.82
    assert 0.46 < length["left_elbow"] + length["left_wrist"] < 0.54
    for k, name in enumerate(source_names):
        if name.startswith("left_"):
            other = source_names.index(name.replace("left", "right"))
            mirrored = offsets[other] * torch.tensor([1.0, -1.0, 1.0])
            torch.testing.assert_close(offsets[k], mirrored)
            up, twin = source_names[parents[k]], source_names[parents[other]]
            assert twin == up.replace("left", "right")


def test_the_rest_pose_stands_in_t_and_faces_where_the_file_says(tmp_path, humanoid):
    raw = load_raw(write(tmp_path / "a.npz"), humanoid)
    assert float(rot.heading_angle(raw.root_rot)[0]) == pytest.approx(-np.pi / 2, abs=0.02)
    place = bodies(humanoid, raw)[0]
    left, right = place[body(humanoid, "left_hand")], place[body(humanoid, "right_hand")]
    assert left[0] - right[0] > 1.2, "facing -y, left is +x"
    assert abs(left[2] - right[2]) < 0.01
    up = rot.quat_to_matrix(raw.root_rot)[:, 2, 2]
    assert up.min() > 0.999
    for side in ("left", "right"):
        foot, hip = (place[body(humanoid, f"{side}_{b}")] for b in ("foot", "thigh"))
        assert hip[2] - foot[2] > 0.8
    assert raw.dof.abs().max() < 0.35
    assert raw.fps == 60.0
    assert "AMASS" in raw.licence
    assert raw.metrics["retarget_ankle_mean_m"] < 1e-3


@pytest.mark.parametrize("side", ["left", "right"])
def test_bends_arrive_at_the_right_joints(tmp_path, humanoid, side):
    poses = poses_of()
    sign = 1.0 if side == "left" else -1.0
    poses[:, 3 * KNEE[side]] = 1.0  # about the axis to the left: the shin goes back
    poses[:, 3 * SHOULDER[side] + 2] = -1.3 * sign  # the arm down
    poses[:, 3 * ELBOW[side] + 1] = -1.1 * sign  # the forearm forward
    raw = load_raw(write(tmp_path / "a.npz", poses=poses), humanoid)
    dof = dict(zip(humanoid.skeleton.dof_names, raw.dof[5].tolist(), strict=True))
    other = "right" if side == "left" else "left"
    assert dof[f"{side}_knee"] == pytest.approx(1.0, abs=0.12)
    assert dof[f"{other}_knee"] < 0.2
    assert abs(dof[f"{side}_elbow"]) == pytest.approx(1.1, abs=0.2)
    assert abs(dof[f"{other}_elbow"]) < 0.15
    place = bodies(humanoid, raw)[5]
    part = {n: place[body(humanoid, f"{side}_{n}")] for n in ("upper_arm", "lower_arm", "hand")}
    assert part["upper_arm"][2] - part["lower_arm"][2] > 0.2
    assert part["hand"][1] - part["lower_arm"][1] < -0.1, "facing -y"
    shin, foot = (place[body(humanoid, f"{side}_{n}")] for n in ("shin", "foot"))
    assert foot[1] - shin[1] > 0.2


def test_layouts_mean_the_same(tmp_path, humanoid):
    poses = np.random.default_rng(0).normal(0, 0.2, (30, 156))
    poses[:, :3] = UPRIGHT
    want = importer.read_source(write(tmp_path / "h.npz", poses=poses))
    apart = {"root_orient": poses[:, :3], "pose_body": poses[:, 3:66]}
    made = {
        "x": {"poses": np.hstack([poses[:, :66], np.ones((30, 99))])},
        "smpl": {"poses": poses[:, :72]},
        "apart": {**apart, "pose_hand": np.ones((30, 90)), "drop": ("poses",),
                  "surface_model_type": np.array("smplx")},
        "rate": {"poses": poses, "drop": ("mocap_framerate",), "mocap_frame_rate": np.array(60)},
        "object": {"poses": poses, "gender": np.array(["male"], dtype=object)},
        "single": {"poses": poses.astype(np.float32)},
    }  # fmt: skip
    for name, changes in made.items():
        base = {"poses": poses, **changes}
        path = write(tmp_path / f"{name}.npz", **base)
        assert detect(path) is importer
        got = importer.read_source(path)
        assert got.fps == 60.0
        torch.testing.assert_close(got.local_rot, want.local_rot, atol=1e-6, rtol=0)
    assert want.joint_names == got.joint_names


def test_a_world_of_y_up_by_the_joint_map(tmp_path):
    poses = poses_of(4)
    poses[:, :3] = 0.0
    (tmp_path / "y").mkdir()
    trans = np.tile([0.5, 0.92, -1.0], (4, 1)) - np.array(importer._ROOT_SHIFT)
    turned = np.tile([0.5, 1.0, 0.92], (4, 1)) - np.array(importer._ROOT_SHIFT)
    y = importer.read_source(write(tmp_path / "y.npz", poses=poses, trans=trans), up="y")
    z = importer.read_source(write(tmp_path / "z.npz", poses=poses_of(4), trans=turned))
    torch.testing.assert_close(y.forward()[0], z.forward()[0])


def test_another_character(tmp_path, waddler):
    poses = poses_of()
    poses[:, 3 * KNEE["left"]] = np.linspace(0.2, 1.0, len(poses))
    poses[:, 3 * HIP["left"]] = -np.linspace(0.1, 0.5, len(poses))
    raw = load_raw(write(tmp_path / "a.npz", poses=poses), waddler)
    knee = waddler.skeleton.dof_names.index("left_knee")
    np.testing.assert_allclose(raw.dof[:, knee], np.linspace(0.2, 1.0, len(poses)), atol=0.2)
    assert raw.metrics["retarget_ankle_mean_m"] < 5e-3
    assert raw.metrics["retarget_limit_share"] == 0.0


# ---- size ----------------------------------------------------------------------------------


def steps():
    """Poses of a walk on the spot: legs swing, the one that goes forward bends."""
    t = np.arange(121) / 60.0
    poses = poses_of(len(t))
    for side, sign in (("left", 1.0), ("right", -1.0)):
        poses[:, 3 * HIP[side]] = sign * 0.45 * np.sin(2 * np.pi * t)
        poses[:, 3 * KNEE[side]] = 0.9 * np.clip(-sign * np.cos(2 * np.pi * t), 0, None)
    return poses


@pytest.mark.parametrize("size", [0.85, 1.0, 1.12])
def test_size_is_found_where_feet_stand(tmp_path, size):
    """A walk made on a body of another size: in every frame the lower foot stays in place."""
    poses, mean = steps(), importer._skeleton()[2]
    path = write(tmp_path / "a.npz", poses=poses, trans=np.zeros((len(poses), 3)))
    source = replace(importer.read_source(path), offsets=mean * size)
    place = source.forward()[0]
    feet = [source.index("left_foot"), source.index("right_foot")]
    relative = place[:, feet] - place[:, :1]
    lower = relative[..., 2].argmin(1)
    root = torch.zeros(len(poses), 3, dtype=torch.float64)
    for k in range(1, len(poses)):
        stands = int(lower[k])
        root[k] = root[k - 1] - (relative[k, stands] - relative[k - 1, stands])
    assert float((root[-1] - root[0]).norm()) > 1.0, "it gets somewhere"
    path = write(tmp_path / "b.npz", poses=poses, trans=root.numpy())
    found = importer.sized(importer.read_source(path))
    assert float(found.offsets[5].norm() / mean[5].norm()) == pytest.approx(size, abs=0.02)


def test_size_stays_the_mean_where_nothing_walks(tmp_path):
    source = importer.read_source(write(tmp_path / "a.npz"))
    np.testing.assert_allclose(importer.sized(source).offsets, source.offsets)


# ---- whole import and broken files ---------------------------------------------------------


def test_a_clip_with_its_floor(tmp_path, humanoid):
    write(tmp_path / "walk_poses.npz", frames=120)
    np.savez(tmp_path / "shape.npz", betas=np.zeros(16), gender=np.array("male"))
    clips = import_path(tmp_path, humanoid, ImportOptions())
    assert [c.clip_id for c in clips] == ["walk_poses"]
    clip = clips[0]
    assert clip.num_frames == 60
    assert clip.fps == 30.0
    assert float(clip.frames.root_pos[:, 2].mean()) == pytest.approx(
        humanoid.stand_height, abs=0.05
    )
    feet = list(humanoid.feet)
    assert clip.frames.contacts[:, feet].mean() > 0.9
    assert clip.metrics["retarget_ankle_mean_m"] < 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop": ("mocap_framerate",)}, "no mocap_framerate or mocap_frame_rate in it"),
        ({"mocap_framerate": np.array(0.0)}, "frame rate"),
        ({"mocap_framerate": np.array(1e7)}, "frame rate"),
        ({"mocap_framerate": np.array([60.0, 30.0])}, "frame rate"),
        ({"mocap_framerate": np.array("fast")}, "frame rate"),
        ({"trans": np.zeros((39, 3))}, "trans: shape 39 x 3; 40 x 3"),
        ({"trans": np.full((40, 3), np.inf)}, "trans: NaN or infinite in 40 of 40"),
        ({"poses": np.zeros((40, 60))}, "poses: 60 columns; 66, 72, 156, 165 are known"),
        ({"poses": np.zeros(156)}, "poses: shape 156;"),
        ({"poses": np.full((40, 156), np.nan)}, "poses: NaN"),
        ({"poses": np.array([[{}]], dtype=object)}, "poses: elements of type |O"),
        ({"drop": ("poses",), "root_orient": np.zeros((40, 3))}, "no array pose_body"),
        ({"drop": ("poses",), "root_orient": np.zeros((40, 3)), "pose_body": np.zeros((40, 60))},
         "pose_body: shape 40 x 60; 40 x 63"),
        ({"poses": np.zeros((1, 156)), "trans": np.zeros((1, 3))}, "1 frame; 2 or more"),
    ],
)  # fmt: skip
def test_broken_archives(tmp_path, humanoid, changes, message):
    path = write(tmp_path / "a.npz", **changes)
    with pytest.raises(InputError) as error:
        load_raw(path, humanoid)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_archives_that_would_fill_the_memory(tmp_path, humanoid):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 156)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("poses.npy", header.getvalue() + bytes(1 << 20))
        archive.writestr("trans.npy", b"")
    with pytest.raises(InputError, match=r"poses: shape .* does not fit"):
        load_raw(tmp_path / "a.npz", humanoid)


def test_damage_is_refused_in_one_line(tmp_path):
    chance = random.Random(7)
    whole = write(tmp_path / "a.npz", frames=4).read_bytes()
    said = []
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            at, kind = chance.randrange(len(data)), chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randrange(1, 50)]
            else:
                data[at:at] = bytes(chance.randrange(1, 9))
        path = tmp_path / "b.npz"
        path.write_bytes(data)
        assert importer.sniff(bytes(data[:4096]), path) in (True, False)
        try:
            importer.read_source(path)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 50
    assert all("\n" not in line and len(line) < 500 for line in said)
