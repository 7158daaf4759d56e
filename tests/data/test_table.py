"""Tables: CSV and NPZ in our own columns, and CSVs of robots with names of their own."""

from __future__ import annotations

import io
import math
import pickle
import zipfile

import numpy as np
import pytest
import torch

from parc_ray.data import npz
from parc_ray.data.importers import detect, import_path, load_raw
from parc_ray.errors import InputError

ROOT = ["root_pos_x", "root_pos_y", "root_pos_z"]
QUAT = ["root_rot_x", "root_rot_y", "root_rot_z", "root_rot_w"]


def columns_of(character, frames=20):
    """Columns by name: walking forward at 1 m/s, turned by 30 degrees, every dof its own value."""
    dofs = character.skeleton.dof_names
    values = {name: np.zeros(frames) for name in (*ROOT, *QUAT, *dofs)}
    values["root_pos_x"] = np.arange(frames) / 30
    values["root_pos_z"][:] = character.stand_height
    values["root_rot_z"][:], values["root_rot_w"][:] = (
        math.sin(math.pi / 12),
        math.cos(math.pi / 12),
    )
    for k, name in enumerate(dofs):
        values[name][:] = 0.001 * (k + 1)
    return values


def write_csv(path, values, remarks=("# fps: 30",), names=None):
    block = np.stack(list(values.values()), axis=-1)
    rows = [",".join(repr(float(v)) for v in row) for row in block]
    path.write_text("\n".join([*remarks, ",".join(names or values), *rows, ""]))
    return path


def arrays_of(character, frames=20):
    skeleton = character.skeleton
    return {
        "root_pos": np.zeros((frames, 3), dtype=np.float32),
        "root_rot": np.tile(np.float32([0, 0, 0, 1]), (frames, 1)),
        "dof": np.tile(np.linspace(0, 0.1, skeleton.num_dofs), (frames, 1)),
        "fps": np.array(30),
    }


# ---- CSV -----------------------------------------------------------------------------------


def test_columns_are_found_by_name(tmp_path, character):
    values = columns_of(character)
    order = np.random.default_rng(0).permutation(list(values))
    path = write_csv(tmp_path / "a.csv", {name: values[name] for name in order})
    assert detect(path).NAME == "table"
    raw = load_raw(path, character)
    assert (raw.fps, raw.loop, raw.contacts, raw.terrain) == (30.0, "clamp", None, None)
    np.testing.assert_allclose(raw.root_pos[:, 0], np.arange(20) / 30)
    np.testing.assert_allclose(
        raw.root_rot[3], [0, 0, math.sin(math.pi / 12), math.cos(math.pi / 12)]
    )
    np.testing.assert_allclose(raw.dof[5], 0.001 * np.arange(1, character.skeleton.num_dofs + 1))


@pytest.mark.parametrize("order", ["xyzw", "wxyz"])
@pytest.mark.parametrize("style", ["{}", "root_{}", "pos_{}"])
@pytest.mark.parametrize("quat", ["q{}", "root_q{}", "quat_{}", "root_quat_{}", "Q{}"])
def test_files_of_robots_differ_in_names_only(order, style, quat, tmp_path, waddler):
    values = columns_of(waddler)
    names = {f"root_pos_{axis}": style.format(axis) for axis in "xyz"}
    names |= {f"root_rot_{axis}": quat.format(axis) for axis in "xyzw"}
    sequence = [*ROOT, *(f"root_rot_{axis}" for axis in order), *waddler.skeleton.dof_names]
    path = tmp_path / "robot.csv"
    write_csv(path, {n: values[n] for n in sequence}, names=[names.get(n, n) for n in sequence])
    raw = load_raw(path, waddler)
    np.testing.assert_allclose(
        raw.root_rot[0], [0, 0, math.sin(math.pi / 12), math.cos(math.pi / 12)]
    )
    np.testing.assert_allclose(raw.root_pos[:, 2], waddler.stand_height)


