"""ASF/AMC: known geometry, real takes, and what broken files are told."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from parc_ray.data.importers import asf_amc as importer
from parc_ray.data.importers import detect, import_path, load_raw
from parc_ray.errors import InputError
from parc_ray.motion.clip import validate_clip

ASF = """# made by a test
:version 1.10
:units
  mass 1.0
  length 0.45
  angle deg
:root
   order TX TY TZ RX RY RZ
   axis XYZ
   position 1 2 3
   orientation 10 20 30
:bonedata
  begin
     id 1
     name thigh
     direction 0 -2 0
     length 7
     axis 10 -20 30 XYZ
     dof rx ry rz
     limits (-160.0 20.0)
            (-70.0 70.0)
            (-60.0 70.0)
  end
  begin
     name shin
     direction 0.6 0 0.8
     length 5
     axis 0 0 20 ZYX
     dof rx rz
  end
  begin
     name stiff
     direction 1 0 0
     length 2
     axis 0 0 0 XYZ
  end
:hierarchy
  begin
    root thigh stiff
    thigh shin
  end
"""
ROWS = (
    {"root": (4, 5, 6, 10, 20, 30), "thigh": (15, 25, -35), "shin": (40, -50)},
    {"root": (5, 5, 6, -70, 80, 100), "thigh": (1, 2, 3), "shin": (-4, 5)},
)


def amc(rows=ROWS, first=1, header="#!OML\n:FULLY-SPECIFIED\n:DEGREES\n"):
    frames = [
        f"{first + k}\n" + "".join(f"{b} {' '.join(map(str, v))}\n" for b, v in row.items())
        for k, row in enumerate(rows)
    ]
    return header + "".join(frames)


def write(folder, text=None, skeleton=ASF, name="07_03.amc", asf: str | None = "07.asf"):
    (folder / name).write_text(amc() if text is None else text)
    if asf:
        (folder / asf).write_text(skeleton)
    return folder / name


def test_positions_by_matrices(tmp_path):
    """Local frames C M C^-1, angles about fixed axes in their order, lengths / 0.45 inches."""
    source = importer.read_source(write(tmp_path))
    assert source.joint_names == ("root", "thigh", "stiff", "shin", "stiff_end", "shin_end")
    assert source.fps == 120.0
    place = source.forward()[0].numpy()
    unit = 0.0254 / 0.45

    def turn(order, *angles):
        return Rotation.from_euler(order, angles, degrees=True)

    for t, row in enumerate(ROWS):
        axis = turn("xyz", 10, 20, 30)
        root = axis * turn("xyz", *row["root"][3:]) * axis.inv()
        frame = turn("xyz", 10, -20, 30)
        thigh = root * frame * turn("xyz", *row["thigh"]) * frame.inv()
        frame = turn("zyx", 0, 0, 20)
        shin = thigh * frame * turn("xz", *row["shin"]) * frame.inv()
        hip = np.array(row["root"][:3]) + np.array([1, 2, 3])
        knee = hip + thigh.apply([0, -7, 0])
        ankle = knee + shin.apply([3, 0, 4])
        stiff = hip + root.apply([2, 0, 0])
        want = {"root": hip, "thigh": hip, "shin": knee, "shin_end": ankle, "stiff_end": stiff}
        for joint, position in want.items():
            at = source.joint_names.index(joint)
            np.testing.assert_allclose(place[t, at], position * unit, atol=1e-12)


def test_radians_and_other_units(tmp_path):
    radians = ASF.replace("angle deg", "angle rad").replace("length 0.45", "length 1.0")
    for numbers in ("orientation 10 20 30", "axis 10 -20 30 XYZ", "axis 0 0 20 ZYX"):
        words = numbers.split()
        values = [f"{np.radians(float(w)):.15f}" for w in words[1:4]]
        radians = radians.replace(numbers, " ".join([words[0], *values, *words[4:]]))
    rows = [
        {b: (*v[:3], *np.radians(v[3:])) if b == "root" else tuple(np.radians(v))
         for b, v in row.items()} for row in ROWS
    ]  # fmt: skip
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    degrees = importer.read_source(write(tmp_path / "a"))
    other = importer.read_source(write(tmp_path / "b", amc(rows, first=41), radians))
    a, b = degrees.forward()[0].numpy(), other.forward()[0].numpy()
    np.testing.assert_allclose(b, a * 0.45, atol=1e-12)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (("07.asf", "07_03.asf", "08.asf"), "07_03.asf"),
        (("07.ASF", "08.asf"), "07.ASF"),
        (("other.asf",), "other.asf"),
    ],
)
def test_the_skeleton_is_found(tmp_path, files, found):
    for name in files:
        (tmp_path / name).write_text(ASF)
    assert importer.skeleton_file(tmp_path / "07_03.amc").name == found


def test_no_skeleton(tmp_path, humanoid):
    path = write(tmp_path, asf=None)
    with pytest.raises(InputError, match=r"07_03.amc: no skeleton .*none.*07.asf is needed"):
        load_raw(path, humanoid)
    for name in ("08.asf", "09.asf"):
        (tmp_path / name).write_text(ASF)
    with pytest.raises(InputError, match=r"08.asf, 09.asf"):
        load_raw(path, humanoid)


def test_found_by_content(tmp_path):
    path = write(tmp_path)
    shutil.copy(path, tmp_path / "other.txt")
    assert detect(tmp_path / "other.txt") is importer
    assert detect(path) is importer
    for text in (b"1\n2\n3\n", b"frame root\n1 2\n", b"1,2\nroot 3\n", b"\x80\x00root 1\n", b""):
        assert not importer.sniff(text, path)
    assert importer.sniff(b"1\r\nroot 1 2 3 4 5 6\r\n", path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (amc().replace("thigh", "tail"), "line 6: bone 'tail' has no channels"),
        (amc().replace("shin -4 5\n", ""), "frame 2: no line for bone 'shin'"),
        (amc().replace("shin 40 -50\n", ""), "frame 1: no line for bone 'shin'"),
        (amc().replace("40 -50", "40"), "line 7: shin: '40'; 2 finite numbers"),
        (amc().replace("40 -50", "40 nan"), "line 7: shin: '40 nan'; 2 finite numbers"),
        (amc().replace("40 -50", "40 x"), "line 7: shin: '40 x'; 2 finite numbers"),
        (amc().replace("\n2\n", "\n3\n"), "frame 3 after 1"),
        (amc().replace("shin 40 -50\n", "shin 40 -50\nshin 40 -50\n"), "'shin' twice in frame 1"),
        (amc(ROWS[:1]), "1 frame; 2 or more"),
        (amc()[: amc().index("thigh 1 2")], "frame 2: no line for bone 'thigh'"),
    ],
)
def test_broken_motions(tmp_path, humanoid, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_raw(path, humanoid)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":hierarchy", ":tree", "no section :hierarchy"),
        ("root thigh stiff", "root thigh tail", "bone 'tail' is not in bonedata"),
        ("thigh shin\n", "shin thigh\n", "'shin' has no parent yet"),
        ("thigh shin\n", "thigh shin stiff\n", "'stiff' has two"),
        ("name shin", "name thigh", "bone name 'thigh' is missing, used twice or longer"),
        ("     name shin\n", "", "bone name '' is missing"),
        ("length 5", "length -5", "bone 'shin': length -5"),
        ("direction 0.6 0 0.8", "direction 0 0 0", "bone 'shin': length 5 along nothing"),
        ("direction 0.6 0 0.8", "direction 0.6 0", "bone 'shin': direction: '0.6 0'; 3 finite"),
        ("20 ZYX", "20 ZZX", "bone 'shin': axis: order 'zzx'"),
        ("dof rx rz", "dof rx tz", "bone 'shin': dof: 'rx tz'; rx, ry and rz are allowed"),
        ("dof rx rz", "dof rx rx", "bone 'shin': dof: 'rx rx'"),
        ("length 0.45", "length 0", "units: length: 0;"),
        ("order TX TY TZ RX RY RZ", "order TX TY TZ RX RY", "root: order"),
        ("orientation 10 20 30", "orientation 10 20 inf", "root: orientation"),
    ],
)
def test_broken_skeletons(tmp_path, old, new, message):
    assert old in ASF
    path = write(tmp_path, skeleton=ASF.replace(old, new))
    with pytest.raises(InputError) as error:
        importer.read_source(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "07.asf"))
    assert "\n" not in str(error.value)


def test_a_skeleton_that_is_cut(tmp_path):
    cut = ASF[: ASF.index("direction 0.6")] + "\n:hierarchy\nbegin\nroot thigh\nend\n"
    with pytest.raises(InputError, match="ends within a bone"):
        importer.read_source(write(tmp_path, skeleton=cut))


def test_damage_is_refused_in_one_line(tmp_path):
    """Bytes changed, cut out, repeated: either it still reads, or one line says why not."""
    chance = random.Random(5)
    said = []
    for _ in range(150):
        texts = [bytearray(amc().encode()), bytearray(ASF.encode())]
        text = texts[chance.randrange(2)]
        at, more = chance.randrange(len(text)), chance.randrange(1, 30)
        kind = chance.randrange(4)
        if kind == 0:
            text[at] = chance.randrange(256)
        elif kind == 1:
            del text[at : at + more]
        elif kind == 2:
            text[at:at] = text[at : at + more]
        else:
            del text[at:]
        (tmp_path / "07_03.amc").write_bytes(texts[0])
        (tmp_path / "07.asf").write_bytes(texts[1])
        try:
            importer.read_source(tmp_path / "07_03.amc")
        except InputError as error:
            said.append(str(error))
    assert len(said) > 50
    assert all("\n" not in line and len(line) < 500 for line in said)


def test_real_takes_become_clips(shared_data, character):
    """Through the whole import: within ranges at 30 fps, ankles as reported, levels that fit."""
    clips = {c.clip_id: c for c in import_path(shared_data / "formats" / "cmu", character)}
    assert sorted(clips) == ["02_01", "03_01"]
    for clip, frames in ((clips["02_01"], 344), (clips["03_01"], 433)):
        validate_clip(clip, character)
        assert clip.metrics["retarget_ankle_mean_m"] < 0.003
        assert clip.metrics["retarget_limit_share"] < 0.001
        low, high = character.skeleton.dof_limits.T
        dof = clip.frames.dof
        assert ((dof < low - 1e-3) | (dof > high + 1e-3)).float().mean() < 0.005
        assert abs(clip.num_frames - frames / 4) <= 1
        assert "CMU" in clip.provenance.licence
    way = clips["02_01"].frames.root_pos[:, :2]
    scale = clips["02_01"].metrics["retarget_scale"]
    assert 2.0 < float((way[-1] - way[0]).norm()) / scale < 5.0, "some metres of a walk"
