"""BVH: world positions against scipy, and what becomes of skeletons of the usual styles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from parc_ray.character.kinematics import fk_from_dof
from parc_ray.data.importers import ImportOptions, detect, import_path, load_raw
from parc_ray.data.importers.bvh import choose_map, find_up, read_source
from parc_ray.errors import InputError
from parc_ray.motion.contacts import foot_slide

ZXY, XYZ = "Zrotation Xrotation Yrotation", "Xrotation Yrotation Zrotation"
PLACE = "Xposition Yposition Zposition"

# name: (parent, offset in cm, y up, facing z, left x)
MIXAMO = {
    "mixamorig:Hips": ("", (0, 95, 0)),
    "mixamorig:Spine": ("mixamorig:Hips", (0, 10, 0)),
    "mixamorig:Spine1": ("mixamorig:Spine", (0, 12, 0)),
    "mixamorig:Spine2": ("mixamorig:Spine1", (0, 12, 0)),
    "mixamorig:Neck": ("mixamorig:Spine2", (0, 15, 0)),
    "mixamorig:Head": ("mixamorig:Neck", (0, 8, 2)),
    "mixamorig:Head_end": ("mixamorig:Head", (0, 18, 0)),
}
for _side, _sign in (("Left", 1), ("Right", -1)):
    _up = f"mixamorig:{_side}"
    MIXAMO |= {
        f"{_up}Shoulder": ("mixamorig:Spine2", (6 * _sign, 10, 0)),
        f"{_up}Arm": (f"{_up}Shoulder", (12 * _sign, 0, 0)),
        f"{_up}ForeArm": (f"{_up}Arm", (27 * _sign, 0, 0)),
        f"{_up}Hand": (f"{_up}ForeArm", (26 * _sign, 0, 0)),
        f"{_up}Hand_end": (f"{_up}Hand", (10 * _sign, 0, 0)),
        f"{_up}UpLeg": ("mixamorig:Hips", (9 * _sign, -5, 0)),
        f"{_up}Leg": (f"{_up}UpLeg", (0, -42, 0)),
        f"{_up}Foot": (f"{_up}Leg", (0, -40, 0)),
        f"{_up}ToeBase": (f"{_up}Foot", (0, -8, 12)),
        f"{_up}ToeBase_end": (f"{_up}ToeBase", (0, 0, 6)),
    }


def tree_order(skeleton):
    """Names depth first, as the hierarchy of a file has them."""

    def below(name):
        return [
            name,
            *(n for child in skeleton if skeleton[child][0] == name for n in below(child)),
        ]

    (root,) = [name for name, (parent, _) in skeleton.items() if not parent]
    return below(root)


def write_bvh(path, skeleton, angles, root, *, order=ZXY, places=(), step=1 / 30, opening="{"):
    """A file; ``angles`` (T, 3) degrees by joint, in the order of ``order``.

    ``places`` are joints but the root that have position channels too.
    """
    lines, rows = ["HIERARCHY"], [[] for _ in root]
    depth = {"": -1}

    def joint(name):
        parent, offset = skeleton[name]
        depth[name] = depth[parent] + 1
        pad = "\t" * depth[name]
        end = name.endswith("_end")
        kind = "End Site" if end else f"{'JOINT' if parent else 'ROOT'} {name}"
        lines.extend(
            [pad + kind, pad + opening, f"{pad}\tOFFSET {' '.join(f'{v:.6f}' for v in offset)}"]
        )
        if not end:
            own = [PLACE] if not parent or name in places else []
            channels = [*own, order] if order.index("r") != 0 else [order]
            words = " ".join(channels)
            lines.append(f"{pad}\tCHANNELS {len(words.split())} {words}")
            for k, row in enumerate(rows):
                if own:
                    row.extend(root[k] if not parent else offset)
                row.extend(angles[name][k] if name in angles else (0.0, 0.0, 0.0))
        for child in skeleton:
            if skeleton[child][0] == name:
                joint(child)
        lines.append(pad + "}")

    joint(next(name for name, (parent, _) in skeleton.items() if not parent))
    lines += ["MOTION", f"Frames: {len(rows)}", f"Frame Time: {step:.7f}"]
    lines += [" ".join(f"{v:.6f}" for v in row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def world(skeleton, angles, root, order=ZXY):
    """Positions by name (T, 3), by scipy's own Euler angles."""
    letters = "".join(word[0] for word in order.split())
    turns, places = {}, {}
    for name in tree_order(skeleton):
        parent, offset = skeleton[name]
        own = Rotation.from_euler(letters, angles.get(name, np.zeros((len(root), 3))), degrees=True)
        turns[name] = turns[parent] * own if parent else own
        places[name] = places[parent] + turns[parent].apply(offset) if parent else np.asarray(root)
    return places