def test_rate_from_times_degrees_loops_and_contacts(tmp_path, humanoid):
    values = {"time": 5.0 + np.arange(20) / 50, **columns_of(humanoid)}
    for name in humanoid.skeleton.dof_names:
        values[name] = np.degrees(values[name])
    values["contact_left_foot"] = np.arange(20) % 2
    remarks = ("# angles: degrees", "# Loop: WRAP", "# made by: hand", "")
    raw = load_raw(write_csv(tmp_path / "a.csv", values, remarks), humanoid)
    assert raw.fps == pytest.approx(50)
    assert raw.loop == "wrap"
    np.testing.assert_allclose(raw.dof[5], 0.001 * np.arange(1, humanoid.skeleton.num_dofs + 1))
    foot = humanoid.skeleton.body_index("left_foot")
    np.testing.assert_array_equal(raw.contacts[:, foot], np.arange(20) % 2)
    others = [b for b in range(humanoid.skeleton.num_bodies) if b != foot]
    assert float(raw.contacts[:, others].max()) == 0.0


def test_a_directory_of_tables(tmp_path, humanoid):
    write_csv(tmp_path / "walk1.csv", columns_of(humanoid))
    (tmp_path / "results.csv").write_text("x,y,z\n1,2,3\n")
    np.savez(tmp_path / "run1.npz", **arrays_of(humanoid))
    np.savez(tmp_path / "other.npz", poses=np.zeros(3))
    clips = import_path(tmp_path, humanoid)
    assert [(c.clip_id, c.provenance.class_name) for c in clips] == [
        ("run1", "run"),
        ("walk1", "walk"),
    ]


def _swap(old, new):
    return lambda text: text.replace(old, new, 1)


BAD_CSV = {
    "no rate": (_swap("# fps: 30\n", ""), "no frame rate"),
    "rate": (_swap("fps: 30", "fps: fast"), "'fast' is no frame rate"),
    "loop": (lambda t: "# loop: maybe\n" + t, "loop: 'maybe'; clamp or wrap"),
    "angles": (lambda t: "# angles: turns\n" + t, "angles: 'turns'; radians or degrees"),
    "missing": (_swap("abdomen_x", "torso_x"), r"1 columns missing \('abdomen_x'\)"),
    "unknown": (
        lambda t: "\n".join(
            f"{line},{'extra' if 'root_pos_x' in line else '1'}" if line[:1] != "#" else line
            for line in t.strip().splitlines()
        ),
        r"1 columns unknown \('extra'\)",
    ),
    "twice": (_swap("abdomen_y", "abdomen_x"), r"1 columns twice \('abdomen_x'\)"),
    "short row": (lambda t: t.rstrip() + "\n1,2,3\n", "line 23 has 3 cells"),
    "text": (_swap("0.003", "three"), "line 3: could not convert"),
    "nan": (_swap("0.003", "nan"), "NaN"),
    "quat": (_swap(repr(math.cos(math.pi / 12)), "0.5"), "root_rot: quaternion 0 has norm"),
    "no rows": (lambda t: "\n".join(t.splitlines()[:2]), "no rows of numbers"),
}


@pytest.mark.parametrize("case", list(BAD_CSV))
def test_bad_tables_are_named(case, tmp_path, humanoid):
    change, message = BAD_CSV[case]
    path = write_csv(tmp_path / "bad.csv", columns_of(humanoid))
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=r"bad\.csv.*" + message):
        load_raw(path, humanoid)


