"""The humanoid against the published tables and MuJoCo; loading and its error messages."""

from __future__ import annotations

import math
import pickle
import shutil

import mujoco
import pytest
import torch

from parc_ray.character.character import build_character, load_character
from parc_ray.errors import InputError

# kg per body of the published character
MASSES = {
    "pelvis": 10.00, "torso": 12.01, "head": 3.88,
    "right_upper_arm": 1.62, "right_lower_arm": 1.09, "right_hand": 0.50,
    "left_upper_arm": 1.62, "left_lower_arm": 1.09, "left_hand": 0.50,
    "right_thigh": 4.74, "right_shin": 3.12, "right_foot": 1.00,
    "left_thigh": 4.74, "left_shin": 3.12, "left_foot": 1.00,
}  # fmt: skip
# of the published character: first dof, count, kp, kd, effort, armature, |offset|, scale
JOINTS = {
    "abdomen": (0, 3, 1000, 100, 200, 0.02, 0, 1.8850),
    "neck": (3, 3, 100, 10, 50, 0.01, 0, 1.2566),
    "right_shoulder": (6, 3, 400, 40, 100, 0.02, 0, 3.3510),
    "right_elbow": (9, 1, 300, 30, 70, 0.01, 1.3963, 1.9548),
    "left_shoulder": (10, 3, 400, 40, 100, 0.02, 0, 3.3510),
    "left_elbow": (13, 1, 300, 30, 70, 0.01, -1.3963, 1.9548),
    "right_hip": (14, 3, 500, 50, 200, 0.02, 0, 2.9322),
    "right_knee": (17, 1, 500, 50, 150, 0.02, 1.3963, 1.9548),
    "right_ankle": (18, 3, 400, 40, 90, 0.01, 0, 1.1519),
    "left_hip": (21, 3, 500, 50, 200, 0.02, 0, 2.9322),
    "left_knee": (24, 1, 500, 50, 150, 0.02, 1.3963, 1.9548),
    "left_ankle": (25, 3, 400, 40, 90, 0.01, 0, 1.1519),
}


def texts(character_path):
    return character_path.read_text(), character_path.with_suffix(".yaml").read_text()


@pytest.fixture
def waddler_texts(request):
    return texts(request.path.parents[1] / "assets" / "waddler.xml")


def test_humanoid_masses_are_the_published_ones(person):
    assert person.skeleton.body_names == tuple(MASSES)
    assert float(person.body_masses.sum()) == pytest.approx(50.05, rel=1e-3)
    for mass, expected in zip(person.body_masses.tolist(), MASSES.values(), strict=True):
        assert mass == pytest.approx(expected, rel=0.01)


def test_masses_are_mujocos(character):
    model = mujoco.MjModel.from_xml_string(character.mjcf_xml)
    assert torch.allclose(character.body_masses, torch.tensor(model.body_mass[1:]).float())


def test_humanoid_joint_table(person):
    for name, (start, count, kp, kd, effort, armature, offset, scale) in JOINTS.items():
        axes = [f"{name}_{a}" for a in "xyz"] if count == 3 else [name]
        assert list(person.skeleton.dof_names[start : start + count]) == axes
        dofs = slice(start, start + count)
        table = (person.kp, person.kd, person.effort, person.armature)
        for values, expected in zip(table, (kp, kd, effort, armature), strict=True):
            assert torch.allclose(values[dofs], torch.full((count,), float(expected)))
        assert torch.allclose(
            person.action_offset[dofs], torch.full((count,), float(offset)), atol=1e-4
        )
        assert torch.allclose(person.action_scale[dofs], torch.full((count,), scale), atol=1e-4)


def test_humanoid_limits_and_left_right_symmetry(person):
    degrees = torch.rad2deg(person.skeleton.dof_limits)
    names = person.skeleton.dof_names
    assert degrees[names.index("abdomen_y")].tolist() == pytest.approx([-60, 90])
    assert degrees[names.index("right_shoulder_x")].tolist() == pytest.approx([-110, 140])
    assert degrees[names.index("left_shoulder_z")].tolist() == pytest.approx([-160, 60])
    for i, name in enumerate(names):
        if not name.startswith("right_"):
            continue
        other = degrees[names.index(name.replace("right", "left"))]
        flips = name.endswith(("_x", "_z")) or name == "right_elbow"
        expected = (-degrees[i]).flip(0) if flips else degrees[i]
        assert torch.allclose(other, expected), name


