"""Broken and hostile motion files, made from whole ones: a corpus kept as a generator.

``corpus(seed_file, count, seed)`` gives files of one format: the same for the same seed. A third is
damaged byte by byte, the rest in what the format means: fields dropped, renamed, swapped, given
wrong types, shapes and values; lines and words of texts; pickles that would run code; files that
declare far more than they hold.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

SENTINEL = "hacked"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 110844\n"


@dataclass(frozen=True)
class SeedFile:
    """A whole file of one format."""

    name: str
    """Name of the file that is imported."""
    tree: Any
    """What is in it: nested dicts of values, or a text."""
    encode: Callable[[Any], bytes]
    """From ``tree`` to the file."""
    beside: dict[str, bytes]
    """Other files that belong to it."""
    hostile: tuple[bytes, ...] = ()
    """Whole files that only this format can be attacked with."""
    pickled: bool = False
    """Whether the format keeps objects as they are: lists that hold each other, tensors."""


def corpus(
    seed_file: SeedFile, count: int, seed: int = 0
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Label and files by name, ``count`` or more times."""
    rng = np.random.default_rng(seed)
    whole = seed_file.encode(seed_file.tree)
    fixed = [b"", b"\n", POINTER, b"\xff\xfe\x00" * 50, whole[:1], b"PK\x03\x04", b"\x80\x04."]
    fixed += [whole + whole, whole + b"\0" * 100, b"\0" * len(whole), *seed_file.hostile]
    made = 0
    for number, data in enumerate(fixed):
        yield f"fixed {number}", {**seed_file.beside, seed_file.name: data}
        made += 1
    while made < count:
        label, data = _bytes(whole, rng) if made % 3 == 0 else _meaning(seed_file, rng)
        if data is None:
            continue
        files = {**seed_file.beside, seed_file.name: data}
        if seed_file.beside and made % 5 == 0:
            other = sorted(seed_file.beside)[0]
            label, damaged = _bytes(seed_file.beside[other], rng)
            text = _text(seed_file.beside[other].decode("latin-1"), rng)
            files = {**seed_file.beside, seed_file.name: whole}
            files[other] = damaged if made % 2 else text.encode()
            label = f"{other}: {label}"
        yield label, files
        made += 1


# ---- bytes ---------------------------------------------------------------------------------


def _bytes(whole: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """Truncation, flipped bits, and blocks that are overwritten, moved, doubled or taken out."""
    data = bytearray(whole)
    size = max(1, len(data))
    at, to = sorted(int(k) for k in rng.integers(0, size, size=2))
    to = min(to, at + 200)
    kind = ("cut", "bits", "bytes", "out", "twice", "zero", "swap", "head")[int(rng.integers(8))]
    if kind == "cut":
        del data[at:]
    elif kind == "bits":
        for where in rng.integers(0, size, size=int(rng.integers(1, 8))):
            data[int(where)] ^= 1 << int(rng.integers(8))
    elif kind == "bytes":
        for where in rng.integers(0, size, size=int(rng.integers(1, 8))):
            data[int(where)] = int(rng.integers(256))
    elif kind == "out":
        del data[at:to]
    elif kind == "twice":
        data[at:at] = data[at:to]
    elif kind == "zero":
        data[at:to] = bytes(to - at)
    elif kind == "swap":
        other = int(rng.integers(0, size))
        block, end = bytes(data[at:to]), min(size, other + to - at)
        data[at:to], data[other:end] = data[other:end], block
    else:  # within the first bytes, where headers are
        for where in rng.integers(0, min(size, 200), size=3):
            data[int(where)] = int(rng.integers(256))
    return kind, bytes(data)


# ---- meaning -------------------------------------------------------------------------------


def _meaning(seed_file: SeedFile, rng: np.random.Generator) -> tuple[str, bytes | None]:
    if isinstance(seed_file.tree, str):
        return "text", seed_file.encode(_text(seed_file.tree, rng))
    tree = copy.deepcopy(seed_file.tree)
    label = " ".join(_change(tree, rng, seed_file.pickled) for _ in range(int(rng.integers(1, 3))))
    try:
        return label, seed_file.encode(tree)
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError, KeyError):
        return label, None  # what the format cannot even hold


