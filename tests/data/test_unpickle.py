"""The restricted unpickler: published files load, hostile ones never run."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
from collections import OrderedDict

import numpy as np
import pytest
import torch

from parc_ray.data.unpickle import Opaque, Record, safe_load
from parc_ray.errors import InputError


class _Reduce:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def _with_numpy1_names(data: bytes) -> bytes:
    # protocol 2 stores "module\nname\n": the older module name can be put in place
    return data.replace(b"numpy._core", b"numpy.core")


VALUES = {
    "f32": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "scalar": np.float32(0.4),
    "bool": np.array([True, False]),
    "plain": {"a": [1, 2.5, None, "x", b"y"], "b": (True, {1, 2})},
}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_arrays_and_containers_round_trip(protocol):
    loaded = safe_load(pickle.dumps(VALUES, protocol=protocol), "v.pkl")
    for key in ("f32", "fortran", "scalar", "bool"):
        np.testing.assert_array_equal(loaded[key], VALUES[key])
        assert loaded[key].dtype == VALUES[key].dtype
    assert loaded["plain"] == VALUES["plain"]


def test_numpy_1_module_names():
    data = _with_numpy1_names(pickle.dumps(VALUES, protocol=2))
    assert b"numpy.core" in data
    assert b"numpy._core" not in data
    np.testing.assert_array_equal(safe_load(data, "v.pkl")["f32"], VALUES["f32"])


def test_torch_tensors():
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    loaded = safe_load(pickle.dumps({"t": tensor, "v": tensor.t()[1:]}), "t.pkl")
    assert torch.equal(loaded["t"], tensor)
    assert torch.equal(loaded["v"], tensor.t()[1:])


def _inner_hostile() -> bytes:
    buffer = io.BytesIO()
    torch.save(_Reduce(os.system, "touch hacked"), buffer)
    return pickle.dumps(_Reduce(torch.storage._load_from_bytes, buffer.getvalue()))


HOSTILE = {
    "os.system": pickle.dumps(_Reduce(os.system, "touch hacked")),
    "protocol 0": pickle.dumps(_Reduce(os.system, "touch hacked"), protocol=0),
    "Popen": pickle.dumps(_Reduce(subprocess.Popen, ["touch", "hacked"])),
    "eval": pickle.dumps(_Reduce(eval, "open('hacked', 'w')")),
    "exec nested": pickle.dumps({"frames": [[_Reduce(exec, "open('hacked', 'w')")]]}),
    "getattr": b"cbuiltins\ngetattr\n(cos\nsystem\nS'x'\ntR.",
    "inst opcode": b"(S'touch hacked'\nios\nsystem\n.",
    "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x12f2py.os.system.real\x93\x8c\x01x\x85R.",
    "numpy function": b"cnumpy.lib.npyio\nload\n(S'x'\ntR.",
    "own module": b"cparc_ray.data.unpickle\nos\n.",
    "torch.load": b"ctorch.serialization\nload\n(S'x'\ntR.",
    "inside a tensor": _inner_hostile(),
    "codec": b"c_codecs\nencode\n(Vabc\nVhex\ntR.",
    "ndarray subclass": b"cnumpy.core.multiarray\n_reconstruct\n"
    b"(ccollections\nOrderedDict\n(I0\ntS'b'\ntR.",
    "forged dtype": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    b"(I1\n(I1\ntcnumpy\ndtype\n(S'O8'\nI0\nI1\ntR"
    b"(I3\nS'|'\nNNNI8\nI8\nI0\ntbI00\nVAAAAAAAA\ntb.",
    "object array": pickle.dumps(np.array([{}, None], dtype=object)),
    "ndarray called": b"cnumpy\nndarray\n((I2\ntS'O'\ntR.",
    "changes a function": b"c_codecs\nencode\n(N}S'_function'\nI1\nstb.",
    "persistent id": b"Pabc\n.",
    "huge memo": b"\x80\x02}r\xf0\xff\xff\xff.",
    "huge bytes": b"\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00x.",
    "huge frame": b"\x80\x04\x95\x00\x00\x00\x00\x00\x01\x00\x00}.",
    "extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("kind", list(HOSTILE))
@pytest.mark.parametrize("opaque", [False, True])
def test_hostile_files_are_refused_and_nothing_runs(kind, opaque, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"bad\.pkl") as caught:
        safe_load(HOSTILE[kind], "bad.pkl", opaque=opaque)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_memory_is_not_reserved_for_what_is_not_there():
    for call in (b"I10000000000000\nt", b"Vabc\nVutf-16\nt"):
        with pytest.raises(InputError, match=r"big\.pkl"):
            safe_load(b"cbuiltins\nbytearray\n(" + call + b"R.", "big.pkl")
    assert safe_load(pickle.dumps(bytearray(b"ab\xff"), protocol=2), "b.pkl") == b"ab\xff"
    spread = torch.zeros(1).expand(10**5, 10**5)
    with pytest.raises(InputError, match="exceeds what is stored"):
        safe_load(pickle.dumps(spread), "big.pkl")
    few = torch.ones(1).expand(30, 2)
    assert torch.equal(safe_load(pickle.dumps(few), "few.pkl"), few)


def test_arrays_of_objects_only_where_asked_for():
    value = np.array([{"a": 1}, None, [2.0]], dtype=object)
    for protocol in (2, 4, 5):
        data = pickle.dumps(value, protocol=protocol)
        loaded = safe_load(data, "o.pkl", objects=True)
        assert loaded.tolist() == value.tolist()
        with pytest.raises(InputError, match="not allowed"):
            safe_load(data, "o.pkl")
    for kind, data in HOSTILE.items():
        if kind != "object array":
            with pytest.raises(InputError, match=r"bad\.pkl"):
                safe_load(data, "bad.pkl", objects=True, records=lambda *_: True)


def test_records_keep_what_was_stored():
    data = b"csome_project.terrain\nSubTerrain\n(I7\nt\x81}(S'hf'\nI1\nS'dx'\nI2\nub."
    record = safe_load(data, "old.pkl", records=lambda module, name: name == "SubTerrain")
    assert isinstance(record, Record)
    assert (record.args, record.fields) == ((7,), {"hf": 1, "dx": 2})
    with pytest.raises(InputError, match=r"some_project\.terrain\.SubTerrain"):
        safe_load(data, "old.pkl", records=lambda module, name: name == "Other")


def test_unknown_classes_only_as_opaque():
    data = b"csome_project.terrain\nSubTerrain\n)\x81}S'hf'\nI1\nsb."
    with pytest.raises(InputError, match="some_project"):
        safe_load(data, "old.pkl")
    assert isinstance(safe_load(data, "old.pkl", opaque=True), Opaque)


def test_empty_pointer_and_truncated():
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 110844\n"
    with pytest.raises(InputError, match="git lfs pull"):
        safe_load(pointer, "c.pkl")
    with pytest.raises(InputError, match="empty"):
        safe_load(b"", "c.pkl")
    whole = pickle.dumps(VALUES)
    for cut in (1, 20, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InputError, match="undamaged"):
            safe_load(whole[:cut], "c.pkl")


def test_random_damage_never_escapes():
    rng = np.random.default_rng(0)
    whole = np.frombuffer(pickle.dumps(OrderedDict(VALUES)), dtype=np.uint8)
    for _ in range(300):
        damaged = whole.copy()
        where = rng.integers(0, len(whole), size=3)
        damaged[where] = rng.integers(0, 256, size=3)
        with contextlib.suppress(InputError):
            safe_load(damaged.tobytes(), "d.pkl")