def wild(skeleton, frames=9, seed=0, size=70.0):
    rng = np.random.default_rng(seed)
    moving = [name for name in skeleton if not name.endswith("_end")]
    angles = {name: rng.uniform(-size, size, size=(frames, 3)) for name in moving}
    return angles, rng.normal(size=(frames, 3)) * 50


def walk(skeleton, prefix="mixamorig:", frames=45):
    """Marching forward: thighs swing, knees bend, arms counter, 1.2 m/s along z."""
    t = np.arange(frames) / 30 * 2 * np.pi
    zero = np.zeros((frames, 3))
    angles = {name: zero.copy() for name in skeleton if not name.endswith("_end")}
    for side, sign in (("Left", 1.0), ("Right", -1.0)):
        swing = sign * np.sin(t)
        angles[f"{prefix}{side}UpLeg"][:, 1] = -25 * swing
        angles[f"{prefix}{side}Leg"][:, 1] = 15 + 15 * np.maximum(sign * np.cos(t), 0)
        angles[f"{prefix}{side}Arm"][:, 0] = -sign * 70  # hanging down
        angles[f"{prefix}{side}ForeArm"][:, 2] = -sign * 20
    root = np.stack([0 * t, 92 + 0 * t, 120 * np.arange(frames) / 30], axis=-1)
    return angles, root


# ---- numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order", [ZXY, XYZ, "Yrotation Xrotation Zrotation", "Yrotation Zrotation Xrotation"]
)
@pytest.mark.parametrize("places", [(), ("mixamorig:LeftLeg", "mixamorig:Neck")])
def test_joints_are_where_the_file_has_them(order, places, tmp_path):
    angles, root = wild(MIXAMO)
    path = write_bvh(tmp_path / "a.bvh", MIXAMO, angles, root, order=order, places=places)
    assert detect(path).NAME == "bvh"
    source, notes = read_source(path)
    assert (source.fps, notes) == (30.0, [])
    assert list(source.joint_names) == tree_order(MIXAMO)
    place, _ = source.forward()
    expected = world(MIXAMO, angles, root, order)
    for k, name in enumerate(source.joint_names):
        np.testing.assert_allclose(place[:, k], expected[name], atol=1e-4)


def test_a_worked_file(tmp_path):
    """Two bones of 1 and 2; the first turned by 90 degrees about z, the second about x."""
    lines = [
        *("HIERARCHY", "ROOT a", "{", " OFFSET 9 9 9"),
        " CHANNELS 4 Zrotation Zposition Xposition Yposition",
        *(" JOINT b", " {", "  OFFSET 0 1 0", "  CHANNELS 1 Xrotation"),
        *("  End Site", "  {", "   OFFSET 0 2 0", "  }", " }", "}"),
        *("MOTION", "Frames: 2", "Frame Time: 0.008333", "90 3 1 2 90", "0 3 1 2 0", ""),
    ]
    (tmp_path / "a.bvh").write_text("\r\n".join(lines))
    source, _ = read_source(tmp_path / "a.bvh")
    place, _ = source.forward()
    # root at (1, 2, 3); b one to -x of it; its end two further along z
    np.testing.assert_allclose(place[0], [[1, 2, 3], [0, 2, 3], [0, 2, 5]], atol=1e-12)
    np.testing.assert_allclose(place[1], [[1, 2, 3], [1, 3, 3], [1, 5, 3]], atol=1e-12)
    assert source.fps == 120.0


def test_positions_of_joints_may_add_to_their_offsets(tmp_path):
    angles, root = wild(MIXAMO)
    moved = {n: (p, (0, 0, 0) if n == "mixamorig:LeftLeg" else o) for n, (p, o) in MIXAMO.items()}
    path = write_bvh(tmp_path / "a.bvh", moved, angles, root, places=("mixamorig:LeftLeg",))
    text = path.read_text().splitlines()
    at = next(k for k, line in enumerate(text) if "JOINT mixamorig:LeftLeg" in line)
    text[at + 2] = "OFFSET 0 -42 0"  # and zeros in the channels
    path.write_text("\n".join(text))
    source, _ = read_source(path)
    np.testing.assert_allclose(source.offsets[source.index("mixamorig:LeftLeg")], [0, -42, 0])


def test_the_rest_pose_in_front_is_left_out(tmp_path):
    angles, root = wild(MIXAMO)
    for value in angles.values():
        value[0] = 0.0
    source, notes = read_source(write_bvh(tmp_path / "a.bvh", MIXAMO, angles, root))
    assert source.num_frames == 8
    assert notes == ["first frame left out: the rest pose"]


