"""PARC's older pickles, written here with stand-ins for the published classes."""

from __future__ import annotations

import enum
import os
import pickle
import sys
import types

import numpy as np
import pytest
import torch

from parc_ray.character import rotations as rot
from parc_ray.data.importers import detect, import_path, load_raw
from parc_ray.data.importers.parc_legacy import load
from parc_ray.errors import InputError

MODULES = ("util.terrain_util", "parc.util.terrain_util", "some_fork.terrains.grid")


def stand_ins(module, monkeypatch):
    """Classes as the published code may have them, importable while the file is written only."""
    parts = module.split(".")
    made = {}
    for k in range(1, len(parts) + 1):
        made[".".join(parts[:k])] = types.ModuleType(".".join(parts[:k]))
    terrain_class = type("SubTerrain", (), {"__module__": module})
    loop_class = enum.Enum("LoopMode", {"CLAMP": 0, "WRAP": 1}, module=module)
    made[module].SubTerrain, made[module].LoopMode = terrain_class, loop_class
    for name, value in made.items():
        monkeypatch.setitem(sys.modules, name, value)
    return terrain_class, loop_class


def write(path, character, module, monkeypatch, *, tensors=True, change=None, protocol=4):
    """A file; returns what is in it."""
    with monkeypatch.context() as patch:
        terrain_class, loop_class = stand_ins(module, patch)
        rng = np.random.default_rng(0)
        frames = np.zeros((30, 6 + character.skeleton.num_dofs), dtype=np.float32)
        frames[:, 0] = np.arange(30) / 30
        frames[:, 2] = character.stand_height
        frames[:, 3:6] = [0.0, 0.0, 0.5]
        frames[:, 6:] = 0.05 * rng.normal(size=character.skeleton.num_dofs)
        terrain = terrain_class()
        kind = torch.tensor if tensors else np.array
        terrain.hf = kind(np.arange(20, dtype=np.float32).reshape(5, 4) / 200)
        terrain.hf_maxmin = kind(np.ones((5, 4, 2), dtype=np.float32))
        terrain.hf_mask = kind(np.zeros((5, 4), dtype=bool))
        terrain.min_point = kind(np.float32([-0.8, -0.6]))
        terrain.dxdy = kind(np.float32([0.4, 0.4]))
        terrain.dims = torch.tensor([5, 4])
        terrain.device = torch.device("cpu")
        terrain.shape, terrain.kind = torch.zeros(5, 4).shape, torch.float32
        contacts = np.full((30, character.skeleton.num_bodies), 0.25, dtype=np.float32)
        data = {"fps": 30, "loop_mode": loop_class.CLAMP, "frames": frames, "contacts": contacts}
        data |= {"terrain": terrain, "path_nodes": np.zeros((3, 3), dtype=np.float32)}
        data |= {"obs": np.zeros((30, 7)), "obs_shapes": {"a": (7,)}}
        if change:
            change(data)
        path.write_bytes(pickle.dumps(data, protocol=protocol))
    assert module not in sys.modules
    return data


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_frames_contacts_and_terrain(module, tensors, protocol, tmp_path, character, monkeypatch):
    path = tmp_path / "walk.pkl"
    data = write(path, character, module, monkeypatch, tensors=tensors, protocol=protocol)
    assert detect(path).NAME == "parc_legacy"
    clip = import_path(path, character)[0]
    np.testing.assert_allclose(clip.frames.root_pos, data["frames"][:, :3], atol=1e-6)
    np.testing.assert_allclose(clip.frames.dof, data["frames"][:, 6:], atol=1e-6)
    assert torch.allclose(rot.heading_angle(clip.frames.root_rot), torch.tensor(0.5), atol=1e-6)
    np.testing.assert_array_equal(clip.frames.contacts, data["contacts"])
    np.testing.assert_array_equal(
        clip.terrain.heights, np.float32(np.arange(20)).reshape(5, 4) / 200
    )
    np.testing.assert_array_equal(clip.terrain.origin, np.float32([-0.8, -0.6]))
    assert clip.terrain.cell_size == 0.4
    assert clip.path_nodes.shape == (3, 3)