def test_humanoid_weights_and_named_bodies(person):
    names = person.skeleton.body_names
    assert [names[b] for b in person.key_bodies] == [
        "right_hand", "left_hand", "right_foot", "left_foot",
    ]  # fmt: skip
    weights = dict(zip(names[1:], person.joint_weights.tolist(), strict=True))
    assert weights["torso"] == 1.0
    assert weights["left_hand"] == 0.0
    assert sum(weights.values()) == pytest.approx(1.6 + 2 * (0.6 + 0.4 + 1.0 + 0.6 + 0.4))
    limits = dict(zip(names[1:], person.termination_distance.tolist(), strict=True))
    assert limits["right_shin"] == pytest.approx(1.2)
    assert limits["left_foot"] == 10.0
    assert person.stand_height == pytest.approx(0.4215 + 0.4099 + 0.05, abs=1e-4)


def test_mirror_table_is_an_involution_by_name(character):
    mirror = character.mirror_bodies
    assert all(mirror[mirror[b]] == b for b in range(len(mirror)))
    for body, name in enumerate(character.skeleton.body_names):
        side = name.partition("_")[0]
        other = {"left": "right", "right": "left"}.get(side)
        expected = name.replace(side, other) if other else name
        assert character.skeleton.body_names[mirror[body]] == expected


def test_the_second_character_is_really_different(waddler, person):
    assert waddler.skeleton.num_bodies == 9
    assert waddler.skeleton.num_dofs == 14
    assert waddler.hands == ()
    assert waddler.skeleton.body_index("chest") > waddler.skeleton.body_index("left_leg")
    assert waddler.stand_height == pytest.approx(0.03 + 0.2 + 0.2 + 0.03)
    assert waddler.digest != person.digest


def test_loading_is_cached_and_the_digest_follows_the_files(tmp_path, request):
    assets = request.path.parents[1] / "assets"
    for suffix in (".xml", ".yaml"):
        shutil.copy(assets / f"waddler{suffix}", tmp_path)
    first = load_character(tmp_path / "waddler.xml")
    assert load_character(str(tmp_path / "waddler.xml")) is first
    assert first.digest == load_character(assets / "waddler.xml").digest
    text = (assets / "waddler.yaml").read_text().replace("effort: 12", "effort: 13")
    (tmp_path / "other.yaml").write_text(text)
    shutil.copy(assets / "waddler.xml", tmp_path / "other.xml")
    assert load_character(tmp_path / "other.xml").digest != first.digest


def test_a_character_survives_pickling(character):
    copy = pickle.loads(pickle.dumps(character))
    assert copy.skeleton.dof_slices == character.skeleton.dof_slices
    assert torch.equal(copy.kp, character.kp)


