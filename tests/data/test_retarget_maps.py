"""Source motions, joint maps and roles: what they mean, and what wrong ones are told."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from parc_ray.data.retarget import SourceMotion, load_joint_map, parse_joint_map, retarget
from parc_ray.data.retarget.joint_map import MAPS
from parc_ray.data.retarget.roles import ROLES, body_roles
from parc_ray.errors import InputError

from .skeletons import as_source, motion_of, own_map


def small(**changes):
    """Three joints in a row and one beside, turned at random."""
    turns = Rotation.random(5 * 4, rng=np.random.default_rng(0)).as_quat().reshape(5, 4, 4)
    given = {
        "name": "small.bvh",
        "joint_names": ("hips", "knee", "ankle", "arm"),
        "parents": (-1, 0, 1, 0),
        "offsets": torch.tensor([[9.0, 9, 9], [0, -1, 0], [0, -2, 0.5], [1, 1, 1]]),
        "root_pos": torch.arange(15.0).reshape(5, 3),
        "local_rot": torch.from_numpy(turns),
        "fps": 30,
    }
    return SourceMotion(**{**given, **changes})


# ---- source motions ------------------------------------------------------------------------


def test_forward_kinematics_by_matrices():
    source = small()
    place, turn = source.forward()
    for t in range(5):
        m = [np.eye(4) for _ in range(4)]
        for j, parent in enumerate(source.parents):
            m[j][:3, :3] = Rotation.from_quat(source.local_rot[t, j].numpy()).as_matrix()
            m[j][:3, 3] = source.root_pos[t] if j == 0 else source.offsets[j]
            m[j] = m[j] if j == 0 else m[parent] @ m[j]
            np.testing.assert_allclose(place[t, j], m[j][:3, 3], atol=1e-12)
            np.testing.assert_allclose(
                Rotation.from_quat(turn[t, j].numpy()).as_matrix(), m[j][:3, :3], atol=1e-12
            )


@pytest.mark.parametrize(("up", "mapped"), [("y", [1, -3, 2]), ("z", [1, 2, 3]), ("x", [-3, 2, 1])])
def test_the_up_axis_turns_to_z(up, mapped):
    """All joints move with the world: (1, 2, 3) becomes what is written beside each axis."""
    source = small()
    turned = source.converted(up, 0.01)
    matrix = np.zeros((3, 3))
    for row, value in enumerate(mapped):
        matrix[row, abs(value) - 1] = np.sign(value)
    assert np.linalg.det(matrix) == pytest.approx(1.0)
    place, moved = source.forward()[0].numpy(), turned.forward()[0].numpy()
    np.testing.assert_allclose(moved, 0.01 * place @ matrix.T, atol=1e-12)
    axis = np.zeros(3)
    axis["xyz".index(up)] = 1.0
    np.testing.assert_allclose(matrix @ axis, [0, 0, 1])
    rest = source.rest()[0].numpy()
    np.testing.assert_allclose(turned.rest()[0].numpy(), 0.01 * rest @ matrix.T, atol=1e-12)


def test_chains_and_children():
    source = small()
    assert source.chain(0, 2) == (1, 2)
    assert source.chain(1, 2) == (2,)
    assert source.chain(1, 3) == ()
    assert source.children(0) == (1, 3)
    assert source.num_frames == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parents": (-1, 0, 1, -1)}, "joint 'arm' comes before its parent or is a second root"),
        ({"parents": (-1, 2, 1, 0)}, "joint 'knee' comes before its parent"),
        ({"parents": (-1, 0, 1)}, "4 joints with 3 parents"),
        ({"offsets": torch.zeros(3, 3)}, "offsets: shape 3 x 3; 4 x 3 is needed"),
        ({"root_pos": torch.full((5, 3), torch.nan)}, "root position: NaN"),
        ({"local_rot": torch.zeros(5, 4, 4)}, "joint rotations: quaternion 0 has norm 0"),
        ({"local_rot": torch.ones(4, 4, 4)}, "joint rotations: shape 4 x 4 x 4"),
        ({"rest_rot": torch.ones(4, 4)}, "rest rotations: quaternion 0 has norm 2"),
        ({"fps": 1e9}, "is no frame rate"),
        ({"root_pos": torch.zeros(1, 3), "local_rot": torch.eye(4)[None]}, "1 frame; 2 or more"),
    ],
)
def test_sources_that_cannot_be(changes, message):
    with pytest.raises(InputError) as error:
        small(**changes)
    assert message in str(error.value)
    assert str(error.value).startswith("small.bvh: ")
    assert "\n" not in str(error.value)


# ---- roles ---------------------------------------------------------------------------------


def names(character):
    return {r: character.skeleton.body_names[b] for r, b in body_roles(character).items()}


def test_roles_of_the_humanoid_are_its_names(humanoid):
    roles = names(humanoid)
    assert roles.pop("pelvis") == "pelvis"
    assert all(role == body for role, body in roles.items())
    assert len(roles) == humanoid.skeleton.num_bodies - 1


def test_roles_of_another_character(waddler):
    assert names(waddler) == {
        "pelvis": "hips",
        "torso": "chest",
        "head": "beak",
        "left_thigh": "left_leg",
        "left_shin": "left_shank",
        "left_foot": "left_sole",
        "right_thigh": "right_leg",
        "right_shin": "right_shank",
        "right_foot": "right_sole",
    }


# ---- joint maps ----------------------------------------------------------------------------


def test_packaged_maps_speak_of_every_role(humanoid, waddler):
    for path in sorted(MAPS.glob("*.yaml")):
        joint_map = load_joint_map(path.stem)
        assert len(joint_map.bodies_of(humanoid)) == humanoid.skeleton.num_bodies
        assert len(joint_map.bodies_of(waddler)) == waddler.skeleton.num_bodies
        assert joint_map.scale is None


def test_alternatives_patterns_and_case(waddler):
    text = """
    bodies:
      pelvis: [Hips, "/.*:hips/"]
      left_foot: "/LEFT.?FOOT/"
      torso: [spine9, Spine2]
      left_leg: nothing
      left_thigh: thighL
    optional: [left_leg, left_thigh]
    """
    joint_map = parse_joint_map(text, "m.yaml")
    found = joint_map.resolve(("mixamorig:Hips", "Spine2", "LeftFoot"), waddler, "walk.bvh")
    where = {waddler.skeleton.body_names[b]: j for b, j in found.items()}
    assert where == {"hips": 0, "chest": 1, "left_sole": 2}
    sole = waddler.skeleton.body_index("left_sole")
    assert joint_map.held(waddler, found) == (sole,)
    chosen = parse_joint_map(text + "\n    end_effectors: [torso]", "m.yaml")
    assert chosen.held(waddler, found) == (waddler.skeleton.body_index("chest"),)


def test_missing_joints_get_near_names(humanoid):
    joint_map = load_joint_map("cmu")
    joints = ("root", "thorax", "head", "lfemurr", "lfoot")
    with pytest.raises(InputError) as error:
        joint_map.resolve(joints, humanoid, "a.amc")
    said = str(error.value)
    assert said.startswith("a.amc: no joint ")
    assert "joint_map.yaml" in said
    assert "\n" not in said
    rest = [
        "rfemur",
        "rtibia",
        "rfoot",
        "ltibia",
        "lhumerus",
        "lradius",
        "lhand",
        "rhumerus",
        "rradius",
        "rhand",
    ]
    with pytest.raises(InputError, match=r"lfemur for body 'left_thigh'.* near names: .*lfemurr"):
        joint_map.resolve((*joints, *rest), humanoid, "a.amc")


def test_a_map_without_the_root(humanoid):
    with pytest.raises(InputError, match="no entry for the root 'pelvis'"):
        parse_joint_map("bodies: {torso: spine}", "m").resolve(("spine",), humanoid, "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not YAML"),
        ("- 1", "a mapping with a table 'bodies'"),
        ("bodies: {pelvis: 3}", "bodies.pelvis: 3"),
        ("bodies: {pelvis: []}", "bodies.pelvis"),
        ("bodies: {pelvis: '/(/'}", "bodies.pelvis: /(/"),
        ("bodies: {pelvis: a}\nup: w", "up: 'w'; allowed: x, y or z"),
        ("bodies: {pelvis: a}\nscale: -1", "scale: -1; allowed: leg, or metres"),
        ("bodies: {pelvis: a}\nscale: .nan", "scale: nan"),
        ("bodies: {pelvis: a}\nfps: 1e9", "fps"),
        ("bodies: {pelvis: a}\nfeet: up", "feet: 'up'; allowed: ground or shin"),
        ("bodies: {pelvis: a}\nsclae: 1", "sclae: unknown key"),
        ("bodies: {pelvis: a}\noptional: [b]", "optional: ['b']"),
        ("bodies: {pelvis: a}\nend_effectors: a", "end_effectors: 'a'"),
        ("bodies: {pelvis: a}\nrest: {a: [1, 2]}", "rest.a: [1, 2]"),
        ("bodies: {pelvis: a}\nrest: [1]", "rest: [1]"),
    ],
)
def test_wrong_maps(text, message):
    with pytest.raises(InputError) as error:
        parse_joint_map(text, "m.yaml")
    assert str(error.value).startswith("m.yaml: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_maps_are_found_by_name_path_and_beside_a_file(tmp_path):
    assert load_joint_map("cmu").up == "y"
    with pytest.raises(InputError, match=r"no such joint map; a YAML file or one of .*cmu.*smpl"):
        load_joint_map("nobody")
    with pytest.raises(InputError, match="no such joint map"):
        load_joint_map(tmp_path / "gone.yaml")
    (tmp_path / "joint_map.yaml").write_text("name: mine\nbodies: {pelvis: hip}\nfps: 60")
    beside = load_joint_map("cmu", beside=tmp_path / "walk.amc")
    assert (beside.name, beside.fps) == ("mine", 60.0)
    (tmp_path / "big.yaml").write_bytes(b" " * (1 << 21))
    with pytest.raises(InputError, match="larger than a joint map"):
        load_joint_map(tmp_path / "big.yaml")


def test_the_map_in_the_documentation_is_one(humanoid):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (text,) = re.findall(r"^```yaml\n(name: mine.*?)^```", page, re.MULTILINE | re.DOTALL)
    joint_map = parse_joint_map(text, "docs")
    assert joint_map.bodies_of(humanoid)[0] == ("Hips", "/.*:Hips/")
    roles = " ".join(re.findall(r"^Roles are .*?;", page, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"`([a-z_]+[a-z])`", roles))
    assert named == {role.removeprefix("left_").removeprefix("right_") for role in ROLES}


def test_rest_of_a_map_stands_a_source_up(humanoid):
    """Rest frames whose zero pose has the left arm straight up: the map brings it back."""
    motion = motion_of(humanoid, frames=6)
    turn = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64).repeat(
        humanoid.skeleton.num_bodies, 1
    )
    joints = [humanoid.skeleton.body_index(f"left_{b}") for b in ("upper_arm", "lower_arm", "hand")]
    turn[joints] = torch.from_numpy(Rotation.from_euler("x", 90, degrees=True).as_quat())
    source = as_source(humanoid, *motion, frames_turn=turn)
    assert source.rest_rot is not None
    rest = source.rest_rot[source.index("j_left_upper_arm")]
    vector = Rotation.from_quat(rest.numpy()).as_rotvec(degrees=True).tolist()
    want = retarget(source, own_map(humanoid), humanoid)[0]
    source = SourceMotion(**{**source.__dict__, "rest_rot": None})
    told = own_map(humanoid, rest={"j_left_upper_arm": tuple(vector)})
    got = retarget(source, told, humanoid)[0]
    torch.testing.assert_close(got.dof, want.dof)
    with pytest.raises(InputError, match="no joint 'j_tail' for rest"):
        retarget(source, own_map(humanoid, rest={"j_tail": (0, 0, 0)}), humanoid)