def _change(tree: dict, rng: np.random.Generator, pickled: bool) -> str:
    """Change one field of nested dicts in place."""
    at = tree
    while True:
        keys = list(at)
        if not keys:
            return "empty"
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(at[key], dict) or rng.random() < 0.2:
            break
        at = at[key]
    kind = ("drop", "rename", "swap", "value", "value", "array", "array", "array")[
        int(rng.integers(8))
    ]
    if kind == "drop":
        del at[key]
    elif kind == "rename":
        at[f"{key}_"] = at.pop(key)
    elif kind == "swap":
        other = keys[int(rng.integers(len(keys)))]
        at[key], at[other] = at[other], at[key]
    elif kind == "value" or not _is_block(at[key]):
        values = odd_values(pickled)
        at[key] = values[int(rng.integers(len(values)))]
    else:
        at[key] = odd_array(np.asarray(at[key]), rng)
    return f"{kind} {key}"


def _is_block(value: Any) -> bool:
    """Whether it is an array, or rows of numbers of one length."""
    if not isinstance(value, list):
        return isinstance(value, np.ndarray)
    rows = [row for row in value if isinstance(row, list)]
    plain = all(isinstance(x, int | float) for row in rows for x in row[:100])
    return 0 < len(rows) == len(value) < 1000 and plain and len({len(row) for row in rows}) == 1


def laughs(depth: int = 12, width: int = 10) -> list:
    """A small list that counts as ``width ** depth`` numbers."""
    value: list = [0.0] * width
    for _ in range(depth - 1):
        value = [value] * width
    return value


def itself() -> list:
    """A list that holds itself."""
    value: list = [1.0]
    value.append(value)
    return value


def odd_values(pickled: bool = True) -> list[Any]:
    """Values that a field does not expect."""
    objects = [laughs(), itself(), torch.zeros(1, 1).expand(10**5, 10**2), set(), b"bytes"]
    return [
        *(objects if pickled else ()),
        *(None, "text", "", [], {}, (), True),
        *(float("nan"), float("inf"), -1, 0, 10**400, -(10**30), 1e300, 1e-300, 3 + 4j),
        *([[1.0], [1.0, 2.0]], [["a"]], [None], {"arr": None}, {"arr": {"arr": 1}}),
        *(np.zeros((0, 3)), np.zeros(5), np.zeros(()), np.zeros((2, 0)), np.zeros((1,) * 20)),
        *(np.array("x"), np.array(["a", "b"]), np.array([1 + 2j]), np.array(True)),
        *(torch.zeros(2, 2), torch.zeros(0)),
        *("\x00\n\u2028", "9" * 5000),
    ]


def odd_array(value: np.ndarray, rng: np.random.Generator) -> Any:
    """An array with one thing wrong with it."""
    size = max(value.size, 1)
    at = int(rng.integers(size))

    def put(number: float) -> np.ndarray:
        if value.dtype.kind not in "fiu" or not value.size:
            return value[:0]
        changed = value.astype(np.float64).copy()
        changed.reshape(-1)[at] = number
        return changed

    options: list[Callable[[], Any]] = [
        *(lambda n=n: put(n) for n in (np.nan, np.inf, -np.inf, 1e30, 1e308, -1e9, 0.0)),
        lambda: value[:-1],
        lambda: value[:0],
        lambda: value[:1],
        lambda: value[..., :-1],
        lambda: value[None],
        lambda: value.T,
        lambda: value.reshape(-1),
        lambda: value.tolist(),
        lambda: value.astype(str),
        lambda: value.astype(np.complex128),
        lambda: value.astype(np.float16),
        lambda: value.astype(np.int8),
        lambda: value.astype(object),
        lambda: value.astype(">f8"),
        lambda: np.asfortranarray(value),
        lambda: np.repeat(value, 2, axis=-1),
        lambda: np.full_like(value, -1e12, dtype=np.float64),
        lambda: torch.from_numpy(np.array(value, dtype=np.float64)),
    ]
    try:
        return options[int(rng.integers(len(options)))]()
    except (ValueError, TypeError, IndexError):
        return None


# ---- texts ---------------------------------------------------------------------------------

_WORDS = (
    *("nan", "inf", "-inf", "1e400", "1e308", "-1", "0", "999999999999", "0x10", "1e", "--1"),
    *("{", "}", "[", "]", "", '"', ",", "#", ":root", "begin", "end", "JOINT", "End Site", "\x00"),
    *("9" * 5000, "ü\u2028", "MOTION", "Frames: 99999999", "CHANNELS 999999 Xrotation"),
)