def test_three_hinges_become_one_ball_joint_for_the_simulator_too(waddler_texts):
    xml, yaml_text = waddler_texts
    ball = '<joint name="waist" type="ball"/>'
    assert ball in xml
    hinges = "".join(
        f'<joint name="waist_{a}" type="hinge" axis="{v}" range="{r}"/>'
        for a, v, r in (("x", "1 0 0", "-.5 .5"), ("y", "0 1 0", "-.5 1"), ("z", "0 0 1", "-1 .9"))
    )
    merged = build_character(xml.replace(ball, hinges), yaml_text, "merged", "")
    waist = merged.skeleton.dof_slices[merged.skeleton.body_index("chest")]
    assert merged.skeleton.dof_names[waist] == ("waist_x", "waist_y", "waist_z")
    assert merged.skeleton.dof_limits[waist].flatten().tolist() == pytest.approx(
        [-0.5, 0.5, -0.5, 1.0, -1.0, 0.9]
    )
    model = mujoco.MjModel.from_xml_string(merged.mjcf_xml)
    assert model.nv == merged.skeleton.num_dofs + 6
    assert int((model.jnt_type == mujoco.mjtJoint.mjJNT_BALL).sum()) == 3


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('type="sphere"', 'type="cylinder"', "body chest: geom type cylinder"),
        ('quat="0.9961947 0 0 0.08715574"', 'euler="0 0 10"', "orientation by euler"),
        ('<freejoint name="root"/>', "", "exactly one freejoint"),
        ('range="-1 1"', 'range="1 -1"', "lower < upper"),
        ('<joint name="neck" type="hinge"', '<joint name="neck" type="slide"', "joints slide"),
        ('name="beak" pos', "pos", "a body has no name"),
        ('childclass="foot"', 'childclass="paw"', "default class 'paw'"),
        ('size="0.08"', 'size="big"', "not a list of numbers"),
        ("</mujoco>", "", "not XML"),
        ('<freejoint name="root"/>', '<freejoint/><inertial mass="1"/>', "<inertial> is not read"),
        ('size="0.08"', 'size="0.08" mass="2"', "geom mass is not read"),
        ('density="900"', 'density="heavy"', "not a list of numbers"),
        ('name="neck" type', 'name="neck" ref="0.5" type', "joint ref must be 0"),
        ('pos="0 0 0.08"', 'pos="0 0.08"', "three numbers"),
        ('name="neck" type', 'name="neck" pos="0 0 1" type', "joint pos must be 0 0 0"),
    ],
)
def test_mjcf_that_is_not_understood_is_refused_with_its_place(waddler_texts, old, new, says):
    xml, yaml_text = waddler_texts
    assert old in xml
    with pytest.raises(InputError, match=says) as caught:
        build_character(xml.replace(old, new), yaml_text, "bird", "")
    assert str(caught.value).startswith("bird.xml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("feet: [left_sole", "feet: [left_foot", "feet must be a list of body names"),
        ("feet:", "foots:", "unknown key 'foots'"),
        ("  neck: {kp: 10, kd: 1, effort: 5, armature: 0.002}", "", "no entry 'neck'"),
        ("kp: 10,", "", "joints.neck.kp is missing"),
        ("kp: 10,", "kp: -10,", "joints.neck.kp=-10"),
        ("kp: 10,", "kp: stiff,", "a number >= 0"),
        ("kp: 10,", "kp: 10, ki: 1,", "unknown key 'ki'"),
        ("[-50, 50]", "[50, -50]", "waist.limits_deg must be three pairs"),
        ("name: waddler", "name: [", "not YAML"),
    ],
)
def test_yaml_mistakes_are_named(waddler_texts, old, new, says):
    xml, yaml_text = waddler_texts
    assert old in yaml_text
    with pytest.raises(InputError, match=says) as caught:
        build_character(xml, yaml_text.replace(old, new), "bird", "")
    assert str(caught.value).startswith("bird.yaml")


def test_unknown_names_and_missing_files_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="allowed are humanoid"):
        load_character("octopus")
    (tmp_path / "lonely.xml").write_text("<mujoco/>")
    with pytest.raises(InputError, match=r"lonely\.yaml"):
        load_character(tmp_path / "lonely.xml")


def test_geometry_agrees_with_mujoco(character):
    model = mujoco.MjModel.from_xml_string(character.mjcf_xml)
    assert model.ngeom == len(character.geoms)
    for i, geom in enumerate(character.geoms):
        assert geom.body == int(model.geom_bodyid[i]) - 1
        assert list(geom.pos) == pytest.approx(list(model.geom_pos[i]), abs=1e-6)
        used = {"sphere": 1, "capsule": 2, "box": 3}[geom.kind]
        assert list(geom.size[:used]) == pytest.approx(list(model.geom_size[i][:used]), abs=1e-6)
        axis = geom.to_body(torch.tensor([[0.0, 0, 1]]).double())[0] - torch.tensor(geom.pos)
        w, x, y, z = model.geom_quat[i]
        theirs = torch.tensor([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)])
        if geom.kind != "sphere":
            assert abs(float(axis @ theirs)) == pytest.approx(1.0, abs=1e-6)


def test_clavicles_lie_at_their_real_angle(person):
    right = next(g for g in person.geoms if g.kind == "capsule" and g.pos[1] < 0)
    start, end = sorted(right.ends().tolist(), key=lambda p: -p[1])
    assert start == pytest.approx([-0.0060125, -0.0457775, 0.2287955], abs=1e-9)
    assert end == pytest.approx([-0.016835, -0.128177, 0.2376182], abs=1e-9)
    assert math.dist(start, end) == pytest.approx(2 * right.size[1])