def test_uneven_times_and_other_encodings(tmp_path, humanoid):
    values = {"time": np.arange(20) ** 1.1, **columns_of(humanoid)}
    with pytest.raises(InputError, match="time is not even"):
        load_raw(write_csv(tmp_path / "bad.csv", values, ()), humanoid)
    path = write_csv(tmp_path / "bad.csv", columns_of(humanoid))
    path.write_bytes(path.read_bytes() + b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8 text"):
        load_raw(path, humanoid)
    path = write_csv(tmp_path / "good.csv", columns_of(humanoid))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_raw(path, humanoid).fps == 30


# ---- NPZ -----------------------------------------------------------------------------------


def test_arrays_with_names_in_any_order(tmp_path, character):
    skeleton = character.skeleton
    arrays = arrays_of(character)
    order = np.random.default_rng(0).permutation(skeleton.num_dofs)
    arrays["dof"] = arrays["dof"][:, order]
    arrays["dof_names"] = np.array(skeleton.dof_names)[order]
    arrays["contacts"] = np.tile(np.arange(skeleton.num_bodies) / 100, (20, 1))[:, ::-1]
    arrays["body_names"] = np.array(skeleton.body_names)[::-1]
    arrays |= {"loop": np.array("wrap"), "terrain_heights": np.zeros((3, 2))}
    arrays |= {"terrain_origin": np.zeros(2), "terrain_cell_size": np.float32(0.25)}
    arrays |= {"terrain_confidence": np.full((3, 2), 0.5), "path_nodes": np.ones((4, 3))}
    np.savez(tmp_path / "a.npz", **arrays)
    raw = load_raw(tmp_path / "a.npz", character)
    np.testing.assert_allclose(raw.dof[0], np.linspace(0, 0.1, skeleton.num_dofs))
    np.testing.assert_allclose(raw.contacts[0], np.arange(skeleton.num_bodies) / 100)
    assert (raw.loop, raw.terrain.shape, raw.terrain.cell_size) == ("wrap", (3, 2), 0.25)
    assert torch.equal(raw.terrain.confidence, torch.full((3, 2), 0.5))
    assert raw.path_nodes.shape == (4, 3)


BAD_NPZ = {
    "missing": (lambda a: a.pop("dof"), "arrays dof are missing"),
    "dofs": (lambda a: a.update(dof=np.zeros((20, 3))), "dof: shape 20 x 3"),
    "frames": (lambda a: a.update(dof=a["dof"][:-1]), "dof: shape 19"),
    "objects": (lambda a: a.update(dof=np.array([{}, 1], dtype=object)), "elements of type |O"),
    "text": (lambda a: a.update(root_pos=np.full((20, 3), "x")), "not a block of numbers"),
    "names": (lambda a: a.update(dof_names=np.array(["a", "b"])), "dof_names differ"),
    "rates": (lambda a: a.update(fps=np.array([30, 60])), "fps: 2 values; one is needed"),
    "loop": (lambda a: a.update(loop=np.array("twice")), "loop: 'twice'"),
    "terrain": (
        lambda a: a.update(terrain_heights=np.zeros((2, 2))),
        "terrain_origin, terrain_cell",
    ),
    "nan": (lambda a: a["root_pos"].__setitem__((3, 1), np.nan), "root_pos: NaN"),
}


@pytest.mark.parametrize("case", list(BAD_NPZ))
def test_bad_archives_are_named(case, tmp_path, humanoid):
    change, message = BAD_NPZ[case]
    arrays = arrays_of(humanoid)
    change(arrays)
    np.savez(tmp_path / "bad.npz", **arrays, allow_pickle=True)
    with pytest.raises(InputError, match=r"bad\.npz.*" + message):
        load_raw(tmp_path / "bad.npz", humanoid)


def header(shape, kind="<f8"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def archive(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def test_declared_shapes_and_bombs_are_not_believed(tmp_path, humanoid, monkeypatch):
    base = {f"{k}.npy": _npy(v) for k, v in arrays_of(humanoid).items()}
    for shape in ((10**12, 3), (10**18, 10**18), (0, 3), (2, 3)):
        path = archive(tmp_path / "a.npz", base | {"root_pos.npy": header(shape) + b"\0" * 24})
        with pytest.raises(
            InputError, match=r"a\.npz: root_pos: shape .* does not fit its 24 bytes"
        ):
            load_raw(path, humanoid)
    monkeypatch.setattr(npz, "MAX_BYTES", 2**20)
    bomb = header((2**16, 3)) + b"\0" * (2**16 * 24)
    path = archive(tmp_path / "b.npz", base | {"root_pos.npy": bomb})
    assert path.stat().st_size < 20_000
    with pytest.raises(InputError, match=r"b\.npz: 2 MiB when unpacked"):
        load_raw(path, humanoid)
    path = archive(tmp_path / "c.npz", base | {"unrelated.npy": bomb})
    load_raw(path, humanoid)  # what is not needed is not unpacked
    for content in (b"", b"\x93NUMPY", pickle.dumps(1), header((2,), "|O") + pickle.dumps([1, 2])):
        path = archive(tmp_path / "d.npz", base | {"dof.npy": content})
        with pytest.raises(InputError, match=r"d\.npz: dof: "):
            load_raw(path, humanoid)


def _npy(value):
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()