def _text(text: str, rng: np.random.Generator) -> str:
    """Words replaced, lines dropped, doubled or swapped, a tail of brackets."""
    for _ in range(int(rng.integers(1, 4))):
        lines = text.split("\n")
        a, b = (int(k) for k in rng.integers(0, len(lines), size=2))
        if rng.random() < 0.4:  # more often where structure is than in rows of numbers
            a = min(a, int(rng.integers(0, 40)), len(lines) - 1)
        kind = int(rng.integers(7))
        if kind == 0:
            del lines[a]
        elif kind == 1:
            lines.insert(b, lines[a])
        elif kind == 2:
            lines[a], lines[b] = lines[b], lines[a]
        elif kind == 3:
            lines = lines[:a]
        elif kind == 4:
            lines[a] = lines[a] + " " + str(_WORDS[int(rng.integers(len(_WORDS)))])
        else:
            for mark in (",", " "):
                words = lines[a].split(mark)
                if len(words) > 1:
                    words[int(rng.integers(len(words)))] = _WORDS[int(rng.integers(len(_WORDS)))]
                    lines[a] = mark.join(words)
                    break
        text = "\n".join(lines) or "\n"
    return text


# ---- attacks -------------------------------------------------------------------------------


class Calls:
    """Pickles to a call of ``function``."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple:
        return self.call


def hostile_objects() -> list[Any]:
    """Objects whose pickles run something that leaves a file behind."""
    return [
        Calls(os.system, f"touch {SENTINEL}"),
        Calls(exec, f"open('{SENTINEL}', 'w')"),
        Calls(eval, f"open('{SENTINEL}', 'w')"),
        Calls(open, SENTINEL, "w"),
        Calls(bytearray, 10**13),
        Calls(np.zeros, (10**6, 10**6)),
        Calls(torch.zeros, 10**6, 10**6),
    ]


def hostile_pickles(words: tuple[str, ...]) -> tuple[bytes, ...]:
    """Whole pickles; ``words`` stand in them so that a format takes them for its own."""
    mark = b"".join(b"X" + len(w).to_bytes(4, "little") + w.encode() + b"0" for w in words)
    bodies = [
        f"cos\nsystem\n(S'touch {SENTINEL}'\ntR.".encode(),
        f"(S'touch {SENTINEL}'\nios\nsystem\n.".encode(),
        b"\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch hacked\x85R.",
        b"\x8c\x08builtins\x8c\x04exec\x93\x8c\x13open('hacked','w')#\x85R.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR.",
        b"]" * 50_000 + b"a" * 49_999 + b".",  # deeply nested lists
        b"(" * 50_000 + b"t" * 50_000 + b".",
        b"]" + b"2(ee" * 20_000 + b".",
        b"\x8e\x00\x00\x00\x00\x00\x00\x01\x00abc.",  # more bytes than there are
        b"}r\xf0\xff\xff\xff.",  # a memo of four billion
        b"cbuiltins\nbytearray\n(I10000000000000\ntR.",
        b"L" + b"9" * 20_000 + b"L\n.",
        b"P123\n.",
        b"\x82\x01.",
    ]
    return tuple(b"\x80\x04" + mark + body for body in bodies)


def dump(value: Any, protocol: int = 4) -> bytes:
    """A pickle."""
    return pickle.dumps(value, protocol=protocol)


def dump_with(tree: Any, objects: list[Any], put: Callable[[Any, Any], Any]) -> tuple[bytes, ...]:
    """Files of a format with a hostile object in them; ``put`` returns the file."""
    return tuple(put(copy.deepcopy(tree), item) for item in objects)


def dump_json(tree: Any) -> bytes:
    """JSON, with arrays as lists."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | torch.Tensor):
            return value.tolist()
        raise TypeError(type(value))

    return json.dumps(tree, default=plain).encode()


def dump_npz(tree: dict[str, Any]) -> bytes:
    """An archive of arrays."""
    sink = io.BytesIO()
    np.savez(sink, **{k: np.asarray(v) for k, v in tree.items()}, allow_pickle=True)
    return sink.getvalue()


def hostile_archives(tree: dict[str, Any]) -> tuple[bytes, ...]:
    """Archives that declare more than they hold, or unpack to more than they should."""
    whole = {f"{k}.npy": _npy(v) for k, v in tree.items()}
    found = []
    for key in list(whole)[:6]:
        for content in (
            _header((10**12, 3)) + bytes(24),
            _header((2**62, 2**62)) + bytes(24),
            _header((4, 3), "|O") + pickle.dumps(Calls(os.system, f"touch {SENTINEL}")),
            _header((4, 3), "<U1000000000"),
            _header((2**20, 3)) + bytes(2**20 * 24),  # 25 MB of zeros in 25 kB
            b"\x93NUMPY\x01\x00\xff\xff{'descr': " + b"(" * 3000,
            b"\x93NUMPY\x09\x00" + bytes(50),
        ):
            sink = io.BytesIO()
            with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as file:
                for name, data in {**whole, key: content}.items():
                    file.writestr(name, data)
            found.append(sink.getvalue())
    return tuple(found)


def _npy(value: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.asarray(value))
    return sink.getvalue()


def _header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