@pytest.mark.parametrize(
    ("stored", "loop"),
    [(1, "wrap"), (0, "clamp"), ("WRAP", "wrap"), ("LoopMode.WRAP", "wrap"), (None, None)],
)
def test_loop_modes(stored, loop, tmp_path, humanoid, monkeypatch):
    path = tmp_path / "m.pkl"
    write(path, humanoid, MODULES[0], monkeypatch, change=lambda d: d.update(loop_mode=stored))
    if loop is None:
        with pytest.raises(InputError, match=r"m\.pkl: loop_mode: None"):
            load_raw(path, humanoid)
    else:
        assert load_raw(path, humanoid).loop == loop


def test_without_terrain_it_is_inferred(tmp_path, humanoid, monkeypatch):
    path = tmp_path / "m.pkl"
    write(path, humanoid, MODULES[0], monkeypatch, change=lambda d: d.update(terrain=None))
    assert load_raw(path, humanoid).terrain is None


def _terrain(**changes):
    return lambda d: vars(d["terrain"]).update(changes)


BAD = {
    "no frames": (lambda d: d.pop("frames"), "'frames' is missing"),
    "columns": (lambda d: d.update(frames=np.zeros((30, 7))), "frames: shape 30 x 7"),
    "contacts": (lambda d: d.update(contacts=np.zeros((30, 2))), "contacts: shape 30 x 2"),
    "no heights": (lambda d: vars(d["terrain"]).pop("hf"), "without a height field"),
    "no origin": (lambda d: vars(d["terrain"]).pop("min_point"), "'min_point' is missing"),
    "no size": (lambda d: vars(d["terrain"]).pop("dxdy"), "'dx' is missing"),
    "oblong": (_terrain(dxdy=[0.4, 0.5]), "cells of 0.4 x 0.5 m"),
    "size": (_terrain(dxdy=[0.4, 0.4, 0.4]), "one or two finite cell sizes"),
    "size nan": (_terrain(dxdy=[float("nan")]), "one or two finite cell sizes"),
    "size zero": (_terrain(dxdy=[0.0]), "cell_size"),
    "heights": (_terrain(hf=np.full((5, 4), np.nan)), "NaN or infinite"),
    "flat heights": (_terrain(hf=np.zeros(5)), "two-dimensional"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_files_are_named(case, tmp_path, humanoid, monkeypatch):
    change, message = BAD[case]
    path = tmp_path / "bad.pkl"
    write(path, humanoid, MODULES[0], monkeypatch, change=change)
    with pytest.raises(InputError, match=r"bad\.pkl.*" + message):
        load(path, humanoid)


class _Hostile:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("where", ["terrain", "extra", "state"])
def test_nothing_in_the_file_runs(where, tmp_path, humanoid, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change = {
        "terrain": lambda d: d.update(terrain=_Hostile()),
        "extra": lambda d: d.update(extra=[_Hostile()]),
        "state": _terrain(device=_Hostile()),
    }[where]
    path = tmp_path / "bad.pkl"
    write(path, humanoid, MODULES[0], monkeypatch, change=change)
    with pytest.raises(InputError, match=r"bad\.pkl.*could run code"):
        import_path(path, humanoid)
    assert os.listdir(tmp_path) == ["bad.pkl"]


@pytest.mark.parametrize(
    "module", ["os", "torch.nn", "numpy.lib", "parc_ray.data.store", "builtins"]
)
def test_classes_of_known_packages_are_no_records(module, tmp_path, humanoid):
    data = b"\x80\x02}(X\x06\x00\x00\x00framesK\x01X\x07\x00\x00\x00terrainc"
    data += module.encode() + b"\nThing\n)\x81u."
    (tmp_path / "bad.pkl").write_bytes(data)
    with pytest.raises(InputError, match=r"bad\.pkl.*could run code"):
        load_raw(tmp_path / "bad.pkl", humanoid)