# ---- onto the character ---------------------------------------------------------------------


def to_z_up(skeleton, angles, root):
    """The same motion as a file with z up has it: (x, y, z) becomes (x, -z, y)."""
    turn = Rotation.from_euler("x", 90, degrees=True)
    moved = {
        name: (parent, tuple(turn.apply(offset))) for name, (parent, offset) in skeleton.items()
    }
    turned = {}
    for name, value in angles.items():
        own = turn * Rotation.from_euler("ZXY", value, degrees=True) * turn.inv()
        turned[name] = own.as_euler("ZXY", degrees=True)
    return moved, turned, turn.apply(root)


@pytest.mark.parametrize("up", ["y", "z"])
@pytest.mark.parametrize("unit", [1.0, 0.01, 1 / 2.54])
def test_ankles_are_where_the_scaled_file_has_them(up, unit, tmp_path, humanoid):
    angles, root = walk(MIXAMO)
    skeleton = {name: (p, tuple(unit * v for v in o)) for name, (p, o) in MIXAMO.items()}
    root = root * unit
    expected = world(skeleton, angles, root)
    if up == "z":
        skeleton, angles, root = to_z_up(skeleton, angles, root)
    path = write_bvh(tmp_path / "walk1.bvh", skeleton, angles, root)
    source, _ = read_source(path)
    assert find_up(source, choose_map(source, path), humanoid) == up
    raw = load_raw(path, humanoid)
    place = fk_from_dof(humanoid.skeleton, raw.root_pos, raw.root_rot, raw.dof)[0]
    leg = 0.422 + 0.41  # of the character, m
    scale = leg / (82 * unit)
    assert raw.metrics["retarget_scale"] == pytest.approx(scale, rel=0.02)
    for side, foot in (("Left", "left_foot"), ("Right", "right_foot")):
        x, y, z = (raw.metrics["retarget_scale"] * expected[f"mixamorig:{side}Foot"]).T
        wanted = np.stack([x, -z, y], axis=-1)
        miss = np.linalg.norm(place[:, humanoid.skeleton.body_index(foot)] - wanted, axis=-1)
        assert miss.mean() < 0.015
    assert raw.metrics["retarget_ankle_mean_m"] < 0.015
    assert raw.metrics["retarget_limit_share"] < 0.005


def test_a_walk_becomes_a_clip(tmp_path, humanoid):
    angles, root = walk(MIXAMO)
    path = write_bvh(tmp_path / "walk1.bvh", MIXAMO, angles, root, order=ZXY)
    clip = import_path(tmp_path, humanoid)[0]
    assert (clip.clip_id, clip.provenance.class_name, clip.fps) == ("walk1", "walk", 30.0)
    assert clip.provenance.source == "BVH: walk1.bvh"
    assert clip.num_frames == pytest.approx(45, abs=1)
    way = clip.frames.root_pos[-1] - clip.frames.root_pos[0]
    assert float(way[1]) == pytest.approx(
        -1.2 * 44 / 30 * clip.metrics["retarget_scale"] * 100, rel=0.1
    )
    knees = [humanoid.skeleton.dof_names.index(f"{side}_knee") for side in ("left", "right")]
    assert float(clip.frames.dof[:, knees].abs().min()) > 0.15  # bent by 15 degrees and more
    hands = [humanoid.skeleton.body_index(f"{side}_hand") for side in ("left", "right")]
    place = fk_from_dof(
        humanoid.skeleton, clip.frames.root_pos, clip.frames.root_rot, clip.frames.dof
    )[0]
    assert float((place[:, hands, 2] - place[:, :1, 2]).max()) < 0.25, "arms hang"
    assert path.exists()


