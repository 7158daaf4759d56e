"""Poselib motions: against forward kinematics of the file's own skeleton."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.importers import detect, import_path, load_raw
from parc_ray.errors import InputError

ARMS = {"right_upper_arm": "right_lower_arm", "right_lower_arm": "right_hand"}
ARMS |= {
    key.replace("right", "left"): value.replace("right", "left") for key, value in ARMS.items()
}


def poselib_dict(character, *, frames=20, seed=0, arms_down=True, world=False):
    """A motion in which every joint that turns here turns; arms hang down at rest there.

    Hinges turn about the axis that they have in the file's rest pose.
    """
    rng = np.random.default_rng(seed)
    skeleton = character.skeleton
    names = skeleton.body_names
    offsets = skeleton.offsets.numpy().astype(np.float64).copy()
    rest = [Rotation.identity()] * len(names)
    if arms_down:
        for body, child in ARMS.items():
            if child in names:
                index = names.index(child)
                offsets[index] = [0.0, 0.0, -np.linalg.norm(offsets[index])]
                turn = 90 if body.startswith("right") else -90
                rest[names.index(body)] = Rotation.from_euler("x", turn, degrees=True)
    local = np.zeros((frames, len(names), 4))
    for body, kind in enumerate(skeleton.joint_kinds):
        own = Rotation.from_quat(skeleton.rest_rot[body].numpy())
        if kind == "hinge":
            angle = rng.uniform(0.1, 0.9, size=(frames, 1))
            axis = rest[body].apply(skeleton.hinge_axes[body].numpy())
            joint = Rotation.from_rotvec(angle * axis)
        elif kind == "fixed":
            joint = Rotation.identity(frames)
        else:
            joint = Rotation.from_rotvec(rng.normal(size=(frames, 3)) * 0.6)
        local[:, body] = (own * joint).as_quat()
    data = {
        "rotation": {"arr": local.astype(np.float32), "context": {"dtype": "float32"}},
        "root_translation": {
            "arr": rng.normal(size=(frames, 3)).astype(np.float32),
            "context": {"dtype": "float32"},
        },
        "skeleton_tree": {
            "node_names": list(names),
            "parent_indices": {"arr": np.array(skeleton.parents), "context": {"dtype": "int64"}},
            "local_translation": {"arr": offsets.astype(np.float32), "context": {}},
        },
        "is_local": True,
        "fps": 50,
        "__name__": "SkeletonMotion",
    }
    if world:
        data["rotation"]["arr"] = world_poses(data)[1].astype(np.float32)
        data["is_local"] = False
    return data


def world_poses(data):
    """Positions (T, B, 3) and rotations (T, B, 4) that the file itself means, with scipy."""
    tree = data["skeleton_tree"]
    parents, offsets = tree["parent_indices"]["arr"], tree["local_translation"]["arr"]
    local, root = data["rotation"]["arr"], data["root_translation"]["arr"]
    turns, places = [], []
    for body, parent in enumerate(parents):
        turn = Rotation.from_quat(local[:, body])
        if parent < 0:
            turns.append(turn)
            places.append(root.astype(np.float64))
        else:
            turns.append(turns[parent] * turn)
            places.append(places[parent] + turns[parent].apply(offsets[body]))
    return np.stack(places, axis=1), np.stack([t.as_quat() for t in turns], axis=1)


def save(path, data, version=None):
    buffer = io.BytesIO()
    content = np.empty((), dtype=object)
    content[()] = data
    np.lib.format.write_array(buffer, content, version=version, allow_pickle=True)
    path.write_bytes(buffer.getvalue())
    return path


def positions(raw, character):
    return fk_from_dof(character.skeleton, raw.root_pos, raw.root_rot, raw.dof)[0].numpy()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("world", [False, True])
def test_bodies_are_where_the_file_has_them(version, world, tmp_path, character):
    data = poselib_dict(character)
    expected, _ = world_poses(data)
    if world:
        data = poselib_dict(character, world=True)
    path = save(tmp_path / "m.npy", data, version)
    assert detect(path).NAME == "poselib"
    raw = load_raw(path, character)
    assert (raw.fps, raw.loop, raw.terrain, raw.contacts) == (50.0, "clamp", None, None)
    assert np.abs(positions(raw, character) - expected).max() < 2e-6


def test_a_rest_pose_like_ours_needs_no_turn(tmp_path, humanoid):
    data = poselib_dict(humanoid, arms_down=False)
    raw = load_raw(save(tmp_path / "m.npy", data), humanoid)
    assert np.abs(positions(raw, humanoid) - world_poses(data)[0]).max() < 2e-6


def test_bodies_in_another_order_are_found_by_name(tmp_path, humanoid):
    data = poselib_dict(humanoid)
    tree = data["skeleton_tree"]
    names, parents = tree["node_names"], tree["parent_indices"]["arr"]
    order = [0, *reversed([b for b, p in enumerate(parents) if p == 0])]
    while len(order) < len(names):  # breadth first, children in reverse
        order += [b for p in order for b in reversed(range(len(names))) if parents[b] == p]
        order = list(dict.fromkeys(order))
    expected = world_poses(data)[0]
    tree["node_names"] = [names[b] for b in order]
    tree["parent_indices"]["arr"] = np.array([-1, *(order.index(parents[b]) for b in order[1:])])
    tree["local_translation"]["arr"] = tree["local_translation"]["arr"][order]
    data["rotation"]["arr"] = data["rotation"]["arr"][:, order]
    raw = load_raw(save(tmp_path / "m.npy", data), humanoid)
    assert order != sorted(order)
    assert np.abs(positions(raw, humanoid) - expected).max() < 2e-6


@pytest.mark.parametrize("name", ["amp_humanoid_hop", "amp_humanoid_walk"])
def test_published_files(name, shared_data, humanoid):
    path = shared_data / f"formats/ase/{name}.npy"
    data = np.load(path, allow_pickle=True).item()  # a file that is known to be harmless
    expected = world_poses(data)[0]
    raw = load_raw(path, humanoid)
    assert raw.fps == 60.0
    # proportions differ by less than a millimetre
    assert np.abs(positions(raw, humanoid) - expected).max() < 1e-3
    clip = import_path(path, humanoid)[0]
    assert clip.duration_s == pytest.approx((len(expected) - 1) / 60, abs=1 / 30)
    assert clip.frames.contacts[:, list(humanoid.feet)].mean() > 0.3
    assert clip.provenance.class_name == name.rsplit("_", 1)[1].replace("hop", "jump")


class _Hostile:
    def __reduce__(self):
        return os.system, ("touch hacked",)


def test_nothing_in_the_file_runs(tmp_path, humanoid, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = poselib_dict(humanoid, frames=2)
    for key in ("fps", "rotation", "extra"):
        path = save(tmp_path / "bad.npy", {**data, key: _Hostile()})
        with pytest.raises(InputError, match=r"bad\.npy.*could run code"):
            import_path(path, humanoid)
    assert os.listdir(tmp_path) == ["bad.npy"]


def _tree(**changes):
    return lambda d: d["skeleton_tree"].update(changes)


BAD = {
    "no fps": (lambda d: d.pop("fps"), "'fps' is missing"),
    "no tree": (lambda d: d.pop("skeleton_tree"), "'skeleton_tree' is missing"),
    "fps": (lambda d: d.update(fps=[1, 2]), "fps: a list is no frame rate"),
    "names": (_tree(node_names=["a"] * 15), "no list of different body names"),
    "names are numbers": (_tree(node_names=list(range(15))), "no list of different body names"),
    "other bodies": (_tree(node_names=[f"b{k}" for k in range(15)]), "has no bodies pelvis"),
    "parents": (_tree(parent_indices=np.arange(15)), "must stand before"),
    "offsets": (_tree(local_translation=np.zeros((14, 3))), "shape 14 x 3; 15 x 3"),
    "rotation": (lambda d: d.update(rotation=np.zeros((20, 15, 4))), "norm 0"),
    "bodies": (lambda d: d.update(rotation=np.ones((20, 14, 4))), "shape 20 x 14 x 4"),
    "nan": (lambda d: d.update(root_translation=np.full((20, 3), np.nan)), "NaN"),
    "frames": (lambda d: d.update(root_translation=np.zeros((19, 3))), "shape 19 x 3"),
    "local": (lambda d: d.update(is_local=[True, False]), "is_local: shape 2"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_files_are_named(case, tmp_path, humanoid):
    change, message = BAD[case]
    data = poselib_dict(humanoid)
    change(data)
    path = save(tmp_path / "bad.npy", data)
    with pytest.raises(InputError, match=r"bad\.npy.*" + message):
        load_raw(path, humanoid)


def test_another_tree_and_another_character_are_refused(tmp_path, humanoid, waddler):
    path = save(tmp_path / "m.npy", poselib_dict(humanoid))
    with pytest.raises(InputError, match="retarget"):
        load_raw(path, waddler)
    data = poselib_dict(humanoid)
    parents = data["skeleton_tree"]["parent_indices"]["arr"]
    parents[humanoid.skeleton.body_index("head")] = 0
    with pytest.raises(InputError, match="hangs 'head' on another body"):
        load_raw(save(tmp_path / "m.npy", data), humanoid)


def test_other_numpy_files(tmp_path, humanoid):
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    with pytest.raises(InputError, match="unknown format"):
        load_raw(tmp_path / "a.npy", humanoid)
    np.save(tmp_path / "b.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"b\.npy: numpy array of object with shape \(2,\)"):
        load_raw(tmp_path / "b.npy", humanoid)
    (tmp_path / "c.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O', ")
    with pytest.raises(InputError, match=r"c\.npy: damaged header"):
        load_raw(Path(tmp_path / "c.npy"), humanoid)
    whole = save(tmp_path / "d.npy", poselib_dict(humanoid)).read_bytes()
    (tmp_path / "d.npy").write_bytes(whole + pickle.dumps(1))  # what follows the dict is not read
    load_raw(tmp_path / "d.npy", humanoid)
