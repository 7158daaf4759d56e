"""Small whole files of every format, as the corpus of ``mutations`` begins with them."""

from __future__ import annotations

import io
import pickle
import tempfile
from pathlib import Path

import numpy as np

from parc_ray.character.character import Character
from tests.data import files, test_bvh, test_poselib, test_table
from tests.data.mutations import (
    SeedFile,
    dump,
    dump_json,
    dump_npz,
    dump_with,
    hostile_archives,
    hostile_objects,
    hostile_pickles,
)

FRAMES = 20


def parc_ms(character: Character) -> SeedFile:
    """Three pickles in one."""
    skeleton = character.skeleton
    identity = np.float32([0, 0, 0, 1])
    tree = {
        "motion_data": {
            "root_pos": np.tile(np.float32([0.1, 0.2, character.stand_height]), (FRAMES, 1)),
            "root_rot": np.tile(identity, (FRAMES, 1)),
            "joint_rot": np.tile(identity, (FRAMES, skeleton.num_joints, 1)),
            "body_contacts": np.zeros((FRAMES, skeleton.num_bodies), dtype=np.float32),
            "fps": 30,
            "loop_mode": "CLAMP",
        },
        "terrain_data": {
            "hf": np.zeros((4, 3), dtype=np.float32),
            "hf_maxmin": np.zeros((4, 3, 2), dtype=np.float32),
            "min_point": np.float32([-0.6, -0.4]),
            "dx": np.float32(0.4),
        },
        "misc_data": {"path_nodes": np.float32([[0, 0, 0], [1, 0, 0]])},
    }

    def encode(value: dict) -> bytes:
        parts = {k: dump(v) if isinstance(v, dict) else v for k, v in value.items()}
        return dump(parts)

    def put(value: dict, item: object) -> bytes:
        value["motion_data"]["fps"] = item
        return encode(value)

    def put_misc(value: dict, item: object) -> bytes:
        value["misc_data"]["x"] = item
        return encode(value)

    hostile = (
        *hostile_pickles(("motion_data",)),
        *dump_with(tree, hostile_objects(), put),
        *dump_with(tree, hostile_objects(), put_misc),
        *(dump({"motion_data": data}) for data in hostile_pickles(("frames",))),
    )
    return SeedFile("m.pkl", tree, encode, {}, hostile, pickled=True)


def _frames(character: Character) -> np.ndarray:
    frames = np.zeros((FRAMES, 6 + character.skeleton.num_dofs))
    frames[:, 2] = character.stand_height
    return frames


def _pickled(tree: dict, words: tuple[str, ...]) -> SeedFile:
    def put(value: dict, item: object) -> bytes:
        return dump({**value, "fps": item})

    hostile = (*hostile_pickles(words), *dump_with(tree, hostile_objects(), put))
    return SeedFile("m.pkl", tree, dump, {}, hostile, pickled=True)


def mimickit(character: Character) -> SeedFile:
    """One pickle of lists."""
    tree = {"loop_mode": 0, "fps": 30, "frames": _frames(character).tolist()}
    return _pickled(tree, ("loop_mode", "frames"))


def parc_legacy(character: Character) -> SeedFile:
    """One pickle whose terrain is a dict or an object of a class that is not known here."""
    tree = {
        "fps": 30,
        "loop_mode": 0,
        "frames": _frames(character),
        "contacts": np.zeros((FRAMES, character.skeleton.num_bodies)),
        "terrain": {
            "hf": np.zeros((4, 3)),
            "min_point": np.float32([-0.6, -0.4]),
            "dxdy": np.float32([0.4, 0.4]),
        },
        "path_nodes": np.zeros((2, 3)),
    }
    return _pickled(tree, ("frames", "terrain"))


def deepmimic(character: Character) -> SeedFile:
    """JSON."""
    tree = {"Loop": "none", "Frames": files.deepmimic_rows(frames=FRAMES)}
    deep = b'{"Loop": "none", "Frames": ' + b"[" * 100_000
    hostile = (deep, deep + b"1" + b"]" * 100_000 + b"}", b'{"Frames": [[' + b"9" * 5000 + b"]]}")
    return SeedFile("m.txt", tree, dump_json, {}, hostile)


def poselib(character: Character) -> SeedFile:
    """One object in a numpy file."""
    tree = test_poselib.poselib_dict(character, frames=FRAMES)
    for key in ("rotation", "root_translation"):  # standing still, as a wild motion is refused
        tree[key]["arr"][:] = 0.0
    tree["rotation"]["arr"][..., 3] = 1.0
    tree["root_translation"]["arr"][:, 2] = character.stand_height

    def encode(value: object) -> bytes:
        sink = io.BytesIO()
        content = np.empty((), dtype=object)
        content[()] = value
        np.lib.format.write_array(sink, content, allow_pickle=True)
        return sink.getvalue()

    def put(value: dict, item: object) -> bytes:
        return encode({**value, "fps": item})

    head = encode(1)
    head = head[: head.index(b"\n") + 1]
    hostile = (
        *(head + data for data in hostile_pickles(("rotation",))),
        *dump_with(tree, hostile_objects(), put),
        head.replace(b"()", b"(1000000000000,)") + pickle.dumps([1]),
        b"\x93NUMPY\x01\x00\xff\xff{'descr': '|O', " + b"(" * 3000,
    )
    return SeedFile("m.npy", tree, encode, {}, hostile, pickled=True)