LAFAN = {
    "Hips": ("", (0, 90, 0)),
    "Spine": ("Hips", (7, 0, 0)),
    "Spine1": ("Spine", (12, 0, 0)),
    "Spine2": ("Spine1", (12, 0, 0)),
    "Neck": ("Spine2", (25, 0, 0)),
    "Head": ("Neck", (12, 0, 0)),
    "Head_end": ("Head", (15, 0, 0)),
}
CMU = {
    "Hips": ("", (0, 0, 0)),
    "LowerBack": ("Hips", (0, 0, 0)),
    "Spine": ("LowerBack", (0, 2.1, 0)),
    "Spine1": ("Spine", (0, 2.1, 0)),
    "Neck": ("Spine1", (0, 2, 0)),
    "Head": ("Neck", (0, 1.6, 0)),
    "Head_end": ("Head", (0, 1.6, 0)),
}
for _side, _sign in (("Left", 1), ("Right", -1)):
    LAFAN |= {
        f"{_side}UpLeg": ("Hips", (0, 2, 10 * _sign)),
        f"{_side}Leg": (f"{_side}UpLeg", (43, 0, 0)),
        f"{_side}Foot": (f"{_side}Leg", (42, 0, 0)),
        f"{_side}Toe": (f"{_side}Foot", (17, 0, 0)),
        f"{_side}Toe_end": (f"{_side}Toe", (5, 0, 0)),
        f"{_side}Shoulder": ("Spine2", (17, 0, 3 * _sign)),
        f"{_side}Arm": (f"{_side}Shoulder", (11, 0, 0)),
        f"{_side}ForeArm": (f"{_side}Arm", (33, 0, 0)),
        f"{_side}Hand": (f"{_side}ForeArm", (25, 0, 0)),
        f"{_side}Hand_end": (f"{_side}Hand", (8, 0, 0)),
    }
    CMU |= {
        f"{_side[0]}HipJoint": ("Hips", (0, 0, 0)),
        f"{_side}UpLeg": (f"{_side[0]}HipJoint", (1.36 * _sign, -1.8, 0.84)),
        f"{_side}Leg": (f"{_side}UpLeg", (2.45 * _sign, -6.73, 0)),
        f"{_side}Foot": (f"{_side}Leg", (2.56 * _sign, -7.04, 0)),
        f"{_side}ToeBase": (f"{_side}Foot", (0.16 * _sign, -0.43, 2.07)),
        f"{_side}ToeBase_end": (f"{_side}ToeBase", (0, 0, 1)),
        f"{_side}Shoulder": ("Spine1", (0, 0, 0)),
        f"{_side}Arm": (f"{_side}Shoulder", (3.4 * _sign, 1.2, 0)),
        f"{_side}ForeArm": (f"{_side}Arm", (5.2 * _sign, 0, 0)),
        f"{_side}Hand": (f"{_side}ForeArm", (3.5 * _sign, 0, 0)),
        f"{_side}Hand_end": (f"{_side}Hand", (1.5 * _sign, 0, 0)),
    }


def standing(style, frames=30):
    """Upright with the arms level, as a file of that style has to turn its joints for it."""
    zero = np.zeros((frames, 3))
    if style == "cmu":  # legs spread by 20 degrees are brought together
        angles = {name: zero.copy() for name in CMU if not name.endswith("_end")}
        angles["LeftUpLeg"][:, 0], angles["RightUpLeg"][:, 0] = -20, 20
        return CMU, angles, np.tile([0.0, 16.0, 0.0], (frames, 1))
    angles = {name: zero.copy() for name in LAFAN if not name.endswith("_end")}
    angles["Hips"][:, 0] = 90
    for side, sign in (("Left", 1), ("Right", -1)):
        angles[f"{side}UpLeg"][:, 0] = 180
        angles[f"{side}Foot"][:, 0] = -70
        angles[f"{side}Shoulder"][:, 2] = -90 * sign  # from up to sideways, about y of the spine
    return LAFAN, angles, np.tile([0.0, 87.0, 0.0], (frames, 1))


@pytest.mark.parametrize("style", ["cmu", "lafan1"])
def test_other_styles_stand_upright(style, tmp_path, humanoid):
    skeleton, angles, root = standing(style)
    angles["LeftUpLeg"][:, 0] += 1e-3 * np.arange(30)
    path = write_bvh(tmp_path / "stand.bvh", skeleton, angles, root)
    source, _ = read_source(path)
    assert choose_map(source, path).name == f"bvh_{style}"
    expected = world(skeleton, angles, root)
    sideways = expected["LeftHand"][0] - expected["RightHand"][0]
    assert abs(sideways[1]) < 0.1 * np.linalg.norm(sideways), "the file itself is a T-pose"
    clip = import_path(path, humanoid)[0]
    frames = clip.frames
    place = fk_from_dof(humanoid.skeleton, frames.root_pos, frames.root_rot, frames.dof)[0][10]
    index = humanoid.skeleton.body_index
    down = torch.tensor([0.0, 0.0, -1.0])
    for side in ("left", "right"):
        thigh = place[index(f"{side}_foot")] - place[index(f"{side}_thigh")]
        assert float(thigh @ down / thigh.norm()) > 0.98, side
        arm = place[index(f"{side}_hand")] - place[index(f"{side}_upper_arm")]
        assert abs(float(arm[2])) < 0.25 * float(arm.norm()), side
    assert float(place[index("head"), 2] - place[0, 2]) > 0.35
    assert clip.metrics["retarget_limit_share"] < 0.005
    feet = clip.frames.contacts[:, list(humanoid.feet)]
    assert float(feet.mean()) > 0.9
    assert float(foot_slide(humanoid, frames, 30.0).max()) < 0.1