def npz(character: Character) -> SeedFile:
    """An archive of our arrays."""
    skeleton = character.skeleton
    tree = test_table.arrays_of(character, frames=FRAMES)
    tree["root_pos"][:, 2] = character.stand_height
    tree |= {
        "contacts": np.zeros((FRAMES, skeleton.num_bodies)),
        "loop": np.array("clamp"),
        "terrain_heights": np.zeros((4, 3)),
        "terrain_origin": np.zeros(2),
        "terrain_cell_size": np.array(0.4),
        "terrain_confidence": np.ones((4, 3)),
        "path_nodes": np.zeros((2, 3)),
        "dof_names": np.array(skeleton.dof_names),
        "body_names": np.array(skeleton.body_names),
    }
    return SeedFile("m.npz", tree, dump_npz, {}, hostile_archives(tree))


def amass(character: Character) -> SeedFile:
    """An archive of SMPL's rotation vectors."""
    trans = np.zeros((FRAMES, 3))
    trans[:, 2] = 0.95
    poses = np.zeros((FRAMES, 156))
    poses[:, :3] = [np.pi / 2, 0.0, 0.0]  # upright
    tree = {
        "trans": trans,
        "poses": poses,
        "betas": np.zeros(16),
        "gender": np.array("neutral"),
        "mocap_framerate": np.array(30.0),
    }
    return SeedFile("m.npz", tree, dump_npz, {}, hostile_archives(tree))


def csv(character: Character) -> SeedFile:
    """Our table as text."""
    values = test_table.columns_of(character, frames=FRAMES)
    rows = [",".join(f"{values[name][k]:.4f}" for name in values) for k in range(FRAMES)]
    text = "\n".join(["# fps: 30", "# loop: clamp", ",".join(values), *rows, ""])
    hostile = (b"x" * 10**6, b"# fps: 30\n" + b"," * 10**5, b"# fps: 30\n" * 10**4)
    return SeedFile("m.csv", text, _encoded, {}, hostile)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_ASF = """:version 1.10
:name made
:units
  mass 1.0
  length 0.45
  angle deg
:documentation
  made for a test
:root
  order TX TY TZ RX RY RZ
  axis XYZ
  position 0 0 0
  orientation 0 0 0
:bonedata
{bones}:hierarchy
  begin
    root lhipjoint rhipjoint lowerback
    lhipjoint lfemur
    lfemur ltibia
    ltibia lfoot
    lfoot ltoes
    rhipjoint rfemur
    rfemur rtibia
    rtibia rfoot
    rfoot rtoes
    lowerback upperback
    upperback thorax
    thorax lowerneck lclavicle rclavicle
    lowerneck head
    lclavicle lhumerus
    lhumerus lradius
    lradius lhand
    rclavicle rhumerus
    rhumerus rradius
    rradius rhand
  end
"""
_BONES = {
    "hipjoint": (1, -0.8, 0, 2.5, False),
    "femur": (0.3, -1, 0, 7.0, True),
    "tibia": (0.3, -1, 0, 7.2, True),
    "foot": (0, -0.3, 1, 2.2, True),
    "toes": (0, 0, 1, 1.1, False),
    "clavicle": (1, 0.2, 0, 3.5, False),
    "humerus": (1, 0, 0, 5.0, True),
    "radius": (1, 0, 0, 3.5, True),
    "hand": (1, 0, 0, 1.0, True),
}
_TRUNK = {
    "lowerback": (0, 1, 0, 2.0, True),
    "upperback": (0, 1, 0, 2.0, True),
    "thorax": (0, 1, 0, 2.0, True),
    "lowerneck": (0, 1, 0, 1.5, True),
    "head": (0, 1, 0, 1.5, True),
}


def asf_amc(character: Character) -> SeedFile:
    """A motion and, beside it, its skeleton."""
    bones = dict(_TRUNK)
    for side, sign in (("l", 1), ("r", -1)):
        bones |= {side + k: (sign * v[0], *v[1:]) for k, v in _BONES.items()}
    text, moving = "", []
    for number, (name, (x, y, z, length, turns)) in enumerate(bones.items(), 1):
        text += f"  begin\n    id {number}\n    name {name}\n    direction {x} {y} {z}\n"
        text += f"    length {length}\n    axis 0 0 0  XYZ\n"
        if turns:
            text += "    dof rx ry rz\n    limits (-90 90)\n      (-90 90)\n      (-90 90)\n"
            moving.append(name)
        text += "  end\n"
    motion = ":FULLY-SPECIFIED\n:DEGREES\n"
    for frame in range(1, FRAMES + 1):
        motion += f"{frame}\nroot 0 17 0 0 0 0\n"
        motion += "".join(f"{name} {k % 3} 0 {frame / 10}\n" for k, name in enumerate(moving))
    beside = {"m.asf": _ASF.format(bones=text).encode()}
    return SeedFile("m.amc", motion, lambda t: t.encode("utf-8", "replace"), beside)


def bvh(character: Character) -> SeedFile:
    """A hierarchy and its motion in one text."""
    skeleton, angles, root = test_bvh.standing("cmu", FRAMES)
    with tempfile.TemporaryDirectory() as folder:
        path = test_bvh.write_bvh(Path(folder) / "m.bvh", skeleton, angles, root)
        text = path.read_text()
    deep = "".join(f"JOINT j{k}\n{{\nOFFSET 0 1 0\n" for k in range(20_000))
    hostile = (
        ("HIERARCHY\nROOT r\n{\n" + deep).encode(),
        ("HIERARCHY\nROOT r\n" + "{\n" * 10**5).encode(),
        text.replace("Frames: 20", "Frames: 1000000000000").encode(),
        text.replace("CHANNELS 3", "CHANNELS 999999999").encode(),
        b"HIERARCHY " + b"x" * 10**6,
    )
    return SeedFile("m.bvh", text, _encoded, {}, hostile)


SEEDS = {
    seed.__name__: seed
    for seed in (parc_ms, parc_legacy, mimickit, deepmimic, poselib, npz, csv, amass, asf_amc, bvh)
}