def test_a_map_beside_the_file_takes_over(tmp_path, humanoid):
    renamed = {
        name.replace("mixamorig:", "bone"): (p.replace("mixamorig:", "bone"), o)
        for name, (p, o) in MIXAMO.items()
    }
    angles, root = walk(renamed, prefix="bone")
    path = write_bvh(tmp_path / "walk1.bvh", renamed, angles, root)
    with pytest.raises(InputError, match=r"walk1\.bvh: no joint .*joint_map\.yaml"):
        load_raw(path, humanoid)
    rows = {
        "pelvis": "Hips", "torso": "Spine2", "head": "Head", "thigh": "UpLeg", "shin": "Leg",
        "foot": "Foot", "upper_arm": "Arm", "lower_arm": "ForeArm", "hand": "Hand",
    }  # fmt: skip
    text = "up: y\nbodies:\n"
    for role, joint in rows.items():
        for side in ("",) if role in ("pelvis", "torso", "head") else ("Left", "Right"):
            text += f"  {side.lower()}{'_' if side else ''}{role}: bone{side}{joint}\n"
    (tmp_path / "joint_map.yaml").write_text(text)
    assert load_raw(path, humanoid).metrics["retarget_ankle_mean_m"] < 0.015


# ---- damage --------------------------------------------------------------------------------


def _swap(old, new):
    return lambda text: text.replace(old, new, 1)


BAD = {
    "frames": (_swap("Frames: 9", "Frames: 10"), "9 rows for 10 frames"),
    "many frames": (_swap("Frames: 9", "Frames: 99999999999"), "9 rows for very many frames"),
    "no time": (_swap("Frame Time: 0.0333333", "Time"), "no 'Frame Time:'"),
    "time": (_swap("0.0333333", "0"), "frames of 0 s"),
    "channels": (_swap("CHANNELS 3", "CHANNELS 4"), "channels '4 Zrotation"),
    "unknown channel": (_swap("Zrotation", "Wrotation"), "channels '6 Xposition"),
    "twice": (_swap("CHANNELS 3 Zrotation Xrot", "CHANNELS 3 Xrotation Xrot"), "channels"),
    "offset": (_swap("OFFSET 0.000000 10.000000", "OFFSET 0.000000 ten"), "3 finite numbers"),
    "bracket": (_swap("{", ""), "no opening bracket"),
    "two roots": (_swap("JOINT mixamorig:Spine\n", "ROOT mixamorig:Spine\n"), "in the wrong place"),
    "same name": (_swap("JOINT mixamorig:Neck", "JOINT mixamorig:Spine"), "names must differ"),
    "no motion": (lambda t: t[: t.index("MOTION")], "ends here"),
    "word": (lambda t: t.rstrip().rsplit(" ", 1)[0] + " x\n", "finite numbers"),
    "nan": (lambda t: t.rstrip().rsplit(" ", 1)[0] + " nan\n", "finite numbers"),
    "short row": (lambda t: t.rstrip().rsplit(" ", 1)[0] + "\n", "finite numbers"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_files_are_named(case, tmp_path, humanoid):
    change, message = BAD[case]
    angles, root = wild(MIXAMO)
    path = write_bvh(tmp_path / "bad.bvh", MIXAMO, angles, root)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=r"bad\.bvh: line \d+: .*" + message):
        load_raw(path, humanoid)


def test_bones_that_stretch_are_refused(tmp_path, humanoid):
    angles, root = wild(MIXAMO)
    path = write_bvh(tmp_path / "bad.bvh", MIXAMO, angles, root, places=("mixamorig:LeftLeg",))
    lines = path.read_text().splitlines()
    at = lines.index("Frames: 9") + 2
    names = [n for n in tree_order(MIXAMO) if not n.endswith("_end")]
    column = 3 + 3 * names.index("mixamorig:LeftLeg") + 1
    words = lines[at].split()
    words[column] = "-142"
    lines[at] = " ".join(words)
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"bad\.bvh: joint 'mixamorig:LeftLeg' moves away"):
        load_raw(path, humanoid)


def test_short_motions(tmp_path, humanoid):
    angles, root = walk(MIXAMO, frames=5)
    path = write_bvh(tmp_path / "walk.bvh", MIXAMO, angles, root)
    assert import_path(path, humanoid, ImportOptions(min_frames=2))[0].num_frames == 5
